"""Forms that the rules were thought not to know, by somebody who had read them."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.seventh.common import (
    BARS,
    CALL,
    CODE,
    ENV,
    HF_TRAIN,
    LOADER,
    MAIN,
    NCCL_INFO,
    TITAN,
    TRAIN,
    TRANSFORMERS,
    around,
    seen,
)
from tests.reporting.unseen.third.common import before, stack
from tests.reporting.unseen.third.slurm import state
from tests.reporting.unseen.words import ADDRESS, DEVICE_SIDE, FUTURE, STEPS, by, watchdog

SAVE = (MAIN, f"{CODE}/pretrain.py:301 train | dcp.save(state, checkpoint_id=path)")
BASE = f"{CODE}/sft.py:71 <module> | model = AutoModelForCausalLM.from_pretrained(cfg.base)"
EXTENSION = (
    f"{ENV}/torch/utils/cpp_extension.py:2104 _jit_compile | _write_ninja_file_and_build_library("
)


def _rich(*lines: str) -> str:
    """A traceback as rich draws it."""
    width = 98
    inner = "".join(f"│ {line.ljust(width - 4)} │\n" for line in lines)
    return (
        f"╭{' Traceback (most recent call last) '.center(width - 2, '─')}╮\n{inner}"
        f"╰{'─' * (width - 2)}╯\n"
    )


FRAMES = (
    "/users/PAS1234/rlee/llm/pretrain.py:355 in main",
    "",
    "   352 │   loader = build(cfg)",
    " ❱ 355 │   train(cfg, model, optimizer, loader)",
    "   356 │",
    "",
    "/users/PAS1234/rlee/llm/pretrain.py:287 in train",
    "",
    " ❱ 287 │   │   loss = step(model, batch)",
)


def _drawn(name: str, causes: str, end: str, rank: int = 5, **fields: str) -> Case:
    best, *also = causes.split("|")
    return Case(
        name=name,
        source="rich traceback.py, typer",
        nodes=2,
        gpus=4,
        ranks={
            **around(8, {rank}, 4, "aborted", ADDRESS + BARS),
            rank: Rank(err=ADDRESS + BARS + _rich(*FRAMES) + end + "\n", status=1),
        },
        want=wanted(best, *also, rank=rank, node=f"node{rank // 4 + 1}", **fields),
    )


DRAWN = [
    _drawn(
        "drawn-traceback-of-a-full-card",
        "gpu-out-of-memory",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 1 has a total capacity of \n79.11 GiB of which 801.38 MiB is free. Including non-PyTorch memory, this process has 78.31 GiB \nmemory in use.",
    ),
    _drawn("drawn-traceback-of-a-key", "exception", "KeyError: 'labels'", forbid="no exception"),
    _drawn(
        "drawn-traceback-of-a-missing-file",
        "data-missing",
        "FileNotFoundError: [Errno 2] No such file or directory: \n'/fs/scratch/PAS1234/c4/shard-0044.parquet'",
    ),
    _drawn(
        "drawn-traceback-of-a-full-disk",
        "disk-full",
        "OSError: [Errno 122] Disk quota exceeded: '/users/PAS1234/rlee/out/model.pt'",
        rank=2,
    ),
]

SAVING = [
    seen(
        "one-writer-of-a-distributed-checkpoint-had-no-space",
        "torch/distributed/checkpoint",
        "disk-full",
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([5])\n"
        "Traceback (most recent call last): (RANK 5)\n"
        f'  File "{ENV}/torch/distributed/checkpoint/filesystem.py", line 812, in write_data\n'
        "    torch.save(tensor, cast(IO[bytes], stream))\n"
        "OSError: [Errno 28] No space left on device",
        *SAVE,
        everyone=True,
        noise=TITAN,
    ),
    seen(
        "one-reader-of-a-distributed-checkpoint-found-no-file",
        "torch/distributed/checkpoint",
        "data-missing|checkpoint-unreadable",
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])\n"
        "Traceback (most recent call last): (RANK 2)\n"
        f'  File "{ENV}/torch/distributed/checkpoint/filesystem.py", line 1012, in read_data\n'
        "    with self.fs.create_stream(new_path, 'rb') as stream:\n"
        "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/rlee/ckpt/step-400/__2_0.distcp'",
        *SAVE,
        everyone=True,
    ),
    seen(
        "tensors-could-not-be-written",
        "safetensors",
        "disk-full",
        'safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })',
        *HF_TRAIN,
        f"{ENV}/safetensors/torch.py:307 save_file | serialize_file(_flatten(tensors), filename, metadata=metadata)",
        rank=0,
        peers="aborted",
    ),
    seen(
        "tensors-went-over-the-quota",
        "safetensors 0.6",
        "disk-full",
        "safetensors_rust.SafetensorError: Error while serializing: I/O error: Disk quota exceeded (os error 122)",
        *HF_TRAIN,
        rank=0,
        peers="aborted",
    ),
    seen(
        "metadata-of-the-checkpoint-is-not-there",
        "torch/distributed/checkpoint",
        "data-missing|checkpoint-unreadable",
        "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/rlee/ckpt/step-400/.metadata'",
        MAIN,
        f"{CODE}/pretrain.py:331 main | dcp.load(state, checkpoint_id=path)",
        everyone=True,
    ),
    seen(
        "directory-holds-no-weights",
        "transformers modeling_utils.py",
        "data-missing|checkpoint-unreadable",
        "OSError: Error no file named pytorch_model.bin, model.safetensors, tf_model.h5, model.ckpt.index or flax_model.msgpack found in directory /scratch/rlee/base.",
        BASE,
        everyone=True,
        prefix="",
    ),
    seen(
        "path-of-the-model-was-taken-for-a-name",
        "huggingface_hub utils/_validators.py",
        "settings|data-missing|exception|script-not-visible",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/scratch/rlee/modle/base'. Use `repo_type` argument if needed.",
        BASE,
        everyone=True,
        prefix="",
    ),
    seen(
        "folder-holds-no-data-files",
        "datasets data_files.py",
        "data-missing",
        "datasets.data_files.EmptyDatasetError: The directory at /scratch/rlee/c4 doesn't contain any data files",
        f"{CODE}/sft.py:58 <module> | data = load_dataset(cfg.data)",
        everyone=True,
        prefix="",
    ),
    seen(
        "number-of-the-saved-card-is-not-here",
        "torch serialization.py",
        "exception|settings|checkpoint-unreadable",
        "RuntimeError: Attempting to deserialize object on CUDA device 7 but torch.cuda.device_count() is 4. Please use torch.load with map_location to map your storages to an existing device.",
        MAIN,
        everyone=True,
    ),
    seen(
        "groups-of-the-optimizer-differ",
        "torch optimizer.py",
        "exception|checkpoint-unreadable|settings",
        "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
        MAIN,
        everyone=True,
    ),
]

DATA = [
    seen(
        "worker-was-gone-on-a-full-node",
        "torch dataloader.py",
        "host-out-of-memory",
        "RuntimeError: DataLoader worker (pid(s) 88120) exited unexpectedly",
        *LOADER,
        rank=6,
        peers="aborted",
        memory_share={1: 0.98},
    ),
    seen(
        "worker-was-gone-on-an-idle-node",
        "torch dataloader.py",
        "exception|unknown",
        "RuntimeError: DataLoader worker (pid(s) 88120) exited unexpectedly",
        *LOADER,
        rank=6,
        peers="aborted",
        memory_share={1: 0.3},
        forbid="out of host memory",
    ),
    seen(
        "card-was-used-after-a-fork",
        "torch/cuda/__init__.py",
        "exception|settings",
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method",
        *LOADER,
        rank=1,
        forbid="broken",
    ),
    seen(
        "set-is-empty",
        "torch sampler.py",
        "data-missing|exception",
        "ValueError: num_samples should be a positive integer value, but got num_samples=0",
        MAIN,
        everyone=True,
    ),
    seen(
        "compressed-file-ends-too-early",
        "gzip",
        "data-missing|exception|checkpoint-unreadable|storage",
        "EOFError: Compressed file ended before the end-of-stream marker was reached",
        *LOADER,
        rank=3,
    ),
    seen(
        "database-of-the-index-is-locked",
        "sqlite3",
        "storage|exception",
        "sqlite3.OperationalError: database is locked",
        *LOADER,
        rank=3,
    ),
    seen(
        "tokenizer-panicked",
        "tokenizers, pyo3",
        "exception",
        "pyo3_runtime.PanicException: AddedVocabulary bad split",
        *LOADER,
        rank=2,
        before="thread '<unnamed>' panicked at tokenizers/src/tokenizer/added_vocabulary.rs:415:22:\nAddedVocabulary bad split\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n",
    ),
]

SOFTWARE = [
    seen(
        "compiled-for-the-numpy-before",
        "numpy",
        "version-mismatch",
        "RuntimeError: Numpy is not available",
        f"{CODE}/data.py:44 __getitem__ | return torch.from_numpy(row)",
        rank=2,
        before="\nA module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.3.1 as it may crash. To support both 1.x and 2.x\nversions of NumPy, modules must be compiled with NumPy 2.0.\nSome module may need to rebuild instead e.g. with 'pybind11>=2.12'.\n\nIf you are a user of the module, the easiest solution will be to\ndowngrade to 'numpy<2' or try to upgrade the affected module.\n\n",
    ),
    seen(
        "operator-of-another-vision-release",
        "torchvision",
        "version-mismatch",
        "RuntimeError: operator torchvision::nms does not exist",
        f"{CODE}/pretrain.py:9 <module> | import torchvision",
        f"{ENV}/torchvision/_meta_registrations.py:163 <module> | @torch.library.register_fake('torchvision::nms')",
        everyone=True,
        prefix="",
    ),
    seen(
        "alias-that-numpy-dropped",
        "numpy",
        "version-mismatch|exception",
        "AttributeError: module 'numpy' has no attribute 'float'.\n`np.float` was a deprecated alias for the builtin `float`. To avoid this error in existing code, use `float` by itself. Doing this will not modify any behavior and is safe.",
        f"{CODE}/metrics.py:12 f1 | x = x.astype(np.float)",
        rank=0,
    ),
    seen(
        "name-that-the-launcher-dropped",
        "deepspeed, torch",
        "version-mismatch|import-error",
        "ImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api' (/users/PAS1234/rlee/.conda/envs/llm/lib/python3.11/site-packages/torch/distributed/elastic/agent/server/api.py)",
        f"{CODE}/pretrain.py:7 <module> | import deepspeed",
        everyone=True,
        prefix="",
    ),
    seen(
        "card-too-old-for-the-compiler",
        "torch/_inductor",
        "version-mismatch|bad-gpu|settings",
        "torch._inductor.exc.GPUTooOldForTriton: Found Tesla P100-PCIE-16GB which is too old to be supported by the triton GPU compiler, which is used as the backend. Triton only supports devices of CUDA Capability >= 7.0, but your device is of CUDA capability 6.0",
        *TRAIN,
        everyone=True,
    ),
    seen(
        "kernel-found-no-memory",
        "triton",
        "gpu-out-of-memory",
        "RuntimeError: Triton Error [CUDA]: out of memory",
        *TRAIN,
        rank=1,
    ),
    seen(
        "kernel-image-is-invalid",
        "triton",
        "version-mismatch|exception|bad-gpu",
        "RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
        *TRAIN,
        everyone=True,
    ),
    seen(
        "headers-of-python-are-not-installed",
        "triton, gcc",
        "environment-missing",
        "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmpx1/cuda_utils.c', '-O3', '-shared', '-fPIC', '-o', '/tmp/tmpx1/cuda_utils.so', '-lcuda', '-I/usr/include/python3.11']' returned non-zero exit status 1.",
        *TRAIN,
        f"{ENV}/triton/runtime/build.py:50 _build | subprocess.check_call(cc_cmd)",
        everyone=True,
        before="/tmp/tmpx1/cuda_utils.c:6:10: fatal error: Python.h: No such file or directory\n    6 | #include <Python.h>\n      |          ^~~~~~~~~~\ncompilation terminated.\n",
        prefix="",
    ),
    seen(
        "driver-library-is-not-found-by-the-linker",
        "triton, ld",
        "environment-missing|version-mismatch",
        "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmpx1/main.c', '-O3', '-shared', '-fPIC', '-lcuda']' returned non-zero exit status 1.",
        *TRAIN,
        everyone=True,
        before="/usr/bin/ld: cannot find -lcuda: No such file or directory\ncollect2: error: ld returned 1 exit status\n",
        prefix="",
    ),
    seen(
        "extension-was-not-built",
        "deepspeed, torch cpp_extension.py",
        "version-mismatch|environment-missing|exception",
        "RuntimeError: Error building extension 'cpu_adam'",
        MAIN,
        EXTENSION,
        everyone=True,
        before="[1/3] /usr/local/cuda/bin/nvcc --generate-code=arch=compute_100,code=sm_100 -c cpu_adam.cu\nFAILED: custom_cuda_kernel.cuda.o\nnvcc fatal   : Unsupported gpu architecture 'compute_100'\nninja: build stopped: subcommand failed.\n",
        prefix="",
    ),
    seen(
        "codecs-of-python-are-not-found",
        "python",
        "environment-missing|import-error",
        "ModuleNotFoundError: No module named 'encodings'\n\nCurrent thread 0x00007f1d2c7fe640 (most recent call first):\n  <no Python frame>",
        "-",
        everyone=True,
        prefix="",
        before="Could not find platform independent libraries <prefix>\nPython path configuration:\n  PYTHONHOME = '/opt/python/3.9'\n  PYTHONPATH = (not set)\nFatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding\nPython runtime state: core initialized\n",
    ),
    seen(
        "graphics-library-is-not-on-the-nodes",
        "opencv",
        "import-error|environment-missing",
        "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
        f"{CODE}/data.py:3 <module> | import cv2",
        everyone=True,
        prefix="",
    ),
    Case(
        name="entry-may-not-be-executed",
        source="bash",
        nodes=2,
        gpus=1,
        ranks={1: Rank(err="bash: ./train.sh: Permission denied\n", status=126)},
        others=Rank(err=""),
        want=wanted(
            "settings",
            "script-not-visible",
            "environment-missing",
            "exception",
            rank=1,
            node="node2",
        ),
    ),
    Case(
        name="python-is-not-on-the-path",
        source="bash",
        nodes=2,
        gpus=1,
        ranks={1: Rank(err="./train.sh: line 4: python: command not found\n", status=127)},
        others=Rank(err=""),
        want=wanted("environment-missing", rank=1, node="node2"),
    ),
    Case(
        name="instruction-that-this-processor-lacks",
        source="signal(7)",
        nodes=2,
        gpus=2,
        ranks={2: Rank(err="", status=132)},
        others=Rank(err=""),
        want=wanted("exception", "version-mismatch", "unknown", rank="any", node="any"),
    ),
]

NETWORKS = [
    seen(
        "clients-did-not-all-join",
        "torch TCPStore",
        "rendezvous-timeout",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 7/8 clients joined.",
        MAIN,
        f"{CODE}/pretrain.py:318 main | dist.init_process_group('nccl')",
        rank=0,
    ),
    Case(
        name="identifier-could-not-be-fetched-for-rank-zero-was-gone",
        source="torch ProcessGroupNCCL.cpp",
        nodes=2,
        gpus=4,
        ranks={
            **{
                rank: Rank(
                    err=ADDRESS
                    + by(
                        rank,
                        stack(MAIN)
                        + f"torch.distributed.DistBackendError: [{rank}] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by store->get('0'), but store->get('0') got error: Connection reset by peer\n",
                    ),
                    status=1,
                    after_s=0.5,
                )
                for rank in range(1, 8)
            },
            0: Rank(
                err=ADDRESS + by(0, stack(MAIN) + "ModuleNotFoundError: No module named 'wandb'\n"),
                status=1,
            ),
        },
        want=wanted("import-error", rank=0, node="node1", forbid="network"),
    ),
    seen(
        "proxy-does-not-let-it-through",
        "requests",
        "no-internet",
        "requests.exceptions.ProxyError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/models/t5-base (Caused by ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 403 Forbidden')))",
        BASE,
        everyone=True,
        prefix="",
    ),
    seen(
        "certificate-of-the-centres-proxy",
        "requests",
        "exception|settings|no-internet|environment-missing",
        "requests.exceptions.SSLError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/models/t5-base (Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self signed certificate in certificate chain (_ssl.c:1007)')))",
        BASE,
        everyone=True,
        prefix="",
    ),
    seen(
        "name-of-the-hub-is-not-resolved",
        "aiohttp",
        "no-internet",
        "aiohttp.client_exceptions.ClientConnectorDNSError: Cannot connect to host huggingface.co:443 ssl:default [Temporary failure in name resolution]",
        *LOADER,
        rank=2,
        forbid="head node",
    ),
    seen(
        "hub-has-a-bad-gateway",
        "requests",
        "exception|no-internet",
        "requests.exceptions.HTTPError: 502 Server Error: Bad Gateway for url: https://huggingface.co/api/datasets/allenai/c4",
        BASE,
        rank=1,
    ),
    Case(
        name="watchdogs-got-stuck",
        source="torch ProcessGroupNCCL.cpp",
        nodes=2,
        gpus=2,
        ranks={
            rank: Rank(
                err=NCCL_INFO
                + f"[rank{rank}]:[F1122 00:31:02.1 ProcessGroupNCCL.cpp:1554] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.\n",
                status=134,
                after_s=0.01 * rank,
            )
            for rank in range(4)
        },
        want=wanted("hang", rank="any", node="any"),
    ),
]

PARENTS = [
    seen(
        "engine-process-had-a-full-card",
        "vllm v1",
        "gpu-out-of-memory",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        f"{CODE}/grpo.py:40 <module> | llm = LLM(model=cfg.base)",
        f"{ENV}/vllm/v1/engine/utils.py:1000 wait_for_engine_startup | raise RuntimeError(",
        rank=1,
        shape="2x1",
        prefix="",
        before="(EngineCore_0 pid=4188) ERROR 11-22 00:16:01 [core.py:708] EngineCore failed to start.\n(EngineCore_0 pid=4188) ERROR 11-22 00:16:01 [core.py:708] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 79.11 GiB of which 801.38 MiB is free.\n",
    ),
    seen(
        "ray-killed-a-task-for-memory",
        "ray",
        "host-out-of-memory",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.99.7.2, ID: 9f3c) where the task was running was 487.12GB / 503.00GB (0.968), which exceeds the memory usage threshold of 0.95.",
        *TRAIN,
        rank=0,
        prefix="",
        forbid="GPU",
    ),
    seen(
        "target-of-the-config-was-out-of-memory",
        "hydra",
        "gpu-out-of-memory",
        "hydra.errors.InstantiationException: Error in call to target 'model.Decoder':\nOutOfMemoryError('CUDA out of memory. Tried to allocate 1.96 GiB.')\nfull_key: model",
        MAIN,
        f"{ENV}/hydra/_internal/instantiate/_instantiate2.py:95 _call_target | raise InstantiationException(msg) from e",
        rank=3,
        prefix="",
        before=stack(f"{CODE}/model.py:55 __init__ | self.w = nn.Linear(d, 4 * d, device='cuda')")
        + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB.\n\nThe above exception was the direct cause of the following exception:\n\n",
    ),
    seen(
        "batch-numbers-do-not-multiply",
        "deepspeed config.py",
        "settings|exception",
        "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 32 != 4 * 1 * 4",
        *HF_TRAIN,
        everyone=True,
    ),
    Case(
        name="card-of-amd-met-a-wrong-address",
        source="rocr",
        nodes=2,
        gpus=4,
        ranks={
            5: Rank(
                err=BARS
                + "Memory access fault by GPU node-4 (Agent handle: 0x55d0a8c) on address 0x7f1d2c000000. Reason: Unknown.\n",
                status=134,
            )
        },
        others=Rank(err=BARS),
        want=wanted("exception", "bad-gpu", rank=5, node="node2", forbid="host memory"),
    ),
    Case(
        name="a-full-card-first-and-then-bad-memory",
        source="made: two independent failures",
        nodes=2,
        gpus=4,
        ranks={
            6: Rank(
                err=ADDRESS
                + by(
                    6,
                    stack(*TRAIN)
                    + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB.\n",
                ),
                status=1,
            ),
            1: Rank(
                err=ADDRESS
                + by(
                    1,
                    stack(*TRAIN)
                    + "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
                    + DEVICE_SIDE,
                ),
                status=1,
                after_s=0.6,
            ),
        },
        others=Rank(err=ADDRESS),
        want=wanted("gpu-out-of-memory", "bad-gpu", rank="any", node="any"),
    ),
    Case(
        name="waiting-for-the-rank-that-evaluates",
        source="torch",
        nodes=2,
        gpus=4,
        step=900,
        hung=tuple(range(8)),
        stacks={
            rank: "Thread 0x00007f1d2c7fe640 (most recent call first):\n"
            + (
                f'  File "{ENV}/torch/nn/modules/linear.py", line 125 in forward\n  File "{CODE}/pretrain.py", line 308 in evaluate\n'
                if rank == 0
                else f'  File "{ENV}/torch/distributed/distributed_c10d.py", line 4635 in barrier\n  File "{CODE}/pretrain.py", line 309 in train\n'
            )
            for rank in range(8)
        },
        others=Rank(err=STEPS),
        want=wanted("hang", rank=0, node="node1", retry="hang"),
    ),
]

SLURM = [
    before(
        "memory-of-a-task-is-not-there",
        "srun",
        "refused|settings",
        "srun: error: Unable to create step for job 4711: Memory required by task is not available\n",
    ),
    before(
        "step-belongs-to-no-job",
        "srun",
        "refused|settings",
        "srun: error: Unable to confirm allocation for job 4711: Invalid job id specified\nsrun: Check SLURM_JOB_ID environment variable. Expired or invalid job 4711\n",
    ),
    before(
        "namespace-of-the-job-is-not-there",
        "job_container/tmpfs",
        "node-failure|environment-missing|refused",
        "slurmstepd: error: container_p_join: open failed for /var/nvme/storage/4711/.ns: No such file or directory\nslurmstepd: error: container_g_join failed: 4711\nslurmstepd: error: job_manager: exiting abnormally: Job's step could not be launched\nsrun: error: node2: task 1: Exited with exit code 1\n",
        node="node2",
    ),
    state("constraints-nobody-meets", "PENDING|0:0|BadConstraints", "pending-forever|refused"),
    state(
        "held-after-a-failed-launch",
        "PENDING|0:0|launch failed requeued held",
        "pending-forever|node-failure",
    ),
    state("waits-for-its-turn", "PENDING|0:0|Priority", "pending"),
    state(
        "did-not-end-by-signals",
        "CANCELLED by 1000|0:9",
        "cancelled",
        others=Rank(err=FUTURE + BARS),
        batch="slurmstepd: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-22T00:31:00 ***\nslurmstepd: error: *** JOB 4711 STEPD TERMINATED ON node2 AT 2026-11-22T00:33:00 DUE TO JOB NOT ENDING WITH SIGNALS ***\n",
    ),
    Case(
        name="dump-was-asked-for-by-the-rank-that-timed-out",
        source="torch ProcessGroupNCCL.cpp",
        nodes=2,
        gpus=4,
        ranks={
            **{
                rank: Rank(
                    err=BARS
                    + f"[rank{rank}]:[E1122 00:31:01.1 ProcessGroupNCCL.cpp:1685] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Observed flight recorder dump signal from another rank via TCPStore.\n[rank{rank}]:[E1122 00:31:01.2 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a collective timeout from  rank 5 and we will try our best to dump the debug info. Last enqueued NCCL work: {4713 if rank != 2 else 4700}, last completed NCCL work: {4711 if rank != 2 else 4700}.This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order of collectives is not same for all ranks or the scheduled collective, for some reason, didn't run.\n",
                    status=134,
                    after_s=0.3,
                )
                for rank in range(8)
                if rank != 5
            },
            5: Rank(err=watchdog(5, seq=4712, before=BARS), status=134),
        },
        want=wanted("hang", "collective-mismatch", rank="any", node="any"),
    ),
    seen(
        "adapters-do-not-share-a-type",
        "torch",
        "exception",
        "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: float != c10::BFloat16",
        *HF_TRAIN,
        CALL,
        everyone=True,
        noise=TRANSFORMERS,
    ),
]

CASES = [*DRAWN, *SAVING, *DATA, *SOFTWARE, *NETWORKS, *PARENTS, *SLURM]
