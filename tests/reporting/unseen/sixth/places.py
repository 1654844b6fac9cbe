"""Where a failure's words stand: in standard output, behind what somebody writes before each line,
after exceptions that were got over."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Rank
from tests.reporting.unseen.third.common import HOME, failing, stack
from tests.reporting.unseen.words import FUTURE

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.10 GiB of which 1.9 GiB is free."
FULL = "OSError: [Errno 28] No space left on device: '/scratch/k.meyer/ckpt/step-1200.pt'"
HANDLED = (
    stack(f"{HOME}/cache.py:31 open_cache | return pickle.load(file)")
    + "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/cache/vocab.pkl'\n"
    + "cache: built in 3.1 s\n"
    + "".join(f"step {step} | loss {9 - step / 10:.2f}\n" for step in range(12))
)

CASES = [
    failing(
        "printed-to-out-while-err-warns",
        "traceback.print_exc(file=sys.stdout)",
        "gpu-out-of-memory",
        OOM,
        rank=5,
        prefix="",
        on_out=True,
        more={5: Rank(err=FUTURE)},
    ),
    failing(
        "loguru-to-out-then-bye",
        "loguru",
        "disk-full",
        FULL,
        rank=2,
        prefix="",
        before="2026-11-22 00:31:02.118 | ERROR    | __main__:main:88 - training failed\n",
        after="2026-11-22 00:31:02.301 | INFO     | __main__:main:93 - bye\n",
        on_out=True,
    ),
    failing(
        "mpirun-tag-output",
        "Open MPI --tag-output",
        "gpu-out-of-memory",
        OOM,
        rank=3,
        prefix="[1,{rank}]<stderr>:",
    ),
    failing(
        "time-before-each-line",
        "ts(1)",
        "data-missing",
        "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/k.meyer/set/train-00003.arrow'",
        rank=6,
        prefix="Nov 22 00:31:02 ",
        after="Nov 22 00:31:03 [rank6]: wrote 3 events\n",
    ),
    failing(
        "host-and-time-before-each-line",
        "pdsh, dshbak",
        "import-error",
        "ModuleNotFoundError: No module named 'einops'",
        f"{HOME}/train.py:4 <module> | from einops import rearrange",
        everyone=True,
        prefix="gpu-a{rank}.cluster 00:31:02.118 err| ",
    ),
    failing(
        "ray-worker-before-each-line",
        "Ray",
        "exception",
        "KeyError: 'labels'",
        rank=1,
        prefix="(RayTrainWorker pid=41{rank}2, ip=10.99.7.1) ",
    ),
    failing(
        "handled-then-out-of-memory-behind-a-prefix",
        "torchrun --tee",
        "gpu-out-of-memory",
        OOM,
        rank=4,
        prefix="[trainer{rank}]:",
        before=HANDLED,
    ),
    failing(
        "handled-then-a-bare-end",
        "a hook that prints one line",
        "gpu-out-of-memory",
        OOM,
        "-",
        rank=4,
        prefix="",
        before=HANDLED,
    ),
    failing(
        "handled-then-gave-up-in-words",
        "sys.exit(text)",
        "exception",
        "giving up: the teacher's logits do not fit the student's vocabulary",
        "-",
        rank=4,
        prefix="",
        before=HANDLED,
        forbid="vocab.pkl",
    ),
    failing(
        "caught-logged-and-left-between-lines-of-a-worker",
        "logging.exception",
        "disk-full",
        FULL,
        rank=2,
        prefix="",
        before="ERROR:train:could not save\n",
        after="prefetch 3: shard 624 opened\nINFO:train:closing writers\nprefetch 1: shard 7 opened\n",
    ),
    failing(
        "words-of-a-loss-two-lines-before-the-last",
        "sys.exit(255)",
        "exception",
        "wrong number of experts in the router's table",
        "-",
        rank=7,
        status=255,
        prefix="",
        before="eval loss nan for the empty split 'held-out'\n",
        forbid="nan",
    ),
]
LEAKS = """nanobind: leaked 4 instances!
 - leaked instance 0x7fe3d82fcc48 of type "triton._C.libtriton.ir.attribute"
 - leaked instance 0x7fe3d82fcc88 of type "triton._C.libtriton.ir.attribute"
nanobind: leaked 64 types!
 - leaked type "triton._C.libtriton.ir.location"
 - ... skipped remainder
nanobind: this is likely caused by a reference counting issue in the binding code.
See https://nanobind.readthedocs.io/en/latest/refleaks.html
"""
CASES += [
    failing(
        "words-before-what-nanobind-says-at-the-end",
        "Triton 3.9, JAX",
        "disk-full",
        "could not save the last step: No space left on device",
        "-",
        rank=6,
        prefix="",
        after=LEAKS,
    ),
    failing(
        "a-traceback-before-what-nanobind-says-at-the-end",
        "Triton 3.9, JAX",
        "gpu-out-of-memory",
        OOM,
        rank=1,
        prefix="",
        after=LEAKS * 3,
    ),
    failing(
        "a-sentence-before-what-nanobind-says-at-the-end",
        "Triton 3.9, JAX",
        "exception",
        "the vocabulary has 32,100 words, the checkpoint 32,128",
        "-",
        rank=1,
        prefix="",
        after=LEAKS,
        forbid="nanobind",
    ),
]
