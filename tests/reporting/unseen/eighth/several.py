"""Failures in which ranks say different things: who could not make what others missed, who only
lost a peer, and what all had printed that looks like an error and is none.
"""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.third.common import stack
from tests.reporting.unseen.words import DEVICE_SIDE, by, remote_error, watchdog

SITE = "/proj/a/env/lib/python3.12/site-packages"
HOME = "/proj/a/code"
BASE = (
    f"{SITE}/torch/cuda/__init__.py:61: FutureWarning: The pynvml package is deprecated. Please install nvidia-ml-py instead.\n"
    "[W1122 00:15:02.118 socket.cpp:752] [c10d] The IPv6 network addresses of (gpu001, 24017) cannot be retrieved (gai error: -2 - Name or service not known).\n"
    "2026-11-22 00:15:03.998114: E external/local_xla/xla/stream_executor/cuda/cuda_blas.cc:1407] Unable to register cuBLAS factory: Attempting to register factory for plugin cuBLAS when one has already been registered\n"
    "Could not import flash_attn: No module named 'flash_attn'; the default attention is used\n"
    "NCCL INFO NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory\n"
    "Can not open /etc/site/limits.conf: Permission denied\n"
)
"""What every rank of this cluster prints, and gets over."""


def told(end: str, *frames: str) -> str:
    return stack(f"{HOME}/run.py:90 <module> | main()", *frames) + end + "\n"


def ended(rank: int, end: str, *frames: str, front: str = "", after_s: float = 0.0) -> Rank:
    """A rank that an exception ended. front: what it had printed just before."""
    return Rank(err=BASE + front + by(rank, told(end, *frames)), status=1, after_s=after_s)


def lost(rank: int, after_s: float = 0.5) -> Rank:
    return Rank(err=remote_error(rank, before=BASE), status=134, after_s=after_s)


def several(
    name: str,
    source: str,
    causes: str,
    ranks: Mapping[int, Rank],
    *,
    rank: Any = "any",
    node: Any = "any",
    others: Rank | None = None,
    forbid: str = "",
    **fields: Any,
) -> Case:
    """On two nodes of four GPUs. Who is not in `ranks` was ended with the rest."""
    best, *also = causes.split("|")
    return Case(
        name=name,
        source=source,
        nodes=2,
        gpus=4,
        ranks=ranks,
        others=others or Rank(err=BASE),
        want=wanted(best, *also, rank=rank, node=node, forbid=forbid),
        **fields,
    )


MISS = "FileNotFoundError: [Errno 2] No such file or directory: '/proj/a/cache/arrow/train-00000-of-00004.arrow'"
FUSED = "ImportError: /proj/a/.cache/torch_extensions/py312_cu126/fused/fused.so: cannot open shared object file: No such file or directory"
ILLEGAL = (
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n" + DEVICE_SIDE
)
LAUNCH = "RuntimeError: CUDA error: unspecified launch failure\n" + DEVICE_SIDE
LOCK_WAIT = "Waiting for the lock on /proj/a/hub/.locks/models--big/ab12.lock ...\n"
SLEEPING = "\rGrouping texts in chunks of 4096 (num_proc=8):  12%|#2        | 120000/1000000 [29:11<3:34:02, 68.5 examples/s]\n"

CASES = [
    several(
        "quota-on-rank-0-and-missing-shards",
        "datasets, of a cache that one rank builds",
        "disk-full",
        {
            0: ended(
                0,
                "OSError: [Errno 122] Disk quota exceeded",
                f"{SITE}/datasets/arrow_writer.py:633 write_table | self.pa_writer.write_table(pa_table)",
                after_s=0.05,
            ),
            **{
                r: ended(
                    r,
                    MISS,
                    f"{SITE}/datasets/table.py:56 _memory_mapped | pa.memory_map(filename)",
                    after_s=0.0,
                )
                for r in (1, 2, 5)
            },
        },
        rank=0,
        node="node1",
    ),
    several(
        "no-compiler-for-rank-0-and-no-library-for-others",
        "torch.utils.cpp_extension",
        "environment-missing|exception",
        {
            0: ended(
                0,
                "RuntimeError: Error building extension 'fused'",
                front="/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found\nninja: build stopped: subcommand failed.\n",
                after_s=0.06,
            ),
            3: ended(3, FUSED),
            6: ended(6, FUSED, after_s=0.01),
        },
        rank=0,
    ),
    several(
        "illegal-access-on-one-rank",
        "CUDA",
        "exception",
        {
            5: ended(5, ILLEGAL, f"{HOME}/run.py:71 main | loss.backward()"),
            **{r: lost(r) for r in range(4)},
        },
        rank=5,
        node="node2",
        forbid="token|label|embedding|IPv6|flash_attn",
    ),
    several(
        "launch-failure-on-a-node",
        "CUDA",
        "exception|bad-gpu",
        {r: ended(r, LAUNCH, after_s=0.02 * r) for r in range(4, 8)},
        node="node2",
        forbid="token|label|embedding",
    ),
    several(
        "label-beyond-the-classes",
        "a kernel's assertion",
        "exception",
        {
            2: ended(
                2,
                "RuntimeError: CUDA error: device-side assert triggered\n" + DEVICE_SIDE,
                front="/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [7,0,0] Assertion `t >= 0 && t < n_classes` failed.\n",
            ),
            **{r: lost(r) for r in range(4, 8)},
        },
        rank=2,
        node="node1",
    ),
    several(
        "one-rank-saves-and-the-others-wait",
        "NCCL's watchdog",
        "hang",
        {
            0: Rank(
                err=BASE,
                out="step 400 loss 2.11\nwriting consolidated weights to /proj/a/out/step-400.pt\n",
            ),
            **{
                r: Rank(err=watchdog(r, op="BROADCAST", before=BASE), status=134, after_s=0.01 * r)
                for r in range(1, 8)
            },
        },
        rank=0,
        forbid="IPv6|head node",
    ),
    several(
        "a-rank-leaves-with-0",
        "made",
        "collective-mismatch|connection-reset|hang|exception",
        {
            3: Rank(
                err=BASE,
                out="rank 3: my part of the file list is empty, nothing to train on\n",
                status=0,
            ),
            **{
                r: Rank(err=remote_error(r, before=BASE), status=134, after_s=0.8)
                for r in range(4, 8)
            },
        },
    ),
    several(
        "print-into-a-closed-pipe",
        "Python, of a script that pipes its output into head",
        "exception|storage|unknown",
        {
            2: ended(
                2,
                "BrokenPipeError: [Errno 32] Broken pipe",
                f'{HOME}/run.py:66 main | print(f"step {{step}}")',
            ),
            **{r: lost(r) for r in range(4, 8)},
        },
        rank=2,
        forbid="lost the connection",
    ),
    several(
        "stale-handle-on-a-node",
        "the kernel",
        "storage",
        {
            **{
                r: ended(
                    r,
                    "OSError: [Errno 116] Stale file handle: '/proj/a/data/shard-0009.bin'",
                    after_s=0.03 * (r - 4),
                )
                for r in range(4, 8)
            },
            **{r: lost(r) for r in range(4)},
        },
        node="node2",
    ),
    several(
        "module-missing-on-a-node",
        "Python, and TCPStore on the other node",
        "import-error",
        {
            r: ended(r, "ModuleNotFoundError: No module named 'liger_kernel'", after_s=0.01 * r)
            for r in range(4, 8)
        },
        node="node2",
        forbid="flash_attn",
    ),
    several(
        "older-libstdcxx-on-a-rank",
        "the dynamic linker",
        "version-mismatch|import-error",
        {
            7: ended(
                7,
                f"ImportError: /lib64/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by {SITE}/pyarrow/libarrow.so.2100)",
            )
        },
        rank=7,
        forbid="flash_attn",
    ),
    several(
        "gated-model",
        "huggingface_hub",
        "exception|settings|no-internet|data-missing",
        {
            r: ended(
                r,
                "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/meta/big.\n401 Client Error. (Request ID: Root=1-66)\n\nAccess to model meta/big is restricted. You must have access to it and be authenticated to access it. Please log in.",
                after_s=0.01 * r,
            )
            for r in range(8)
        },
        forbid="no internet",
    ),
    several(
        "tracker-out-of-reach-for-rank-0",
        "wandb",
        "no-internet",
        {
            0: ended(
                0,
                'wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec. Please try increasing the timeout with the `init_timeout` setting: Get "https://api.wandb.ai/graphql": dial tcp: connect: network is unreachable',
            ),
            **{r: lost(r) for r in range(4, 8)},
        },
        rank=0,
    ),
    several(
        "loss-is-no-number-on-a-rank",
        "made",
        "nan-loss",
        {
            4: ended(4, "ValueError: loss is nan at step 1200, stopping training"),
            **{r: lost(r) for r in range(4)},
        },
        rank=4,
    ),
    several(
        "out-of-gpu-memory-and-a-broken-context",
        "torch",
        "gpu-out-of-memory",
        {
            3: ended(
                3,
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 39.38 GiB of which 811.00 MiB is free.",
            ),
            **{r: lost(r, 0.4) for r in range(4, 8)},
        },
        rank=3,
        node="node1",
    ),
    several(
        "cut-file-in-a-checkpoint",
        "torch.load",
        "checkpoint-unreadable",
        {
            5: ended(
                5,
                "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
                f"{SITE}/torch/serialization.py:1432 load | with _open_zipfile_reader(f) as z:",
            ),
            **{r: lost(r) for r in range(4)},
        },
        rank=5,
    ),
    several(
        "other-shape-in-the-checkpoint",
        "torch",
        "exception|checkpoint-unreadable|settings",
        {
            r: ended(
                r,
                "RuntimeError: Error(s) in loading state_dict for T5:\n\tsize mismatch for lm_head.weight: copying a param with shape torch.Size([32128, 768]) from checkpoint, the shape in current model is torch.Size([32100, 768]).",
                after_s=0.01 * r,
            )
            for r in range(8)
        },
    ),
    several(
        "own-words-of-a-worker",
        "made: words that agents use",
        "exception",
        {3: ended(3, "RuntimeError: prefetch worker 3: no sign of life for 60 s")},
        rank=3,
        node="node1",
    ),
    several(
        "a-key-that-nobody-set",
        "TCPStore, while one rank is still loading",
        "rendezvous-timeout|hang",
        {
            2: Rank(err=BASE, out="loading tokenizer from /proj/a/tok ...\n"),
            **{
                r: ended(
                    r,
                    "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//worker_count",
                    after_s=0.01 * r,
                )
                for r in (0, 1, 3, 4, 5, 6, 7)
            },
        },
        forbid="IPv6",
    ),
    several(
        "time-limit-while-waiting-for-a-lock",
        "filelock",
        "time-limit|hang",
        {},
        others=Rank(err=BASE + LOCK_WAIT),
        slurm="TIMEOUT|0:0",
        batch="slurmstepd-node1: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-22T06:24:44 DUE TO TIME LIMIT ***\n",
    ),
    several(
        "killed-by-the-kernel-for-memory",
        "slurmstepd",
        "host-out-of-memory",
        {6: Rank(err=BASE, status=137), **{r: lost(r) for r in range(4)}},
        rank=6,
        node="node2",
        slurm="OUT_OF_MEMORY|0:125",
        batch="slurmstepd-node2: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.\nsrun: error: node2: task 1: Out Of Memory\n",
    ),
    several(
        "worker-met-a-full-shm",
        "torch's DataLoader",
        "disk-full|host-out-of-memory",
        {
            r: ended(
                r,
                f"RuntimeError: DataLoader worker (pid(s) {9000 + r}) exited unexpectedly",
                front="ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n",
                after_s=0.01 * r,
            )
            for r in range(4, 8)
        },
        node="node2",
    ),
    several(
        "error-in-a-worker-of-one-rank",
        "torch's DataLoader",
        "exception",
        {
            7: ended(
                7,
                "ZeroDivisionError: Caught ZeroDivisionError in DataLoader worker process 2.\nOriginal Traceback (most recent call last):\n"
                + f'  File "{HOME}/data.py", line 41, in __getitem__\n    return x / n\n'
                + "ZeroDivisionError: division by zero",
            ),
            **{r: lost(r) for r in range(4)},
        },
        rank=7,
    ),
    several(
        "segfault-of-one-rank",
        "faulthandler",
        "exception|unknown",
        {
            6: Rank(
                err=BASE
                + f'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f1 (most recent call first):\n  File "{SITE}/torch/_ops.py", line 1158 in __call__\n  File "{HOME}/run.py", line 70 in main\n',
                status=139,
            ),
            **{r: lost(r) for r in range(4)},
        },
        rank=6,
        node="node2",
    ),
    several(
        "last-words-behind-a-harmless-import",
        "made",
        "exception|unknown|settings",
        {
            1: Rank(
                err=BASE
                + "ERROR: sequence length 8192 is not a multiple of the ring size 6, giving up\n",
                status=1,
            )
        },
        rank=1,
        forbid="flash_attn|import|IPv6|Permission",
    ),
    several(
        "all-leave-with-the-same-last-words",
        "made",
        "exception|unknown|settings",
        {
            r: Rank(
                err=BASE + "giving up: no GPU plan fits 13 layers on 8 stages\n",
                status=3,
                after_s=0.02 * r,
            )
            for r in range(3)
        },
        others=Rank(err=BASE + "giving up: no GPU plan fits 13 layers on 8 stages\n"),
        rank="any",
        forbid="flash_attn|import|IPv6|Permission",
    ),
    several(
        "rank-0-may-not-write-the-index",
        "Megatron's index builder",
        "exception|storage",
        {
            0: ended(
                0,
                "PermissionError: [Errno 13] Permission denied: '/data/corpus/cache/index.npy'",
                after_s=0.04,
            ),
            **{
                r: ended(
                    r,
                    "FileNotFoundError: [Errno 2] No such file or directory: '/data/corpus/cache/index.npy'",
                    after_s=0.0,
                )
                for r in (1, 2, 3)
            },
        },
        rank=0,
    ),
    several(
        "download-refused-to-rank-0",
        "requests",
        "exception|no-internet|settings",
        {
            0: ended(
                0,
                "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/x/resolve/main/model.bin",
                after_s=0.05,
            ),
            **{r: ended(r, MISS) for r in (1, 2, 3)},
        },
        rank=0,
    ),
    several(
        "one-rank-short-at-the-barrier",
        "torch",
        "rendezvous-timeout|hang",
        {
            r: ended(
                r,
                f"RuntimeError: Timed out initializing process group in store based barrier on rank: {r}, for key: store_based_barrier_key:1 (world_size=8, worker_count=7, timeout=0:30:00)",
                after_s=0.01 * r,
            )
            for r in (0, 1, 2, 4, 5, 6, 7)
        },
        forbid="IPv6",
    ),
    several(
        "driver-of-a-node-does-not-start",
        "torch",
        "bad-gpu|version-mismatch",
        {
            r: ended(
                r,
                "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
                after_s=0.01 * r,
            )
            for r in range(4, 8)
        },
        node="node2",
    ),
    several(
        "time-limit-of-a-good-run",
        "Slurm",
        "time-limit",
        {},
        others=Rank(
            err=BASE
            + "  8%|8| 410/5000 [12:01<2:14:37,  1.76s/it]{'loss': 1.6231, 'epoch': 0.16}\n"
        ),
        slurm="TIMEOUT|0:0",
        batch="slurmstepd-node1: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-22T06:24:44 DUE TO TIME LIMIT ***\n",
        forbid="no rank logged",
    ),
]
