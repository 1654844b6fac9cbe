"""Which nodes a report speaks against: the slow, the broken, and none without a reason."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.errors import NotFoundError, StorageError
from fsdpkit.runs.node_report import (
    GpuState,
    NodeReport,
    NodeVerdict,
    Pair,
    RankSpeed,
    ReportedNode,
    judge,
    load,
    remarks,
    save,
)


def node(name: str, tflop_s: float = 100.0, **facts: Any) -> ReportedNode:
    known = {"cpus": 8, "memory_total_gb": 64.0, "memory_available_gb": 60.0}
    clock = {"clock_offset_s": 0.0, "clock_error_s": 0.0001}
    ranks = [RankSpeed(rank=0, matmul_tflop_s=100.0), RankSpeed(rank=1, matmul_tflop_s=tflop_s)]
    return ReportedNode(**{"name": name, **known, **clock, "ranks": ranks, **facts})


def report(
    *nodes: ReportedNode, links: dict[str, float] | None = None, good_gb_s: float = 40
) -> NodeReport:
    """links: a node's own limit in GB/s; a pair is as fast as the worse of its two."""
    limits = {each.name: (links or {}).get(each.name, good_gb_s) for each in nodes}
    pairs = [
        Pair(nodes=pair, gb_s=min(limits[n] for n in pair)) for pair in combinations(limits, 2)
    ]
    return NodeReport(
        created_s=0.0, device="cuda", message_mib=256, nodes=list(nodes), pairs=pairs, seconds=1.0
    )


def states(verdicts: list[NodeVerdict]) -> dict[str, str]:
    return {verdict.node: verdict.state for verdict in verdicts}


@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_one_node_with_a_bad_link_is_named_and_its_partners_are_not(count: int) -> None:
    found = judge(report(*(node(f"n{i}") for i in range(count)), links={"n1": 20.0}))
    assert states(found) == {f"n{i}": "slow" if i == 1 else "ok" for i in range(count)}
    assert found[1].reasons == (
        "all-reduces with its best partner at 20 GB/s, the median node at 40",
    )


def test_one_slow_gpu_makes_its_node_slow_and_of_two_nodes_the_slower_is_named() -> None:
    found = judge(report(node("n0"), node("n1", tflop_s=60.0)))
    assert states(found) == {"n0": "ok", "n1": "slow"}
    assert "multiplies matrices at 60 TFLOP/s" in found[1].reasons[0]
    just_enough = judge(report(node("n0"), node("n1", tflop_s=71.0)))
    assert states(just_enough) == {"n0": "ok", "n1": "ok"}


def test_the_profile_s_expectation_names_nodes_that_are_no_worse_than_the_middle_one() -> None:
    """Most of them are slow, so that the middle one is: only the profile knows better."""
    most = report(*(node(f"n{i}") for i in range(5)), links={f"n{i}": 20.0 for i in range(3)})
    assert set(states(judge(most)).values()) == {"ok"}
    assert states(judge(most, expected_gb_s=40)) == {
        **{f"n{i}": "slow" for i in range(3)},
        "n3": "ok",
        "n4": "ok",
    }


def test_where_all_are_below_the_expectation_the_network_is_named_and_no_node() -> None:
    all_slow = report(*(node(f"n{i}") for i in range(4)), good_gb_s=1.0)
    assert set(states(judge(all_slow, expected_gb_s=40)).values()) == {"ok"}
    assert "network.socket_ifname" in remarks(all_slow, expected_gb_s=40)[0]


def test_failed_ranks_lost_memory_rows_and_xid_errors_break_a_node() -> None:
    failed = RankSpeed(rank=3, error="CUDA error: an illegal memory access was encountered")
    found = judge(
        report(
            node("n0"),
            node("n1", ranks=[failed]),
            node("n2", xid_errors=[79]),
            node("n3", gpus=[GpuState(index=2, remap_failed=True)]),
            node("n4", gpus=[GpuState(index=0, remap_pending=True, uncorrected_ecc_errors=1)]),
        )
    )
    assert list(states(found).values()) == ["ok", "broken", "broken", "broken", "ok"]
    assert found[1].reasons[0].startswith("rank 3: CUDA error")
    assert "XID 79" in found[2].reasons[0]
    assert len(found[4].notes) == 2


def test_a_clock_is_off_only_when_the_measurement_can_tell() -> None:
    (sure, unsure) = judge(
        report(
            node("n0", clock_offset_s=-2.0),
            node("n1", clock_offset_s=2.0, clock_error_s=1.9),
        )
    )
    assert "-2.0 s off" in sure.notes[0]
    assert sure.state == "ok"
    assert unsure.notes == ()


def test_a_report_comes_back_as_it_was_written(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"before it wrote .*check\.json"):
        load(tmp_path)
    written = report(node("n0"), node("n1", gpus=[GpuState(index=0, name="H100")]))
    path = save(written, tmp_path)
    assert load(tmp_path) == written
    path.write_text(path.read_text()[:40])
    with pytest.raises(StorageError, match="cannot be read"):
        load(tmp_path)
