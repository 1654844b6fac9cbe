"""Kin of what the blind run missed or told badly: written before the rules that mend those."""

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
    TRAIN,
    seen,
)
from tests.reporting.unseen.third.common import before, stack
from tests.reporting.unseen.third.slurm import state
from tests.reporting.unseen.words import ADDRESS, DEVICE_SIDE, STEPS, by, watchdog

RELEASES = [
    seen(
        "optional-package-is-older-than-needed",
        "pandas compat/_optional.py",
        "version-mismatch",
        "ImportError: Pandas requires version '3.1.2' or newer of 'jinja2' (version '3.0.3' currently installed).",
        MAIN,
        f"{ENV}/pandas/compat/_optional.py:174 import_optional_dependency | raise ImportError(msg)",
        everyone=True,
        prefix="",
    ),
    seen(
        "release-is-said-to-be-too-old",
        "made",
        "version-mismatch",
        "RuntimeError: Your version of flash-attn is too old for this model; install 2.7.1 or newer.",
        *HF_TRAIN,
        everyone=True,
    ),
    seen(
        "card-is-older-than-the-number-type",
        "vllm config.py",
        "version-mismatch|bad-gpu|settings",
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla V100-SXM2-32GB GPU has compute capability 7.0. You can use float16 instead by explicitly setting the `dtype` flag in CLI, for example: --dtype=half.",
        MAIN,
        everyone=True,
    ),
    seen(
        "an-old-record-of-the-data-is-no-release",
        "made",
        "exception",
        "ValueError: the version of record 17 is out of order: 3 after 4",
        *LOADER,
        rank=2,
    ),
]

NODES = [
    before(
        "launcher-may-not-be-run-on-the-third-node",
        "execve(2)",
        "environment-missing",
        "slurmstepd: error: execve(): /opt/venv/bin/torchrun: Permission denied\nsrun: error: node3: task 2: Exited with exit code 13\nsrun: Terminating StepId=4711.0\nslurmstepd: error: *** STEP 4711.0 ON node1 CANCELLED AT 2026-11-22T00:31:00 ***\nsrun: error: node1: task 0: Terminated\nsrun: error: node2: task 1: Terminated\n",
        node="node3",
        nodes=3,
    ),
    before(
        "python-lacks-its-library-on-one-node",
        "ld.so",
        "import-error|environment-missing",
        "/opt/venv/bin/python: error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file: No such file or directory\nsrun: error: node2: task 1: Exited with exit code 127\n",
        node="node2",
    ),
    before(
        "python-lacks-its-library-on-every-node",
        "ld.so",
        "import-error|environment-missing",
        "/opt/venv/bin/python: error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file: No such file or directory\nsrun: error: node2: task 1: Exited with exit code 127\nsrun: error: node1: task 0: Exited with exit code 127\n",
        node=None,
    ),
]

ARGUMENTS = [
    seen(
        "flag-that-absl-does-not-know",
        "absl flags",
        "settings",
        "FATAL Flags parsing error:\n  Unknown command line flag 'leraning_rate'. Did you mean: learning_rate ?\nPass --helpshort or --helpfull to see help on flags.",
        "-",
        everyone=True,
        prefix="",
    ),
    seen(
        "option-in-a-box",
        "typer",
        "settings",
        "Usage: train.py [OPTIONS]\nTry 'train.py --help' for help.\n╭─ Error ──────────────────────────────────────────────────────╮\n│ No such option: --stpes (Possible options: --steps, --stop)  │\n╰──────────────────────────────────────────────────────────────╯",
        "-",
        status=2,
        everyone=True,
        prefix="",
    ),
    seen(
        "argument-that-fire-cannot-consume",
        "fire",
        "settings",
        "ERROR: Could not consume arg: --lrr=3e-4\nUsage: train.py -\n\nFor detailed information on this command, run:\n  train.py - --help",
        "-",
        status=2,
        everyone=True,
        prefix="",
    ),
    seen(
        "value-that-a-box-calls-invalid",
        "tyro",
        "settings",
        "╭─ Parsing error ──────────────────────────────────────────────╮\n│ Error parsing --training.steps: invalid literal for int() with base 10: 'ten' │\n│ ──────────────────────────────────────────────────────────── │\n│ For full helptext, run train.py --help                        │\n╰──────────────────────────────────────────────────────────────╯",
        "-",
        status=2,
        everyone=True,
        prefix="",
    ),
    Case(
        name="a-box-of-results-is-no-refusal",
        source="rich",
        nodes=2,
        gpus=2,
        ranks={
            0: Rank(
                err="╭─ Evaluation ───────────╮\n│ accuracy  0.71         │\n│ required  0.70         │\n╰────────────────────────╯\n",
                status=1,
            )
        },
        others=Rank(err=ADDRESS),
        want=wanted("unknown", "exception", rank="any", node="any"),
    ),
]

GLOO = [
    Case(
        name="mesh-fails-because-a-rank-raised-before",
        source="gloo",
        nodes=2,
        gpus=4,
        ranks={
            **{
                rank: Rank(
                    err=ADDRESS
                    + by(
                        rank,
                        stack(MAIN)
                        + "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] no error\n",
                    ),
                    status=1,
                    after_s=0.4,
                )
                for rank in range(8)
                if rank != 6
            },
            6: Rank(err=ADDRESS + by(6, stack(MAIN) + "KeyError: 'SLURM_LOCALID'\n"), status=1),
        },
        want=wanted("exception", rank=6, node="node2"),
    ),
    seen(
        "mesh-times-out-between-two-nodes",
        "gloo tcp/socket",
        "network-setup|rendezvous-timeout|connection-reset|head-address",
        "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:154] timed out connecting: SO_ERROR: Connection timed out, remote=[10.99.7.2]:33021",
        MAIN,
        everyone=True,
    ),
]

CACHES = [
    seen(
        "launcher-of-a-kernel-vanished-from-the-cache",
        "triton runtime/cache.py",
        "exception|storage",
        "torch._inductor.exc.InductorError: FileNotFoundError: [Errno 2] No such file or directory: '/users/PAS1234/rlee/.triton/cache/KX2QG7/__triton_launcher.cpython-311-x86_64-linux-gnu.so.tmp.pid_4107'",
        *TRAIN,
        rank=6,
    ),
    seen(
        "a-wrapper-names-data-that-is-missing",
        "made",
        "data-missing",
        "RuntimeError: cannot read the index: FileNotFoundError: [Errno 2] No such file or directory: '/fs/scratch/PAS1234/c4/index.json'",
        *LOADER,
        rank=6,
    ),
    seen(
        "kernel-wants-too-much-shared-memory",
        "triton runtime/errors.py",
        "exception|settings|version-mismatch",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 180224, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
        *TRAIN,
        everyone=True,
    ),
    seen(
        "kernel-wants-too-many-registers",
        "cudart",
        "exception|settings|version-mismatch",
        "torch.AcceleratorError: CUDA error: too many resources requested for launch\n"
        + DEVICE_SIDE,
        *TRAIN,
        everyone=True,
        forbid="GPU memory",
    ),
]

CARDS = [
    seen(
        "management-library-loses-the-card",
        "nvml",
        "bad-gpu",
        "torch.AcceleratorError: CUDA error: unspecified launch failure\n" + DEVICE_SIDE,
        *TRAIN,
        rank=3,
        shape="4x4",
        peers="aborted",
        node_logs={0: "Failed to initialize NVML: GPU is lost\n"},
    ),
    seen(
        "reboot-is-needed-for-the-card",
        "nvidia-smi",
        "bad-gpu",
        "torch.AcceleratorError: CUDA error: unspecified launch failure\n" + DEVICE_SIDE,
        *TRAIN,
        rank=6,
        peers="aborted",
        node_logs={
            1: "Unable to determine the device handle for GPU 0000:41:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
        },
    ),
]

WRAPPERS = [
    before(
        "wrapper-was-timed-out-too-often",
        "submitit",
        "time-limit",
        "submitit WARNING (2026-11-22 00:30:58,453) - Caught signal SIGUSR2 on node1: this job is timed-out.\nsubmitit INFO (2026-11-22 00:30:58,455) - Calling checkpoint method.\nsubmitit INFO (2026-11-22 00:30:58,460) - Job not requeued because: timed-out too many times.\n",
    ),
    state(
        "wrapper-takes-a-cancellation-for-preemption",
        "CANCELLED by 1000|0:15",
        "cancelled",
        others=Rank(
            err=BARS
            + "submitit WARNING (2026-11-22 00:31:00,453) - Caught signal SIGTERM on node1: this job is preempted.\n"
        ),
        batch="slurmstepd: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-22T00:31:00 ***\n",
    ),
]

CHILDREN = [
    seen(
        "spawned-process-was-killed-on-a-full-node",
        "torch/multiprocessing/spawn.py",
        "host-out-of-memory",
        "torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGKILL",
        MAIN,
        f"{ENV}/torch/multiprocessing/spawn.py:184 join | raise ProcessExitedException(",
        rank=1,
        shape="2x1",
        prefix="",
        memory_share={1: 0.97},
    ),
    seen(
        "spawned-process-was-killed-on-an-idle-node",
        "torch/multiprocessing/spawn.py",
        "unknown|exception",
        "torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGKILL",
        MAIN,
        f"{ENV}/torch/multiprocessing/spawn.py:184 join | raise ProcessExitedException(",
        rank=1,
        shape="2x1",
        prefix="",
        memory_share={1: 0.2},
    ),
    seen(
        "spawned-process-crashed-on-a-full-node",
        "torch/multiprocessing/spawn.py",
        "exception",
        "torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGSEGV",
        MAIN,
        f"{ENV}/torch/multiprocessing/spawn.py:184 join | raise ProcessExitedException(",
        rank=1,
        shape="2x1",
        prefix="",
        memory_share={1: 0.97},
    ),
    seen(
        "threads-of-openmp-cannot-be-made",
        "libgomp",
        "settings|exception|host-out-of-memory",
        "\nlibgomp: Thread creation failed: Resource temporarily unavailable",
        "-",
        rank=4,
        prefix="",
        forbid="no exception",
    ),
]

NAMES = [
    seen(
        "own-file-is-called-datasets",
        "python import system",
        "import-error|exception",
        f"ImportError: cannot import name 'Dataset' from partially initialized module 'datasets' (most likely due to a circular import) ({CODE}/datasets.py)",
        f"{CODE}/pretrain.py:6 <module> | from datasets import Dataset",
        f"{CODE}/datasets.py:2 <module> | from datasets import Dataset",
        everyone=True,
        prefix="",
        forbid="Install it into",
    ),
    seen(
        "python-advises-to-rename-a-file",
        "python 3.13",
        "import-error|exception",
        f"AttributeError: module 'random' has no attribute 'randint' (consider renaming '{CODE}/random.py' since it has the same name as the standard library module named 'random' and prevents importing that standard library module)",
        f"{CODE}/pretrain.py:44 <module> | seed = random.randint(0, 2**31)",
        everyone=True,
        prefix="",
        forbid="Read the traceback",
    ),
    seen(
        "message-begins-with-an-empty-line",
        "bitsandbytes",
        "version-mismatch|environment-missing|import-error|exception",
        "RuntimeError: \n\n        No kernel library fits this system. Looked in /usr/local/cuda/lib64.\n",
        f"{CODE}/sft.py:12 <module> | import quantlib",
        everyone=True,
        prefix="",
        forbid=r"RuntimeError \(at",
    ),
]


def _silent(name: str, printed: str, causes: str, forbid: str = "") -> Case:
    """All ranks but 3 gave up waiting; rank 3 printed this and did not end."""
    best, *also = causes.split("|")
    return Case(
        name=name,
        source="made",
        nodes=2,
        gpus=4,
        ranks={
            **{
                rank: Rank(err=watchdog(rank, before=BARS), status=134, after_s=0.01 * rank)
                for rank in range(8)
                if rank != 3
            },
            3: Rank(err=BARS + printed),
        },
        want=wanted(best, *also, rank=3, node="node1", forbid=forbid),
    )


WAITING = [
    _silent(
        "thread-had-no-memory-left-and-the-others-waited",
        "Exception in thread Thread-3 (pin):\n"
        + stack(
            "/usr/lib/python3.11/threading.py:1045 _bootstrap_inner | self.run()",
            f"{CODE}/data.py:90 pin | return torch.empty(n, pin_memory=True)",
        )
        + "MemoryError\n",
        "host-out-of-memory|hang",
        forbid="printed nothing",
    ),
    _silent(
        "retried-once-and-hung-later",
        "Exception in thread fetch:\n"
        + stack(f"{CODE}/data.py:112 run | raise TimeoutError('slow')")
        + "TimeoutError: slow\nretrying\n"
        + STEPS,
        "hang",
    ),
]

REMOTE = [
    seen(
        "download-by-parts-gave-up",
        "fsspec, made",
        "no-internet",
        "FileNotFoundError: https://huggingface.co/datasets/allenai/c4/resolve/main/en/c4-train.00017-of-01024.json.gz",
        *LOADER,
        f"{ENV}/fsspec/implementations/http.py:861 _file_info | raise FileNotFoundError(url) from exc",
        rank=2,
        before="WARNING HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)\nWARNING retrying (5 of 5)\n",
    ),
    seen(
        "object-is-not-in-the-bucket",
        "s3fs",
        "data-missing",
        "FileNotFoundError: s3://osu-corpora/c4/shard-00017.tar",
        *LOADER,
        rank=2,
    ),
]

PEERS = [
    seen(
        "models-of-two-sizes-under-ddp",
        "torch reducer.cpp",
        "collective-mismatch",
        "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 30 params, while rank 0 has inconsistent 28 params.",
        MAIN,
        f"{CODE}/pretrain.py:330 main | model = DDP(model)",
        everyone=True,
    ),
    seen(
        "parameters-of-two-shapes-under-ddp",
        "torch reducer.cpp",
        "collective-mismatch",
        "RuntimeError: [5]: params[0] in this process with sizes [32064, 4096] appears not to match sizes of the same param in process 0.",
        MAIN,
        f"{CODE}/pretrain.py:330 main | model = DDP(model)",
        everyone=True,
    ),
    seen(
        "a-split-that-is-not-the-same-everywhere-in-the-data",
        "made",
        "exception",
        "ValueError: order of the columns differs across files: a.csv and b.csv",
        *LOADER,
        rank=5,
    ),
]

ASSERTED = "torch.AcceleratorError: CUDA error: device-side assert triggered\n" + DEVICE_SIDE
ASSERTS = [
    seen(
        "label-beyond-the-classes",
        "aten Loss.cu",
        "exception",
        ASSERTED,
        *TRAIN,
        rank=5,
        before="".join(
            f"/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [{t},0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
            for t in (4, 5, 9)
        ),
        forbid="Read the traceback",
    ),
    seen(
        "sampling-from-no-numbers",
        "aten TensorCompare.cu",
        "nan-loss",
        ASSERTED,
        *TRAIN,
        rank=2,
        before=BARS
        + "/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.\n",
    ),
    seen(
        "assertion-of-which-nothing-was-kept",
        "made",
        "exception",
        ASSERTED,
        *TRAIN,
        rank=2,
        before="step 12: grad norm nan, skipping step\n" + BARS,
    ),
]

CONFIGS = [
    seen(
        "value-that-must-be-given",
        "omegaconf",
        "settings",
        "omegaconf.errors.MissingMandatoryValue: Missing mandatory value: data.path\n    full_key: data.path\n    object_type=dict",
        MAIN,
        f"{CODE}/data.py:12 build | files = glob(cfg.data.path)",
        f"{ENV}/omegaconf/dictconfig.py:375 __getattr__ | self._format_and_raise(",
        everyone=True,
    ),
    seen(
        "primary-config-is-not-found",
        "hydra",
        "settings",
        "hydra.errors.MissingConfigException: Cannot find primary config 'trian'. Check that it's in your config search path.\n\nConfig search path:\n\tprovider=hydra, path=pkg://hydra.conf\n\tprovider=main, path=file:///users/PAS1234/rlee/llm/conf",
        f"{ENV}/hydra/_internal/utils.py:223 run_and_report | return func()",
        f"{ENV}/hydra/_internal/config_loader_impl.py:103 ensure_main_config_source_available | raise MissingConfigException(",
        everyone=True,
        prefix="",
    ),
    seen(
        "dataclass-parser-has-words-left",
        "transformers hf_argparser.py",
        "settings",
        "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--fsdp_wrap', 'LlamaDecoderLayer']",
        f"{CODE}/sft.py:31 <module> | args, = parser.parse_args_into_dataclasses()",
        f"{ENV}/transformers/hf_argparser.py:353 parse_args_into_dataclasses | raise ValueError(",
        everyone=True,
        prefix="",
    ),
    seen(
        "config-was-read-but-the-data-lacks-a-key",
        "made",
        "exception",
        "KeyError: 'text'",
        f"{ENV}/hydra/main.py:94 decorated_main | _run_hydra(",
        f"{CODE}/data.py:40 __getitem__ | return row['text']",
        rank=1,
    ),
]

HEADER = f"{ENV}/safetensors/torch.py:313 load_file | with safe_open(filename, framework='pt', device=device) as f:"
BUILD = (
    f"{ENV}/torch/utils/cpp_extension.py:2506 _run_ninja_build | raise RuntimeError(message) from e"
)
OF_THE_SECOND = [
    seen(
        "tensors-cannot-be-read-from-this-disk",
        "safetensors",
        "storage",
        'safetensors_rust.SafetensorError: Error while deserializing header: IoError(Os { code: 5, kind: Uncategorized, message: "Input/output error" })',
        MAIN,
        HEADER,
        rank=3,
    ),
    seen(
        "tensors-are-cut",
        "safetensors",
        "checkpoint-unreadable",
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
        MAIN,
        HEADER,
        rank=3,
    ),
    seen(
        "nothing-matches-in-the-folder",
        "made",
        "data-missing",
        "RuntimeError: No files found in /fs/scratch/PAS1234/c4 matching *.arrow",
        MAIN,
        everyone=True,
    ),
    seen(
        "no-file-was-changed",
        "made",
        "exception",
        "AssertionError: the step changed no file",
        *TRAIN,
        rank=1,
    ),
    seen(
        "process-of-a-pool-was-gone-on-a-full-node",
        "concurrent.futures",
        "host-out-of-memory",
        "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly while the future was running or pending.",
        *LOADER,
        rank=6,
        memory_share={1: 0.98},
    ),
    seen(
        "process-of-a-map-died-on-a-full-node",
        "datasets utils/py_utils.py",
        "host-out-of-memory",
        "RuntimeError: One of the subprocesses has abruptly died during map operation.To debug the error, disable multiprocessing.",
        f"{CODE}/sft.py:60 <module> | data = data.map(tokenize, num_proc=32)",
        rank=0,
        prefix="",
        memory_share={0: 0.97},
    ),
    seen(
        "process-of-a-pool-was-gone-while-another-node-was-full",
        "concurrent.futures",
        "exception|unknown",
        "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly while the future was running or pending.",
        *LOADER,
        rank=6,
        memory_share={0: 0.98, 1: 0.3},
    ),
    seen(
        "operator-of-audio-is-not-there",
        "torchaudio",
        "version-mismatch",
        "RuntimeError: No such operator torchaudio::forced_align",
        f"{CODE}/pretrain.py:9 <module> | import torchaudio",
        everyone=True,
        prefix="",
    ),
    seen(
        "compiler-is-too-new-for-cuda",
        "nvcc",
        "version-mismatch|environment-missing",
        "RuntimeError: Error building extension 'fused_adam'",
        MAIN,
        BUILD,
        everyone=True,
        prefix="",
        before="/usr/local/cuda/include/crt/host_config.h:139:2: error: #error -- unsupported GNU version! gcc versions later than 12 are not supported! The nvcc flag '-allow-unsupported-compiler' can be used to override this version check;\nninja: build stopped: subcommand failed.\n",
    ),
    seen(
        "header-of-cuda-is-not-there",
        "nvcc",
        "environment-missing",
        "RuntimeError: Error building extension 'fused_adam'",
        MAIN,
        BUILD,
        everyone=True,
        prefix="",
        before="/users/PAS1234/rlee/.conda/envs/llm/include/ATen/cuda/CUDAContextLight.h:7:10: fatal error: cusparse.h: No such file or directory\n    7 | #include <cusparse.h>\ncompilation terminated.\nninja: build stopped: subcommand failed.\n",
    ),
    Case(
        name="python-is-not-found-in-german",
        source="bash, de",
        nodes=2,
        gpus=1,
        ranks={1: Rank(err="./train.sh: Zeile 4: python3: Befehl nicht gefunden.\n", status=127)},
        others=Rank(err=""),
        want=wanted("environment-missing", rank=1, node="node2"),
    ),
    Case(
        name="library-of-the-interpreter-is-not-found",
        source="ld.so",
        nodes=2,
        gpus=1,
        ranks={
            1: Rank(
                err="python3: error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file: No such file or directory\n",
                status=127,
            )
        },
        others=Rank(err=""),
        want=wanted("import-error", "environment-missing", rank=1, node="node2"),
    ),
    seen(
        "worker-refers-to-a-traceback-above",
        "made",
        "disk-full",
        "RuntimeError: worker 3 failed, see the traceback above",
        MAIN,
        f"{CODE}/pool.py:20 join | raise RuntimeError(MESSAGE)",
        rank=2,
        prefix="",
        before='[worker 3] Traceback (most recent call last):\n[worker 3]   File "/users/PAS1234/rlee/llm/pool.py", line 9, in work\n[worker 3] OSError: [Errno 28] No space left on device\n',
    ),
    seen(
        "target-of-the-config-filled-the-host",
        "hydra",
        "host-out-of-memory",
        "hydra.errors.InstantiationException: Error in call to target 'data.Tokens':\nMemoryError()\nfull_key: data",
        MAIN,
        f"{ENV}/hydra/_internal/instantiate/_instantiate2.py:95 _call_target | raise InstantiationException(msg) from e",
        rank=3,
        prefix="",
    ),
    seen(
        "multiprocessor-older-than-eight",
        "made, as libraries say it",
        "version-mismatch|bad-gpu|settings",
        "RuntimeError: FP8 GEMM requires compute capability >= 8.9, found 8.0",
        *TRAIN,
        CALL,
        everyone=True,
    ),
]

TRAPS = [
    seen(
        "management-library-was-not-there-and-a-key-is-missing",
        "nvml, docker",
        "exception",
        "KeyError: 'labels'",
        *TRAIN,
        rank=5,
        peers="aborted",
        batch="Failed to initialize NVML: Unknown Error\n",
        forbid="GPU",
    ),
    _silent(
        "writer-of-events-lost-its-pipe-long-ago",
        "Exception in thread EventWriter:\n"
        + stack(f"{ENV}/tensorboard/summary/writer/event_file_writer.py:233 run | self._run()")
        + "BrokenPipeError: [Errno 32] Broken pipe\n",
        "hang",
    ),
    _silent(
        "thread-of-the-tracker-broke",
        "Exception in thread NetStatThr:\n"
        + stack(f"{ENV}/wandb/sdk/wandb_run.py:268 check_network_status | self._loop_check_status(")
        + "wandb.sdk.mailbox.mailbox.MailboxClosedError\n",
        "hang",
    ),
    Case(
        name="program-chose-the-status-of-a-shell",
        source="made",
        nodes=2,
        gpus=2,
        ranks={2: Rank(err="all shards: read\n", status=127)},
        others=Rank(err=ADDRESS),
        want=wanted("unknown", "exception", rank="any", node="any"),
    ),
]

CASES = [
    *TRAPS,
    *OF_THE_SECOND,
    *ASSERTS,
    *CONFIGS,
    *RELEASES,
    *NODES,
    *ARGUMENTS,
    *GLOO,
    *CACHES,
    *CARDS,
    *WRAPPERS,
    *CHILDREN,
    *NAMES,
    *WAITING,
    *REMOTE,
    *PEERS,
]
