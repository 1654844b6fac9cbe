"""Logs whose loudest words are not the cause: warnings, retries, data, model output, other ranks."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.seventh.common import (
    BANNER,
    BARS,
    CODE,
    ENV,
    HF_TRAIN,
    LOADER,
    MAIN,
    NCCL_INFO,
    TF,
    TITAN,
    TRAIN,
    TRANSFORMERS,
    WANDB,
    around,
    seen,
    store_gone,
)
from tests.reporting.unseen.third.common import stack
from tests.reporting.unseen.third.slurm import state
from tests.reporting.unseen.words import (
    ADDRESS,
    DEVICE_SIDE,
    FUTURE,
    LOADER_DEL,
    STEPS,
    by,
    watchdog,
)

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU {gpu} has a total capacity of 79.11 GiB of which 801.38 MiB is free. Including non-PyTorch memory, this process has 78.31 GiB memory in use. Of the allocated memory 74.02 GiB is allocated by PyTorch, and 3.10 GiB is reserved by PyTorch but unallocated."
DIRECT = "\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
TERM = (
    stack(
        f"{ENV}/torch/distributed/elastic/multiprocessing/api.py:86 _terminate_process_handler | raise SignalException(f'Process {{os.getpid()}} got signal: {{sigval}}', sigval=sigval)"
    )
    + "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4000 got signal: 15\n"
)

PYTHON = [
    seen(
        "batch-size-was-halved-and-then-a-key",
        "made: accelerate find_executable_batch_size",
        "exception",
        "KeyError: 'eval_loss'",
        *HF_TRAIN,
        f"{ENV}/transformers/trainer.py:3201 _determine_best_metric | metric_value = metrics[metric_to_check]",
        rank=0,
        before=TRANSFORMERS
        + "batch 64 does not fit (CUDA out of memory. Tried to allocate 8.00 GiB), trying 32\nbatch 32 fits\n"
        + BARS,
        peers="aborted",
        forbid="GPU memory",
    ),
    seen(
        "tracker-retries-and-the-card-is-full",
        "made: wandb, torch",
        "gpu-out-of-memory",
        OOM.format(gpu=1),
        *TRAIN,
        rank=5,
        before=WANDB
        + "wandb: Network error (ConnectTimeout), entering retry loop.\nwandb: W&B API key is configured. Use `wandb login --relogin` to force relogin\n"
        + BARS,
        peers="aborted",
        forbid="internet|network",
    ),
    seen(
        "verbs-library-is-missing-and-so-is-the-data",
        "made: nccl, python",
        "data-missing",
        "FileNotFoundError: [Errno 2] No such file or directory: '/fs/scratch/PAS1234/c4/train/shard-00117.tar'",
        *LOADER,
        rank=14,
        shape="4x4",
        before="node4:4102:4188 [2] misc/ibvwrap.cc:94 NCCL WARN Failed to open libibverbs.so[.1]\nnode4:4102:4188 [2] NCCL INFO NET/Socket : Using [0]eth0:10.99.7.4<0>\n"
        + BARS,
        peers="aborted",
        forbid="network",
    ),
    seen(
        "hub-was-slow-and-a-shape-is-wrong",
        "made: huggingface_hub, torch",
        "exception",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8192x4096 and 2048x4096)",
        *TRAIN,
        everyone=True,
        noise="'(MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/models/Qwen/Qwen3-8B (Caused by NewConnectionError('<urllib3.connection.HTTPSConnection object at 0x7f1d>: Failed to establish a new connection: [Errno 101] Network is unreachable'))\"), '(Request ID: 81f)')' thrown while requesting HEAD https://huggingface.co/Qwen/Qwen3-8B/resolve/main/config.json\nRetrying in 1s [Retry 1/5].\nUsing the cached copy of Qwen/Qwen3-8B.\n"
        + TRANSFORMERS,
        forbid="internet",
    ),
    seen(
        "attention-fell-back-and-the-loss-is-undefined",
        "made",
        "exception",
        "UnboundLocalError: cannot access local variable 'loss' where it is not associated with a value",
        *TRAIN,
        rank=2,
        before="flash_attn is not available, falling back to sdpa:\n"
        + stack(f"{CODE}/model.py:7 <module> | from flash_attn import flash_attn_func")
        + "ModuleNotFoundError: No module named 'flash_attn'\n"
        + BARS,
        peers="store",
        forbid="flash_attn|module",
    ),
    seen(
        "cause-stands-before-a-general-word",
        "made: Lightning-like wrapper",
        "gpu-out-of-memory",
        "RuntimeError: training failed in epoch 3",
        MAIN,
        f"{CODE}/loop.py:88 fit | raise RuntimeError(f'training failed in epoch {{epoch}}') from error",
        rank=6,
        prefix="",
        before=BARS + stack(*TRAIN) + OOM.format(gpu=2) + "\n" + DIRECT,
        peers="aborted",
    ),
    seen(
        "cache-was-missed-and-then-a-key",
        "made",
        "exception",
        "TypeError: 'NoneType' object is not subscriptable",
        MAIN,
        f"{CODE}/data.py:77 index | return self.meta['offsets']",
        rank=1,
        shape="1x4",
        prefix="",
        before=stack(f"{CODE}/data.py:70 index | with open(self.cache, 'rb') as f:")
        + "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/rlee/index.cache'\n"
        + DURING,
        forbid="file that it needs",
    ),
    seen(
        "tracker-breaks-after-the-card-is-full",
        "made: wandb, torch",
        "gpu-out-of-memory",
        OOM.format(gpu=0),
        *TRAIN,
        rank=0,
        before=WANDB + BARS,
        after=stack(
            f"{ENV}/wandb/sdk/lib/sock_client.py:236 _sendall_with_error_handle | sent = self._sock.send(data)"
        )
        + "BrokenPipeError: [Errno 32] Broken pipe\nException in thread ChkStopThr:\n"
        + stack("/usr/lib/python3.11/threading.py:1045 _bootstrap_inner | self.run()")
        + "wandb.sdk.interface.router.MessageRouterClosedError\n",
        peers="aborted",
        forbid="network|connection",
    ),
    seen(
        "scaler-skipped-steps-and-a-file-is-missing",
        "made: amp, python",
        "data-missing",
        "FileNotFoundError: [Errno 2] No such file or directory: '/fs/scratch/PAS1234/val/val_0003.npy'",
        MAIN,
        f"{CODE}/pretrain.py:305 train | evaluate(model, val_loader)",
        rank=0,
        before="step 120: grad norm nan, skipping step (scale 65536 -> 32768)\nstep 121: grad norm inf, skipping step (scale 32768 -> 16384)\n"
        + STEPS,
        peers="aborted",
        forbid=r"\bNaN\b|diverge",
    ),
    seen(
        "cache-could-not-be-written-and-a-type-is-wrong",
        "made",
        "exception",
        "TypeError: unsupported operand type(s) for /: 'NoneType' and 'float'",
        *TRAIN,
        rank=3,
        before=f"{ENV}/torch/_inductor/codecache.py:1101: UserWarning: could not write /users/PAS1234/rlee/.cache/inductor/fx: [Errno 122] Disk quota exceeded; compiling without a cache\n  warnings.warn(\n"
        + BARS,
        forbid="quota|space",
    ),
    seen(
        "exporter-is-refused-in-a-thread",
        "made: prometheus_client",
        "exception",
        "AssertionError: loss is not a scalar: torch.Size([8])",
        *TRAIN,
        rank=7,
        before="Exception in thread metrics:\n"
        + stack(
            "/usr/lib/python3.11/threading.py:1045 _bootstrap_inner | self.run()",
            "/usr/lib/python3.11/http/client.py:975 connect | self.sock = self._create_connection(",
        )
        + "ConnectionRefusedError: [Errno 111] Connection refused\n"
        + BARS,
        peers="aborted",
        forbid="refused|network",
    ),
    seen(
        "fonts-may-not-be-written-and-the-card-is-full",
        "made: matplotlib, torch",
        "gpu-out-of-memory",
        OOM.format(gpu=3),
        *TRAIN,
        rank=27,
        shape="8x4",
        before="mkdir -p failed for path /users/PAS1234/rlee/.config/matplotlib: [Errno 13] Permission denied: '/users/PAS1234/rlee/.config'\nMatplotlib created a temporary cache directory at /tmp/matplotlib-8x2 because there was an issue with the default path (/users/PAS1234/rlee/.config/matplotlib); it is highly recommended to set the MPLCONFIGDIR environment variable to a writable directory, in particular to speed up the import of Matplotlib and to better support multiprocessing.\n"
        + BARS,
        peers="aborted",
        forbid="permission",
    ),
    seen(
        "settings-that-sound-like-causes",
        "made: a config dump",
        "import-error|environment-missing",
        "ModuleNotFoundError: No module named 'liger_kernel'",
        f"{CODE}/pretrain.py:14 <module> | from liger_kernel.transformers import apply_liger_kernel_to_llama",
        everyone=True,
        prefix="",
        noise="fault_tolerance:\n  on_oom: CUDA out of memory -> halve micro batch\n  on_nccl: 'Watchdog caught collective operation timeout' -> restart\n  on_disk: 'No space left on device' -> prune\n  on_signal: 'DUE TO TIME LIMIT' -> save\n",
        forbid="GPU memory|space|time limit|NCCL",
    ),
    seen(
        "pip-complained-in-the-job-and-a-shape-is-wrong",
        "made: pip",
        "exception",
        "ValueError: expected sequence of length 4096 at dim 1 (got 4095)",
        *LOADER,
        rank=4,
        batch="ERROR: Could not find a version that satisfies the requirement flash-attn==2.9.9 (from versions: 2.7.4, 2.8.3)\nERROR: No matching distribution found for flash-attn==2.9.9\nWARNING: There was an error checking the latest version of pip.\n",
        peers="aborted",
        forbid="pip|flash",
    ),
    seen(
        "model-writes-a-crash",
        "made: samples of a model of code",
        "exception",
        "ValueError: too many values to unpack (expected 2)",
        MAIN,
        f"{CODE}/pretrain.py:308 train | loss, metrics = evaluate(model)",
        rank=0,
        prefix="",
        before='=== sample 3 ===\n>>> x.cuda()\nTraceback (most recent call last):\n  File "<stdin>", line 1, in <module>\nRuntimeError: CUDA error: device-side assert triggered\nSegmentation fault (core dumped)\n=== sample 4 ===\nslurmstepd: error: *** JOB 88 CANCELLED DUE TO TIME LIMIT ***\n=== end of samples ===\n'
        + STEPS,
        peers="aborted",
        forbid="GPU|segmentation|time limit",
    ),
    seen(
        "rows-about-disks",
        "made: a data set of support tickets",
        "exception",
        "IndexError: list index out of range",
        *LOADER,
        f"{CODE}/data.py:44 __getitem__ | return self.rows[i]['turns'][1]",
        rank=1,
        prefix="",
        before='{"id": 7, "turns": ["OSError: [Errno 28] No space left on device, what now?"]}\n{"id": 8, "turns": ["my job says Killed, exit code 137, oom_kill", "add memory"]}\n',
        on_out=True,
        peers="aborted",
        forbid="space|memory",
    ),
    seen(
        "lightning-says-it-detected-an-interrupt",
        "lightning, made",
        "exception",
        "RuntimeError: stack expects each tensor to be equal size, but got [3, 224, 224] at entry 0 and [1, 224, 224] at entry 7",
        *LOADER,
        rank=6,
        after="\nDetected KeyboardInterrupt, attempting graceful shutdown ...\n",
        peers="store",
        forbid="cancel|interrupt",
    ),
    seen(
        "old-warnings-of-the-driver-and-a-name",
        "torch, made",
        "exception",
        "NameError: name 'autocast_dtype' is not defined",
        *TRAIN,
        everyone=True,
        noise=TF
        + f"{ENV}/torch/cuda/__init__.py:61: FutureWarning: The pynvml package is deprecated. Please install nvidia-ml-py instead.\n  import pynvml  # type: ignore[import]\n{ENV}/torch/cuda/memory.py:391: FutureWarning: torch.cuda.reset_max_memory_allocated now calls torch.cuda.reset_peak_memory_stats, which resets /all/ peak memory stats.\n",
        forbid="driver|memory",
    ),
]

OTHERS = [
    Case(
        name="terminated-ranks-are-louder",
        source="torch elastic, made",
        nodes=2,
        gpus=4,
        ranks={
            **{rank: Rank(err=BANNER + BARS + TERM + store_gone(rank)) for rank in range(4)},
            **{
                rank: Rank(err=BARS + watchdog(rank), status=134, after_s=2.0) for rank in (4, 5, 7)
            },
            6: Rank(
                err=BARS
                + by(
                    6, stack(*LOADER) + "AttributeError: 'list' object has no attribute 'shape'\n"
                ),
                status=1,
            ),
        },
        want=wanted("exception", rank=6, node="node2", forbid="hang|network|signal"),
    ),
    Case(
        name="rank-zero-reports-what-another-did",
        source="torch, made",
        nodes=4,
        gpus=4,
        ranks={
            **around(16, {0, 9}, 4, "store", ADDRESS + TITAN),
            9: Rank(
                err=ADDRESS + by(9, stack(*TRAIN) + OOM.format(gpu=1) + "\n"),
                status=1,
            ),
            0: Rank(
                err=ADDRESS
                + by(
                    0,
                    stack(
                        *TRAIN,
                        f"{ENV}/torch/distributed/distributed_c10d.py:2810 all_reduce | work.wait()",
                    )
                    + "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.\n",
                ),
                status=1,
                after_s=0.7,
            ),
        },
        want=wanted("gpu-out-of-memory", rank=9, node="node3", retry="out-of-memory"),
    ),
    Case(
        name="thread-raised-and-the-others-time-out",
        source="made: a prefetching thread",
        nodes=2,
        gpus=4,
        ranks={
            **{
                rank: Rank(err=watchdog(rank, before=BARS), status=134, after_s=0.01 * rank)
                for rank in range(8)
                if rank != 3
            },
            3: Rank(
                err=BARS
                + "Exception in thread prefetch:\n"
                + stack(
                    "/usr/lib/python3.11/threading.py:1045 _bootstrap_inner | self.run()",
                    f"{CODE}/data.py:112 run | self.queue.put(self.read(next(self.order)))",
                )
                + "OSError: [Errno 116] Stale file handle: '/fs/scratch/PAS1234/c4/shard-9.bin'\n",
            ),
        },
        want=wanted("storage", "hang", rank="any", node="any"),
    ),
    Case(
        name="node-was-killed-for-memory-and-peers-speak-of-networks",
        source="nccl, slurmstepd",
        nodes=2,
        gpus=4,
        ranks={
            **around(8, {4}, 4, "aborted", NCCL_INFO),
            4: Rank(err=NCCL_INFO + BARS, status=137),
        },
        memory_share={1: 0.98},
        node_logs={
            1: "[77120.4] Memory cgroup out of memory: Killed process 4100 (python) total-vm:301244kB, anon-rss:128771360kB, file-rss:91032kB, shmem-rss:61440kB, UID:1000 pgtables:260112kB oom_score_adj:0\n"
        },
        want=wanted("host-out-of-memory", rank="any", node="node2", forbid="network"),
    ),
]

SLURM = [
    state(
        "time-was-over-while-peers-were-late",
        "TIMEOUT|0:15",
        "time-limit",
        others=Rank(
            err=BARS
            + "[rank3]:[W1122 00:30:02.551218 ProcessGroupNCCL.cpp:1253] [PG ID 0 PG GUID 0(default_pg) Rank 3] Observed flight recorder dump signal from another rank via TCPStore.\n"
            + FUTURE
        ),
        batch="slurmstepd: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-22T00:31:00 DUE TO TIME LIMIT ***\n",
    ),
    state(
        "resumed-after-memory-and-cancelled",
        "CANCELLED by 1000|0:15",
        "cancelled",
        others=Rank(
            err="resuming from step-4000: the run before ended with OUT_OF_MEMORY (oom_kill event in StepId=4688.0)\n"
            + BARS
        ),
        batch="slurmstepd: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-22T00:31:00 ***\n",
    ),
    state(
        "preempted-while-connections-broke",
        "PREEMPTED|0:15",
        "preemption",
        others=Rank(err=BARS + store_gone(4) + TERM),
        batch="slurmstepd: error: *** STEP 4711.0 ON node1 CANCELLED AT 2026-11-22T00:31:00 DUE TO PREEMPTION ***\n",
    ),
    state(
        "watching-the-memory-and-out-of-time",
        "TIMEOUT|0:15",
        "time-limit",
        others=Rank(
            err="[mem] host 0.97 of 1.00 used, near the limit: consider fewer workers\n" + BARS
        ),
        memory_share={0: 0.93, 1: 0.92},
    ),
]

INNOCENT = [
    Case(
        name="done-though-the-log-is-about-errors",
        source="made: a classifier of logs",
        nodes=2,
        gpus=4,
        others=Rank(
            out="eval: label=oom 'CUDA out of memory' p=0.98\neval: label=net 'NCCL WARN Connection refused' p=0.91\nERROR class f1 0.88\nFATAL class f1 0.79\n",
            err=BARS,
            status=0,
        ),
        slurm="COMPLETED|0:0",
        want=wanted("done"),
    ),
    Case(
        name="done-though-the-loader-was-torn-down",
        source="torch, wandb",
        nodes=1,
        gpus=8,
        others=Rank(
            err=BARS
            + LOADER_DEL
            + "Exception in thread QueueFeederThread:\n"
            + stack("/usr/lib/python3.11/multiprocessing/queues.py:255 _feed | reader_close()")
            + "OSError: [Errno 9] Bad file descriptor\n"
            + WANDB,
            status=0,
        ),
        slurm="COMPLETED|0:0",
        want=wanted("done"),
    ),
    Case(
        name="running-though-a-batch-did-not-fit",
        source="accelerate find_executable_batch_size",
        nodes=2,
        gpus=4,
        step=420,
        others=Rank(
            err="INFO batch size 16: " + OOM.format(gpu=0) + "\nINFO batch size 8 it is\n" + BARS
        ),
        slurm="RUNNING|0:0",
        want=wanted("running"),
    ),
    Case(
        name="illegal-access-and-a-line-of-the-kernel",
        source="NVRM Xid 31",
        nodes=2,
        gpus=4,
        ranks={
            **around(8, {1}, 4, "aborted", ADDRESS + BARS),
            1: Rank(
                err=ADDRESS
                + BARS
                + by(
                    1,
                    stack(*TRAIN)
                    + "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
                    + DEVICE_SIDE,
                ),
                status=1,
            ),
        },
        node_logs={
            0: "[881230.1] NVRM: Xid (PCI:0000:1b:00): 31, pid=4101, name=python, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_3 faulted @ 0x7f1d_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ\n"
        },
        want=wanted("exception", "bad-gpu", rank=1, node="node1", forbid="host memory|GPU memory"),
    ),
]

CASES = [*PYTHON, *OTHERS, *SLURM, *INNOCENT]
