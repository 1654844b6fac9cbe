"""Ranks that stop: as agents see them, as watchdogs tell, and as nobody tells."""

# ruff: noqa: E501 - lines of logs stand as they were printed

from __future__ import annotations

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.words import (
    ADDRESS,
    LOADER_DEL,
    OMP,
    STEPS,
    TOP,
    by,
    on_record,
    watchdog,
)

_IN_COLLECTIVE = """Thread 0x00007f9a509fe6c0 (most recent call first):
  File "/opt/venv/lib/python3.11/threading.py", line 331 in wait
  File "/opt/venv/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f9a9681db80 (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/ada/t5/train.py", line 97 in train_step
  File "/home/ada/t5/train.py", line 188 in main
"""
_READING = """Thread 0x00007f9a509fe6c0 (most recent call first):
  File "/opt/venv/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f9a9681db80 (most recent call first):
  File "/home/ada/t5/corpus.py", line 52 in read_block
  File "/home/ada/t5/corpus.py", line 71 in __getitem__
  File "/home/ada/t5/train.py", line 181 in main
"""
_LOCK = """Current thread 0x00007f9a9681db80 (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/filelock/_api.py", line 331 in acquire
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/_cpp_extension_versioner.py", line 22 in wait
  File "/home/ada/t5/train.py", line 71 in build_kernels
  File "/home/ada/t5/train.py", line 188 in main
"""


def _stacks(size: int, other: dict[int, str]) -> dict[int, str]:
    return {rank: other.get(rank, _IN_COLLECTIVE) for rank in range(size)}


CASES = [
    Case(
        name="hang-of-rank-6-reading",
        source="https://docs.python.org/3/library/faulthandler.html",
        nodes=2,
        gpus=4,
        step=812,
        hung=tuple(range(8)),
        stacks=_stacks(8, {6: _READING}),
        others=Rank(err=ADDRESS, out=STEPS),
        want=wanted("hang", rank=6, node="node2", retry="hang"),
    ),
    Case(
        name="hang-with-innocent-words",
        source="made: lines of a run that hangs which name other failures",
        nodes=2,
        gpus=2,
        step=40,
        hung=(0, 1, 2, 3),
        stacks=_stacks(4, {3: _LOCK}),
        others=Rank(
            err=ADDRESS
            + "hint: CUDA out of memory? lower --batch\nretrying upload: Connection reset by peer (attempt 1 of 5)\nupload ok\n",
            out=STEPS,
        ),
        want=wanted("hang", rank=3, node="node2", forbid="memory|reset", retry="hang"),
    ),
    Case(
        name="hang-nobody-stands-out",
        source="https://docs.python.org/3/library/faulthandler.html",
        nodes=4,
        gpus=2,
        step=12,
        hung=tuple(range(8)),
        stacks=_stacks(8, {}),
        others=Rank(err=ADDRESS),
        want=wanted("hang", rank="any", node="any", retry="hang"),
    ),
    Case(
        name="hang-in-collectives-of-different-lines",
        source="https://docs.python.org/3/library/faulthandler.html",
        nodes=1,
        gpus=4,
        step=500,
        hung=(0, 1, 2, 3),
        stacks={
            **_stacks(4, {}),
            0: _IN_COLLECTIVE.replace("line 3252 in all_reduce", "line 4818 in barrier").replace(
                "line 97 in train_step", "line 210 in evaluate"
            ),
        },
        others=Rank(err=ADDRESS),
        want=wanted("hang", "collective-mismatch", rank="any", node="any", retry="hang"),
    ),
    Case(
        name="watchdog-all-but-rank-13",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
        nodes=2,
        gpus=8,
        ranks={
            13: Rank(
                err=ADDRESS + OMP + "[W1122 00:31:00] loader: block 7712 took 611 s to read\n",
                out=STEPS,
            ),
            **{
                rank: Rank(err=watchdog(rank, seq=5120), status=134, after_s=0.01 * rank)
                for rank in (*range(13), 14, 15)
            },
        },
        want=wanted("hang", rank="any", node="any", retry="hang"),
    ),
    Case(
        name="watchdog-of-64-on-one-node-only",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
        nodes=8,
        gpus=8,
        ranks={
            rank: Rank(
                err=watchdog(rank, seq=77001, op="REDUCE_SCATTER_BASE"),
                status=134,
                after_s=0.01 * rank,
            )
            for rank in range(8, 16)
        },
        others=Rank(err=ADDRESS),
        want=wanted("hang", rank="any", node="any", retry="hang"),
    ),
    Case(
        name="gloo-timeout-waiting-for-rank-0",
        source="https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/unbound_buffer.cc",
        nodes=2,
        gpus=2,
        ranks={
            0: Rank(
                err=ADDRESS + "rank 0 evaluates 51200 samples, this takes about 40 min\n", out=STEPS
            ),
            **{
                rank: Rank(
                    err=ADDRESS
                    + by(
                        rank,
                        TOP.replace(
                            "loss = train_step(model, batch)\n           ^^^^^^^^^^^^^^^^^^^^^^^^",
                            "dist.barrier(group=cpu_group)",
                        )
                        + "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
                    ),
                    status=1,
                    after_s=0.02 * rank,
                )
                for rank in (1, 2, 3)
            },
        },
        want=wanted("hang", rank="any", node="any"),
    ),
    Case(
        name="loader-timeout",
        source="https://github.com/pytorch/pytorch/blob/main/torch/utils/data/dataloader.py",
        nodes=1,
        gpus=8,
        ranks={
            4: Rank(
                err=ADDRESS
                + by(
                    4,
                    TOP
                    + '  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1325, in _get_data\n    raise RuntimeError(\nRuntimeError: DataLoader timed out after 300 seconds',
                )
                + LOADER_DEL,
                status=1,
            )
        },
        others=Rank(err=ADDRESS),
        want=wanted("exception", "hang", "storage", rank=4, node="node1"),
    ),
    Case(
        name="hang-before-the-first-step",
        source="https://docs.python.org/3/library/faulthandler.html",
        nodes=4,
        gpus=2,
        step=0,
        hung=(5,),
        stacks=_stacks(8, {5: _READING}),
        others=Rank(err=ADDRESS),
        want=wanted("hang", rank=5, node="node3", retry="hang"),
    ),
]

CASES = on_record(
    CASES,
    "gloo-timeout-waiting-for-rank-0",
)
