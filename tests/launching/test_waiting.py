"""Who waited in vain: then the ranks that are still there are looked at before they are ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.launching.message_log import Order
from fsdpkit.launching.waiting import local_time_out, why_superseded
from fsdpkit.runs.rank_ends import RankEnd

FAILED = RankEnd(status=1, time_s=0.0)
GLOO = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "
    "Timed out waiting 1800000ms for recv operation to complete\n"
)
NCCL = (
    "[rank3]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE,"
    " NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600004 milliseconds before timing out.\n"
    + "frame #3: c10d::ProcessGroupNCCL::Watchdog::run() + 0x135 (0x7f in /x/libtorch_cuda.so)\n"
    * 20
)
STACKS = "Fatal Python error: Aborted\n\n" + '  File "/x/train.py", line 7 in step\n' * 400


@pytest.mark.parametrize(
    ("said", "end", "waited"),
    [
        (GLOO, FAILED, True),
        (NCCL, RankEnd(status=134, time_s=0.0), True),
        (NCCL + STACKS, RankEnd(status=134, time_s=0.0), True),
        ("x" * 9000 + GLOO, FAILED, True),
        (GLOO + "and then it trained on\n" * 1000, FAILED, False),
        ("ValueError: a sample\n", FAILED, False),
        (GLOO, RankEnd(status=137, time_s=0.0, killed=True), False),
        (GLOO, RankEnd(status=0, time_s=0.0), False),
        (None, FAILED, False),
    ],
)
def test_the_end_of_what_a_failed_rank_said_decides(
    tmp_path: Path, said: str | None, end: RankEnd, waited: bool
) -> None:
    err = tmp_path / "rank-0.err"
    if said is not None:
        err.write_text(said)
    assert local_time_out({err: end}) is waited


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (Order(do="run", because="hang", status=124), "hang"),
        (Order(do="end", because="crash", status=134, message="rank 3 on a: SIGABRT"), "aborted"),
        (Order(do="run", because="crash", status=1, message="rank 3 on a: " + GLOO), "time-out"),
        (Order(do="end", because="crash", status=1, message="rank 3 on a: KeyError: 'x'"), None),
        (Order(do="end", because="node-failure", status=134), None),
        (Order(do="end", because="done"), None),
    ],
)
def test_an_order_that_ends_a_launch_says_whether_others_waited(
    order: Order, why: str | None
) -> None:
    assert why_superseded(order) == why
