"""What people have asked about in the issue trackers of these programs, in logs made anew.

Written after the rules that mend the tickets, from threads found by asking for any failure.
"""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.sixth.tickets import GONE, MAIN
from tests.reporting.unseen.third.common import HOME, SITE, STEP, before, failing, stack
from tests.reporting.unseen.words import ADDRESS, FUTURE, PROGRESS, QUIET, by, watchdog

RAY_DEAD = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: Trainer\n\tactor_id: 9f3c\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors."
NESTED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n============================================================\nmain.py FAILED\n------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-22_00:30:51\n  host      : node2\n  rank      : 0 (local_rank: 0)\n  exitcode  : -{number} (pid: 4188)\n  error_file: <N/A>\n  traceback : Signal {number} ({name}) received by PID 4188\n============================================================"
RUN = f"{SITE}/torch/distributed/run.py:918 main | run(args)"


def _pyxis(*lines: str) -> str:
    return "".join(f"slurmstepd: error: pyxis: {line}\n" for line in lines)


SPANK = "slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\nslurmstepd: error: Failed to invoke spank plugin stack\nsrun: error: node1: task 0: Exited with exit code 1\n"

CONTAINERS = [
    before(
        "enroot-has-no-runtime-directory",
        "pyxis",
        "environment-missing",
        _pyxis(
            "child 12004 failed with error code: 1",
            "failed to import docker image",
            "printing enroot log file:",
            "    mkdir: cannot create directory '/run/enroot': Permission denied",
        )
        + SPANK,
    ),
    before(
        "enroot-may-make-no-namespace",
        "pyxis",
        "environment-missing",
        _pyxis(
            "container start failed with error code: 1",
            "printing enroot log file:",
            "    enroot-nsenter: failed to create user namespace: Permission denied",
            "couldn't start container",
        )
        + SPANK,
    ),
    before(
        "plugin-stack-does-not-initialise",
        "srun",
        "refused|environment-missing|node-failure",
        "srun: error: task 0 launch failed: Plugin initialization failed\nsrun: error: Application launch failed: Plugin initialization failed\n",
    ),
    before(
        "apptainer-build-fills-tmp",
        "apptainer",
        "disk-full",
        "FATAL:   While performing build: conveyor failed to get: error writing layer: write /tmp/bundle-temp-31/layer: no space left on device\n",
    ),
    before(
        "registry-wants-a-pause",
        "apptainer",
        "environment-missing|no-internet|exception",
        "FATAL:   Unable to handle docker://pytorch/pytorch:latest uri: while building SIF from layers: toomanyrequests: You have reached your pull rate limit\n",
    ),
    before(
        "conda-channel-out-of-reach",
        "conda",
        "no-internet",
        "CondaHTTPError: HTTP 000 CONNECTION FAILED for url <https://conda.anaconda.org/conda-forge/linux-64/current_repodata.json>\nElapsed: -\n",
    ),
    before(
        "git-doubts-the-owner",
        "git",
        "environment-missing|settings|exception",
        "fatal: detected dubious ownership in repository at '/home/k.meyer/proj'\nTo add an exception for this directory, call:\n\n\tgit config --global --add safe.directory /home/k.meyer/proj\n",
    ),
    before(
        "binding-outside-of-the-step",
        "srun",
        "settings|refused",
        "srun: error: CPU binding outside of job step allocation, allocated CPUs are: 0x00000000FFFF.\nsrun: error: Task launch for StepId=4711.0 failed on node node1: Unable to satisfy cpu bind request\nsrun: error: Application launch failed: Unable to satisfy cpu bind request\n",
    ),
    before(
        "shell-misses-a-library",
        "ld.so",
        "import-error|environment-missing",
        "/opt/tools/bin/stage: error while loading shared libraries: libtinfo.so.6: cannot open shared object file: No such file or directory\n",
    ),
]

RANKS = [
    failing(
        "cuda-is-wanted-and-not-there",
        "cellbender",
        "bad-gpu|exception|environment-missing|settings",
        "AssertionError: Trying to use CUDA, but CUDA is not available.",
        MAIN,
        everyone=True,
        prefix="",
    ),
    failing(
        "container-without-the-drivers-library",
        "ld.so",
        "import-error|environment-missing|bad-gpu",
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
        f"{HOME}/train.py:5 <module> | import pycuda.driver as cuda",
        everyone=True,
        prefix="",
        forbid="do not fit together",
    ),
    failing(
        "actor-died-and-nobody-knows-why",
        "ray",
        "exception|unknown|connection-reset",
        RAY_DEAD,
        *STEP,
        f"{SITE}/ray/_private/worker.py:2755 get | raise value",
        rank=1,
        prefix="",
        forbid="out of host memory|out of memory:",
    ),
    failing(
        "actor-died-on-a-full-node",
        "ray",
        "host-out-of-memory|exception|unknown",
        RAY_DEAD,
        *STEP,
        f"{SITE}/ray/_private/worker.py:2755 get | raise value",
        rank=1,
        prefix="",
        memory_share={0: 0.99},
    ),
    failing(
        "scheduler-of-dask-without-a-route",
        "distributed",
        "head-address|network-setup|connection-reset|rendezvous-timeout",
        "OSError: Timed out trying to connect to tcp://10.20.33.12:8786 after 30 s",
        *STEP,
        f"{SITE}/distributed/comm/core.py:368 connect | raise OSError(",
        rank=4,
        prefix="",
        before=stack(
            f"{SITE}/distributed/comm/tcp.py:503 connect | convert_stream_closed_error(self, e)"
        )
        + "OSError: [Errno 113] No route to host\n\nThe above exception was the direct cause of the following exception:\n\n",
    ),
    failing(
        "source-of-a-kernel-was-removed",
        "torch inductor",
        "exception",
        "torch._inductor.exc.InductorError: SubprocException: An exception occurred in a subprocess:\n\nOSError: source code not available",
        *STEP,
        rank=3,
    ),
    failing(
        "cublas-does-not-support-that",
        "cublas",
        "exception|version-mismatch",
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmStridedBatchedEx(handle, opa, opb, (int)m, (int)n, (int)k, (void*)&falpha, a, CUDA_R_16BF, (int)lda)`",
        *STEP,
        everyone=True,
        forbid="out of (GPU|host) memory|broken",
    ),
    failing(
        "operator-with-memory-in-its-name",
        "xformers",
        "exception|version-mismatch|settings",
        "NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:\n     query       : shape=(1, 4096, 8, 40) (torch.float16)\n`flshattF` is not supported because:\n    device=cpu (supported: {'cuda'})",
        *STEP,
        everyone=True,
        forbid="out of (GPU|host) memory",
    ),
    failing(
        "extension-for-a-newer-card",
        "nvcc",
        "version-mismatch|environment-missing|exception",
        "RuntimeError: Error building extension 'cpu_adam': [1/4] nvcc -c custom.cu\nnvcc fatal   : Unsupported gpu architecture 'compute_90a'\nninja: build stopped: subcommand failed.",
        MAIN,
        everyone=True,
    ),
    failing(
        "attention-toggled-on-and-not-installed",
        "transformers",
        "import-error|settings|exception|environment-missing",
        "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package flash_attn seems to be not installed.",
        MAIN,
        everyone=True,
        prefix="",
    ),
    failing(
        "sets-generation-over-a-stale-handle",
        "datasets",
        "storage",
        "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
        MAIN,
        rank=0,
        prefix="",
        before=stack(
            f"{SITE}/datasets/builder.py:1869 _prepare_split_single | writer.write_table(table)"
        )
        + "OSError: [Errno 116] Stale file handle\n\nThe above exception was the direct cause of the following exception:\n\n",
    ),
    failing(
        "system-wide-limit-of-files",
        "strerror(3)",
        "exception|settings|storage",
        "OSError: [Errno 23] Too many open files in system: '/lustre/p7/set/a.bin'",
        *STEP,
        rank=2,
    ),
    failing(
        "links-in-a-circle",
        "strerror(3)",
        "exception|data-missing|storage|settings",
        "OSError: [Errno 40] Too many levels of symbolic links: '/scratch/ada/set'",
        *STEP,
        rank=2,
    ),
    failing(
        "no-display",
        "tkinter",
        "exception|settings|environment-missing",
        "_tkinter.TclError: no display name and no $DISPLAY environment variable",
        *STEP,
        rank=0,
        prefix="",
    ),
    failing(
        "names-twice-in-a-shard",
        "webdataset",
        "exception",
        "ValueError: fx001.jpg: duplicate file name in tar file jpg dict_keys(['__key__', 'jpg', 'json']), in /lustre/p7/set/0912.tar",
        *STEP,
        rank=6,
        others=GONE,
    ),
    failing(
        "hip-pointer-of-another-device",
        "rccl",
        "exception|bad-gpu",
        "torch.AcceleratorError: HIP error: invalid device pointer",
        *STEP,
        rank=1,
        forbid="built for",
    ),
    failing(
        "nested-launcher-lost-a-rank-to-a-signal",
        "torchrun",
        "exception",
        NESTED.format(number=11, name="SIGSEGV"),
        RUN,
        rank=4,
        prefix="",
    ),
    Case(
        name="nested-launcher-lost-a-rank-on-a-full-node",
        source="torchrun",
        nodes=2,
        gpus=1,
        ranks={1: Rank(err=stack(RUN) + NESTED.format(number=9, name="SIGKILL") + "\n", status=1)},
        memory_share={1: 0.985},
        want=wanted("host-out-of-memory", rank="any", node="node2"),
    ),
    Case(
        name="nested-launcher-lost-a-rank-on-an-empty-node",
        source="torchrun",
        nodes=2,
        gpus=1,
        ranks={1: Rank(err=stack(RUN) + NESTED.format(number=9, name="SIGKILL") + "\n", status=1)},
        want=wanted("unknown", "exception", rank="any", node="any", forbid="out of .*memory"),
    ),
    Case(
        name="dump-signal-from-the-rank-that-waited",
        source="ProcessGroupNCCL.cpp",
        nodes=2,
        gpus=4,
        ranks={
            5: Rank(err=watchdog(5, op="ALLTOALL_BASE"), status=134),
            0: Rank(
                err=ADDRESS
                + "[rank0]:[E804 23:05:54.816499929 ProcessGroupNCCL.cpp:1849] [PG ID 0 PG GUID 0(default_pg) Rank 0] Observed flight recorder dump signal from another rank via TCPStore.\n[rank0]:[E804 23:05:54.817424543 ProcessGroupNCCL.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank 0] Received a dump signal due to a collective timeout from  rank 5 and we will try our best to dump the debug info. Last enqueued NCCL work: 1261, last completed NCCL work: 1259.\n",
                status=134,
                after_s=0.4,
            ),
        },
        others=QUIET,
        want=wanted("hang", "collective-mismatch", rank="any", node="any"),
    ),
    Case(
        name="tmpdir-not-made-and-a-key-missing",
        source="slurmstepd",
        nodes=2,
        gpus=2,
        ranks={3: Rank(err=by(3, stack(*STEP) + "KeyError: 'mask'\n"), status=1)},
        others=Rank(err=FUTURE + PROGRESS),
        batch="slurmstepd: error: Unable to create TMPDIR [/localscratch/4711]: No space left on device\nslurmstepd: error: Setting TMPDIR to /tmp\n",
        want=wanted("exception", rank=3, node="node2", forbid="space"),
    ),
]

CASES = [*CONTAINERS, *RANKS]
