"""Ends that say nothing of why, and harmless lines of the centre's own before an end that does."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.seventh.common import (
    BANNER,
    BARS,
    CODE,
    DEEPSPEED,
    ENV,
    HF_TRAIN,
    LOADER,
    MAIN,
    NCCL_INFO,
    TITAN,
    TRAIN,
    TRANSFORMERS,
    WANDB,
    around,
    seen,
)
from tests.reporting.unseen.seventh.misleading import OOM
from tests.reporting.unseen.third.common import before, stack
from tests.reporting.unseen.words import ADDRESS, FUTURE, STEPS

BLAME = "GPU|memory|network|disk|internet|import"


def silent(
    name: str, status: int, err: str, *, out: str = "", rank: int = 5, shape: str = "2x4"
) -> Case:
    """A rank that ended with this status and said nothing of why."""
    nodes, gpus = map(int, shape.split("x"))
    return Case(
        name=name,
        source="made",
        nodes=nodes,
        gpus=gpus,
        ranks={
            **around(nodes * gpus, {rank}, gpus, "store", ADDRESS + err),
            rank: Rank(err=ADDRESS + err, out=out, status=status),
        },
        want=wanted("unknown", "exception", rank="any", node="any", forbid=BLAME),
    )


SILENT = [
    silent("exit-of-one-after-harmless-warnings", 1, FUTURE + TRANSFORMERS + BARS),
    silent("exit-of-255", 255, TITAN, rank=9, shape="4x4"),
    silent("exit-of-one-while-saving", 1, BARS, out=STEPS + "saving step 180 ...\n", rank=0),
    silent("floating-point-exception", 136, NCCL_INFO + BARS, rank=2, shape="1x8"),
    silent("exit-of-42-after-goodbye", 42, WANDB, out="bye.\n", rank=6),
    seen(
        "inner-program-returned-one",
        "python subprocess, accelerate",
        "unknown|exception",
        "subprocess.CalledProcessError: Command '['/users/PAS1234/rlee/.conda/envs/llm/bin/python', 'inner.py', '--stage', '2']' returned non-zero exit status 1.",
        f"{CODE}/outer.py:40 <module> | subprocess.run(command, check=True)",
        rank=0,
        shape="2x1",
        prefix="",
        forbid=BLAME,
    ),
    seen(
        "inner-program-was-aborted",
        "python subprocess, accelerate",
        "unknown|exception",
        "subprocess.CalledProcessError: Command '['torchrun', '--nproc-per-node', '4', 'train.py']' died with <Signals.SIGABRT: 6>.",
        f"{ENV}/accelerate/commands/launch.py:1199 multi_gpu_launcher | distrib_run.run(args)",
        rank=1,
        shape="2x1",
        prefix="",
        forbid=BLAME,
    ),
    silent(
        "deepspeed-launcher-tells-the-code-only",
        1,
        DEEPSPEED
        + "[2026-11-22 00:30:51,879] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4188\n[2026-11-22 00:30:51,885] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 'main.py', '--local_rank=0'] exits with return code = 1\n",
        rank=1,
        shape="2x1",
    ),
    before(
        "task-ended-before-it-said-anything",
        "srun",
        "unknown|exception",
        "srun: error: node2: task 1: Exited with exit code 1\nsrun: Terminating StepId=4711.0\n",
    ),
    before(
        "task-was-killed-before-it-said-anything",
        "srun",
        "unknown|cancelled|host-out-of-memory|exception",
        "srun: error: node1: task 0: Killed\nsrun: Terminating StepId=4711.0\n",
    ),
]

CENTRE = [
    seen(
        "tmpdir-of-the-job-fell-back",
        "slurmstepd, made",
        "exception",
        "KeyError: 'attention_mask'",
        *TRAIN,
        rank=3,
        batch="slurmstepd: error: Unable to create TMPDIR [/tmp/job.4711]: Permission denied\nslurmstepd: error: Setting TMPDIR to /tmp\n",
        peers="aborted",
        forbid="permission|TMPDIR",
    ),
    seen(
        "modules-were-reloaded",
        "lmod, made",
        "data-missing",
        "FileNotFoundError: [Errno 2] No such file or directory: '/fs/ess/PAS1234/corpus/train.bin'",
        MAIN,
        f"{CODE}/data.py:31 load | self.tokens = np.memmap(path, dtype=np.uint16, mode='r')",
        everyone=True,
        batch="\nThe following have been reloaded with a version change:\n  1) cuda/11.8.0 => cuda/12.4.1     2) gcc/9.3.0 => gcc/12.3.0\n\nTERM environment variable not set.\n",
        forbid="cuda|module",
    ),
    seen(
        "tokenizers-were-forked",
        "tokenizers, made",
        "exception",
        "AssertionError: padding side must be left",
        *HF_TRAIN,
        rank=1,
        shape="1x4",
        before="huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...\nTo disable this warning, you can either:\n\t- Avoid using `tokenizers` before the fork if possible\n\t- Explicitly set the environment variable TOKENIZERS_PARALLELISM=(true | false)\n",
        forbid="deadlock|hang",
    ),
    seen(
        "preloaded-library-is-ignored",
        "ld.so, made",
        "nan-loss",
        "FloatingPointError: loss is nan at step 1207",
        *TRAIN,
        everyone=True,
        before="ERROR: ld.so: object '/opt/centre/lib/libdarshan.so' from LD_PRELOAD cannot be preloaded (cannot open shared object file): ignored.\n",
        forbid="librar",
    ),
    seen(
        "profile-of-the-shell-is-missing",
        "bash, made",
        "gpu-out-of-memory",
        OOM.format(gpu=2),
        *TRAIN,
        rank=6,
        batch="/users/PAS1234/rlee/.bashrc: line 12: /opt/centre/init.sh: No such file or directory\n/users/PAS1234/rlee/.bashrc: line 19: brew: command not found\n",
        peers="aborted",
        forbid="command|No such file",
    ),
    seen(
        "dashboard-found-its-port-in-use",
        "tensorboard, made",
        "exception",
        "RuntimeError: shape '[8, 32, 128, 64]' is invalid for input of size 2093056",
        *TRAIN,
        rank=0,
        before="TensorBoard could not bind to port 6006, it was already in use\nERROR: TensorBoard could not bind to port 6006, it was already in use\nmetrics server: OSError: [Errno 98] Address already in use; going on without\n"
        + BARS,
        peers="aborted",
        forbid="port",
    ),
    seen(
        "corrected-errors-of-the-hosts-memory",
        "edac, made",
        "exception",
        "ValueError: negative dimensions are not allowed",
        *LOADER,
        rank=7,
        node_logs={
            1: "[77120.4] EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x1d3a2c offset:0x0 grain:32 syndrome:0x0 -  err_code:0x0101:0x0091)\n"
        },
        peers="aborted",
        forbid="memory|hardware",
    ),
    seen(
        "keys-were-missing-and-it-went-on",
        "transformers trainer.py, made",
        "exception",
        "TypeError: compute_loss() got an unexpected keyword argument 'num_items_in_batch'",
        *HF_TRAIN,
        everyone=True,
        noise=TRANSFORMERS
        + "There were missing keys in the checkpoint model loaded: ['lm_head.weight'].\nSome weights of the model checkpoint at /scratch/rlee/base were not used when initializing Decoder: ['rotary.inv_freq']\n",
        forbid="checkpoint",
    ),
    seen(
        "store-was-late-and-then-a-disk",
        "torch, made",
        "disk-full",
        "OSError: [Errno 28] No space left on device: '/localscratch/4711/shards/00012.bin'",
        MAIN,
        f"{CODE}/data.py:22 stage | shutil.copy(source, target)",
        rank=10,
        shape="4x4",
        before="[W1122 00:15:02.118 TCPStore.cpp:130] [c10d] Connect failed, retrying: Connection refused\n[W1122 00:15:04.118 socket.cpp:764] [c10d] The client socket cannot be initialized to connect to [node1.cluster]:14711 (errno: 97 - Address family not supported by protocol).\n"
        + BANNER,
        peers="store",
        forbid="refused|network",
    ),
    seen(
        "a-broken-row-was-skipped-and-a-file-is-gone",
        "made",
        "data-missing",
        "FileNotFoundError: [Errno 2] No such file or directory: '/fs/scratch/PAS1234/c4/shard-0044.parquet'",
        *LOADER,
        rank=13,
        shape="4x4",
        before="WARNING skipping row 1187 of shard-0043: JSONDecodeError('Expecting value: line 1 column 1 (char 0)')\nWARNING skipping row 1188 of shard-0043: UnicodeDecodeError\n"
        + stack(f"{CODE}/data.py:51 parse | return json.loads(line)")
        + "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\nWARNING skipped 3 rows\n",
        peers="aborted",
    ),
]

CASES = [*SILENT, *CENTRE]
