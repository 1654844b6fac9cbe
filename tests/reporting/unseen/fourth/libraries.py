"""Libraries: data, checkpoints, compilers, containers, clients."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.third.common import SITE, STEP, before, failing, stack
from tests.reporting.unseen.words import aborted

GONE = aborted(0)
LOAD = f"{SITE}/datasets/load.py:2151 load_dataset | builder_instance.download_and_prepare("
CASES = [
    failing(
        "snappy-data-are-corrupt",
        "github.com/huggingface/datasets/issues/5695",
        "exception|checkpoint-unreadable|storage|data-missing",
        "OSError: Corrupt snappy compressed data.",
        LOAD,
        rank=3,
    ),
    failing(
        "flatbuffers-message-invalid",
        "github.com/huggingface/datasets/issues/7346",
        "exception|checkpoint-unreadable|storage|data-missing",
        "OSError: Invalid flatbuffers message.",
        LOAD,
        rank=3,
    ),
    failing(
        "parquet-without-its-magic",
        "github.com/huggingface/datasets/issues/4077",
        "exception|checkpoint-unreadable|data-missing",
        "pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file.",
        LOAD,
        everyone=True,
    ),
    failing(
        "generation-wraps-a-quota",
        "datasets.exceptions",
        "disk-full",
        stack(
            f"{SITE}/datasets/arrow_writer.py:590 write_table | self.pa_writer.write_table(pa_table, writer_batch_size)"
        )
        + "OSError: [Errno 122] Disk quota exceeded\n\nThe above exception was the direct cause of the following exception:\n\n"
        + stack(LOAD)
        + "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
        "-",
        rank=0,
    ),
    failing(
        "arrow-cannot-open-a-local-file",
        "pyarrow",
        "data-missing",
        "FileNotFoundError: [Errno 2] Failed to open local file '/lustre/set/data-00017-of-00064.arrow'. Detail: [errno 2] No such file or directory",
        f"{SITE}/datasets/table.py:51 _memory_mapped | pa.memory_map(filename)",
        rank=6,
    ),
    failing(
        "arrow-io-with-a-detail",
        "pyarrow",
        "storage",
        "OSError: [Errno 5] Error reading bytes from file. Detail: [errno 5] Input/output error",
        f"{SITE}/pyarrow/parquet/core.py:1500 read | table = self._dataset.to_table(",
        rank=6,
    ),
    failing(
        "directory-is-no-dataset",
        "datasets",
        "data-missing|exception",
        "FileNotFoundError: Directory /lustre/set/tokenised is neither a `Dataset` directory nor a `DatasetDict` directory.",
        f"{SITE}/datasets/load.py:2207 load_from_disk | raise FileNotFoundError(",
        everyone=True,
    ),
    failing(
        "key-of-a-sharded-checkpoint-missing",
        "torch DCP planner",
        "exception|checkpoint-unreadable|settings",
        'torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0, 1, 2, 3, 4, 5, 6, 7])\nTraceback (most recent call last): (RANK 0)\n  File "/lustre/p7/env/lib/python3.12/site-packages/torch/distributed/checkpoint/default_planner.py", line 471, in create_default_local_load_plan\n    raise RuntimeError(f"Missing key in checkpoint state_dict: {fqn}.")\nRuntimeError: Missing key in checkpoint state_dict: optim.param_groups.0.betas.',
        everyone=True,
    ),
    failing(
        "world-of-another-size-resumes",
        "torchtitan",
        "exception|checkpoint-unreadable|settings",
        "ValueError: Size mismatch between saved torch.Size([1024, 4096]) and current: torch.Size([512, 4096]) for layers.3.feed_forward.w1.weight",
        everyone=True,
    ),
    failing(
        "checkpoint-path-is-a-hub-name",
        "transformers",
        "no-internet|data-missing|exception|settings",
        "OSError: ./ckpt/step-400 is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'\nIf this is a private repository, make sure to pass a token having permission to this repo.",
        everyone=True,
    ),
    failing(
        "no-file-of-weights-in-a-directory",
        "transformers",
        "data-missing|checkpoint-unreadable|exception",
        "OSError: Error no file named pytorch_model.bin, model.safetensors, tf_model.h5, model.ckpt.index or flax_model.msgpack found in directory /lustre/k.meyer/ckpt/step-400.",
        everyone=True,
    ),
    failing(
        "weights-are-a-pointer-of-lfs",
        "git-lfs",
        "checkpoint-unreadable",
        "safetensors_rust.SafetensorError: Error while deserializing header: header too large",
        everyone=True,
    ),
    failing(
        "dynamo-internal-error",
        "torch._dynamo",
        "exception",
        "torch._dynamo.exc.InternalTorchDynamoError: AttributeError: 'NoneType' object has no attribute 'is_tracing'\n\nSet TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're reporting a bug to PyTorch).",
        everyone=True,
    ),
    failing(
        "inductor-misses-a-compiler",
        "torch._inductor",
        "environment-missing|exception",
        "torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl.",
        everyone=True,
    ),
    failing(
        "ptxas-is-not-executable",
        "triton",
        "exception|environment-missing|storage",
        "PermissionError: [Errno 13] Permission denied: '/lustre/p7/env/lib/python3.12/site-packages/triton/backends/nvidia/bin/ptxas'",
        f"{SITE}/triton/backends/nvidia/compiler.py:43 get_ptxas_version | subprocess.check_output([path, '--version'])",
        everyone=True,
    ),
    failing(
        "triton-ran-out-of-shared-memory",
        "triton",
        "exception",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 262144, Hardware limit: 232448. Reducing block sizes or `num_stages` may help.",
        everyone=True,
        forbid="ran out of GPU memory",
    ),
    failing(
        "attention-supports-newer-gpus-only",
        "flash-attn",
        "exception|version-mismatch|settings",
        "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
        everyone=True,
    ),
    failing(
        "attention-not-installed",
        "transformers",
        "import-error|environment-missing",
        "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package flash_attn seems to be not installed. Please refer to the documentation.",
        everyone=True,
    ),
    failing(
        "wandb-key-refused",
        "wandb",
        "exception|settings|environment-missing",
        "wandb.errors.errors.AuthenticationError: The API key you provided is either invalid or missing. If the `WANDB_API_KEY` environment variable is set, make sure it is correct.",
        rank=0,
    ),
    failing(
        "mlflow-in-its-own-words",
        "mlflow",
        "no-internet",
        "mlflow.exceptions.MlflowException: API request to http://mlflow.uni-x.de:5000/api/2.0/mlflow/runs/create failed with exception HTTPConnectionPool(host='mlflow.uni-x.de', port=5000): Max retries exceeded with url: /api (Caused by ConnectTimeoutError('Connection to mlflow.uni-x.de timed out. (connect timeout=120)'))",
        rank=0,
    ),
    failing(
        "object-store-token-expired",
        "botocore",
        "exception|settings|no-internet|environment-missing",
        "botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the GetObject operation: The provided token has expired.",
        rank=0,
    ),
    failing(
        "git-in-a-rank-has-no-way-out",
        "git",
        "no-internet",
        "subprocess.CalledProcessError: Command '['git', 'clone', 'https://github.com/x/y']' returned non-zero exit status 128.",
        before="fatal: unable to access 'https://github.com/x/y/': Could not resolve host: github.com\n",
        rank=0,
    ),
    before(
        "image-is-corrupt",
        "github.com/apptainer/apptainer/issues/2121",
        "environment-missing|storage",
        "FATAL:   container creation failed: mount hook function failure: mount /proc/self/fd/3->/var/lib/apptainer/mnt/session/rootfs error: while mounting image /proc/self/fd/3: kernel reported a bad superblock for squashfs image partition, possible causes are that your kernel doesn't support the compression algorithm or the image is corrupted\n",
    ),
    before(
        "virtual-environment-not-there",
        "bash",
        "environment-missing|script-not-visible",
        "/var/spool/slurmd/job04711/slurm_script: line 19: /home/k.meyer/venv/bin/activate: No such file or directory\n",
    ),
    before(
        "micromamba-does-not-know-it",
        "micromamba",
        "environment-missing",
        "error    libmamba The given prefix does not exist: /home/k.meyer/micromamba/envs/train\ncritical libmamba Aborting.\n",
    ),
    before(
        "uv-finds-no-interpreter",
        "uv",
        "environment-missing",
        "error: No interpreter found for Python 3.13 in managed installations or search path\n",
    ),
    before(
        "easybuild-module-conflicts",
        "lmod",
        "environment-missing",
        'Lmod has detected the following error: These module(s) or extension(s) exist but cannot be loaded as requested: "PyTorch/2.5.0"\n   Try: "module spider PyTorch/2.5.0" to see how to load the module(s).\n',
    ),
    before(
        "a-line-of-the-prelude-in-french",
        "bash, fr_FR",
        "environment-missing",
        "/var/spool/slurmd/job04711/slurm_script: ligne 14: module : commande introuvable\n",
    ),
    before(
        "quota-in-the-prelude",
        "bash",
        "disk-full|environment-missing",
        "mkdir: cannot create directory '/home/k.meyer/.cache/run': Disk quota exceeded\n",
    ),
    failing(
        "system-error-and-then-a-link",
        "github.com/pytorch/pytorch/issues/58155",
        "bad-gpu",
        "terminate called after throwing an instance of 'std::system_error'\n  what():  Transport endpoint is not connected\nterminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: uncorrectable NVLink error detected during the execution\nException raised from create_event_internal at /pytorch/c10/cuda/CUDACachingAllocator.cpp:733 (most recent call first):",
        "-",
        rank=4,
        status=134,
        prefix="",
        others=GONE,
    ),
    failing(
        "contained-error-of-a-peer",
        "github.com/marin-community/marin/issues/8934",
        "bad-gpu",
        "torch.AcceleratorError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
        *STEP,
        rank=1,
        others=GONE,
    ),
    failing(
        "hook-of-exceptions-failed-too",
        "github.com/pytorch/pytorch/issues/132068",
        "exception|network-setup",
        'Error in sys.excepthook:\nTraceback (most recent call last):\n  File "/lustre/p7/env/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 1339, in _distributed_excepthook\n    prefix = f"[rank{get_rank()}]"\nValueError: Default process group has not been initialized, please make sure to call init_process_group.\n\nOriginal exception was:\nTraceback (most recent call last):\n  File "/home/k.meyer/proj/train.py", line 88, in main\n    batch[\'mask\']\nKeyError: \'mask\'',
        "-",
        rank=5,
        prefix="",
        forbid="process group",
    ),
]
