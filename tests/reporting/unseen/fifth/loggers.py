"""How programs print what ended them, apart from the words: loggers, wrappers, bystanders."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.third.common import HOME, SITE, STEP, before, failing, stack
from tests.reporting.unseen.words import ADDRESS, aborted, by

GONE = aborted(0)
MAIN = f"{HOME}/train.py:312 <module> | main(parse())"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity of 79.25 GiB of which 1.12 GiB is free."
LOST_STORE = by(
    3,
    stack(MAIN)
    + "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
)
LOST_ID = by(
    3,
    stack(MAIN)
    + "torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer\nException raised from recvBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:678 (most recent call first):",
)
CASES = [
    failing(
        "loguru-with-values",
        "loguru",
        "gpu-out-of-memory",
        "2026-11-22 00:31:05.112 | ERROR    | __main__:<module>:312 - An error has been caught in function '<module>', process 'MainProcess' (4101), thread 'MainThread' (140):\nTraceback (most recent call last):\n\n"
        f'> File "{HOME}/train.py", line 312, in <module>\n    main(parse())\n    │    └ <function parse at 0x7f2a>\n    └ <function main at 0x7f2b>\n\n  File "{HOME}/train.py", line 201, in main\n    loss = step(model, batch)\n           │    │      └ {{\'ids\': tensor([1, 2])}}\n           │    └ FSDP(...)\n           └ <function step at 0x7f2c>\n\n{OOM}',
        "-",
        prefix="",
        others=GONE,
    ),
    failing(
        "every-line-with-a-stamp",
        "logging.Formatter",
        "gpu-out-of-memory",
        OOM,
        *STEP,
        prefix="[2026-11-22 00:31:05,112][train][ERROR][{rank}] - ",
        others=GONE,
    ),
    failing(
        "every-line-with-a-stamp-key-error",
        "logging.Formatter",
        "exception",
        "KeyError: 'No space left on device'",
        *STEP,
        prefix="2026-11-22T00:31:05.112Z ERROR ",
        others=GONE,
        forbid="no space left to write",
    ),
    failing(
        "nested-torchrun-prefix",
        "torchrun --tee",
        "gpu-out-of-memory",
        OOM,
        *STEP,
        prefix="[default{rank}]:",
        others=GONE,
    ),
    failing(
        "nested-torchrun-rank-0-prefix",
        "torchrun",
        "import-error",
        "ModuleNotFoundError: No module named 'einops'",
        f"{HOME}/model.py:4 <module> | import einops",
        prefix="[rank{rank}]: [default1]:",
        everyone=True,
    ),
    failing(
        "rich-locals-with-an-oom",
        "rich.traceback",
        "exception",
        "╭────────────────── Traceback (most recent call last) ───────────────────╮\n│ /home/k.meyer/proj/train.py:201 in main                                │\n│ ❱ 201     loss = step(model, batch)                                     │\n│ ╭─────────────────────────── locals ───────────────────────────╮       │\n│ │ last_error = 'torch.OutOfMemoryError: CUDA out of memory'     │       │\n│ ╰──────────────────────────────────────────────────────────────╯       │\n╰────────────────────────────────────────────────────────────────────────╯\nKeyError: 'labels'",
        "-",
        prefix="",
        others=GONE,
        forbid="GPU memory",
    ),
    failing(
        "ipython-style",
        "IPython.core.ultratb",
        "gpu-out-of-memory",
        f"---------------------------------------------------------------------------\nOutOfMemoryError                          Traceback (most recent call last)\nFile ~/proj/train.py:201, in main()\n    199 for batch in loader:\n--> 201     loss = step(model, batch)\n\n{OOM[6:]}",
        "-",
        prefix="",
        others=GONE,
    ),
    failing(
        "logged-then-exit",
        "logging",
        "disk-full",
        "OSError: [Errno 28] No space left on device",
        *STEP,
        f"{SITE}/torch/serialization.py:1017 save | _save(",
        rank=0,
        prefix="",
        before="ERROR:train:training failed\n",
        after="INFO:train:closing writers\nINFO:train:bye\n",
    ),
    Case(
        name="store-lost-because-rank-0-raised",
        source="c10d",
        nodes=2,
        gpus=4,
        ranks={
            0: Rank(
                err=ADDRESS + stack(MAIN) + "ValueError: seq_len must be a multiple of 128\n",
                status=1,
                after_s=1.0,
            )
        },
        others=Rank(err=LOST_STORE, status=1),
        want=wanted("exception", rank=0, node="node1"),
    ),
    Case(
        name="unique-id-lost-because-rank-0-raised",
        source="c10d",
        nodes=2,
        gpus=4,
        ranks={
            0: Rank(
                err=ADDRESS
                + stack(MAIN)
                + "FileNotFoundError: [Errno 2] No such file or directory: '/lustre/p7/set/index.json'\n",
                status=1,
                after_s=0.08,
            )
        },
        others=Rank(err=LOST_ID, status=1),
        want=wanted("data-missing", rank=0, node="node1"),
    ),
    Case(
        name="communicator-aborted-elsewhere",
        source="ProcessGroupNCCL.cpp",
        nodes=2,
        gpus=4,
        ranks={
            6: Rank(
                err=by(
                    6,
                    stack(*STEP)
                    + "RuntimeError: The size of tensor a (4096) must match the size of tensor b (4095) at non-singleton dimension 1",
                ),
                status=1,
                after_s=1.0,
            )
        },
        others=Rank(
            err=by(
                1,
                stack(*STEP)
                + "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.  Original reason for failure was: NCCL error: remote process exited or there was a network error, NCCL version 2.27.3",
            ),
            status=1,
        ),
        want=wanted("exception", rank=6, node="node2"),
    ),
    failing(
        "exit-with-a-sentence",
        "sys.exit",
        "exception|data-missing",
        "data root /lustre/p7/set is empty",
        "-",
        everyone=True,
        prefix="",
    ),
    Case(
        name="killed-and-nobody-says-why",
        source="signal(7)",
        nodes=2,
        gpus=4,
        ranks={5: Rank(err=ADDRESS, status=137)},
        others=GONE,
        want=wanted("unknown", "host-out-of-memory", rank=5, node="node2"),
    ),
    before(
        "wrong-architecture-of-python",
        "bash(1)",
        "environment-missing",
        "/var/spool/slurmd/job4711/slurm_script: line 31: /scratch/ada/x86/bin/python3: cannot execute binary file: Exec format error\n",
    ),
    before(
        "env-finds-no-python",
        "env(1)",
        "environment-missing",
        "/usr/bin/env: 'python3.12': No such file or directory\n",
    ),
    before(
        "numactl-finds-no-python",
        "numactl(8)",
        "environment-missing",
        "numactl: execution of `python3.12': No such file or directory\n",
    ),
    before(
        "spack-without-the-package",
        "spack",
        "environment-missing",
        "==> Error: Spec 'py-torch@2.13+cuda' matches no installed packages.\n",
    ),
    before(
        "uv-run-offline",
        "uv",
        "no-internet",
        "error: Failed to fetch: `https://pypi.org/simple/einops/`\n  Caused by: Request failed after 3 retries\n  Caused by: error sending request for url (https://pypi.org/simple/einops/)\n  Caused by: client error (Connect)\n  Caused by: dns error: failed to lookup address information: Temporary failure in name resolution\n",
    ),
    before(
        "git-clone-in-the-job",
        "git(1)",
        "no-internet",
        "Cloning into 'Megatron-LM'...\nfatal: unable to access 'https://github.com/NVIDIA/Megatron-LM/': Failed to connect to github.com port 443 after 130012 ms: Couldn't connect to server\n",
    ),
    before(
        "set-u-and-a-variable",
        "bash(1)",
        "environment-missing|settings|exception",
        "/var/spool/slurmd/job4711/slurm_script: line 14: SCRATCH_DIR: unbound variable\n",
    ),
    before(
        "module-conflict",
        "Lmod",
        "environment-missing",
        'Lmod has detected the following error:  Cannot load module "cuda/13.0" because these module(s) are loaded:\n   cuda/12.4\n\nWhile processing the following module(s):\n    Module fullname  Module Filename\n    ---------------  ---------------\n    cuda/13.0        /apps/modulefiles/cuda/13.0.lua\n\n',
    ),
    before(
        "home-quota-for-conda-lock",
        "conda",
        "disk-full",
        "\n# >>>>>>>>>>>>>>>>>>>>>> ERROR REPORT <<<<<<<<<<<<<<<<<<<<<<\n\n    OSError: [Errno 122] Disk quota exceeded: '/home/ada/.conda/environments.txt'\n\n`$ /apps/conda/bin/conda shell.bash activate fsdp`\n\nAn unexpected error has occurred. Conda has prepared the above report.\n",
    ),
]
