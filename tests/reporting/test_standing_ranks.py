"""What `diagnose` says of a run that goes on while its ranks do nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.reporting.diagnosis.diagnose import Diagnosis, diagnose
from fsdpkit.reporting.diagnosis.evidence import AttemptEvidence, MachineEvidence
from fsdpkit.runs.layout import AttemptPaths
from fsdpkit.runs.stack_requests import RankStacks, Stall, read_stall, remove_stall, write_stall
from fsdpkit.scheduling.states import JobState
from tests.reporting.made_evidence import attempt, of

SINCE_S = 1_000_000.0
RUNNING = JobState("RUNNING", "squeue")
MEETS = ("/env/lib/python3.11/site-packages/torch/distributed/rendezvous.py", 190, "_store")
MAIN = ("/home/ada/train.py", 5, "main")
LOADS = ("/home/ada/train.py", 3, "load")


def stacks(rank: int, *frames: tuple[str, int, str]) -> RankStacks:
    lines = [f'  File "{file}", line {line} in {name}' for file, line, name in frames]
    text = "\n".join(["Current thread 0x1 (most recent call first):", *lines])
    return RankStacks(rank=rank, text=text, by="py-spy")


def still(node: int, *ranks: RankStacks, address: str = "", launch: int = 0) -> Stall:
    return Stall(
        id="",
        node=node,
        name=f"node{node + 1}",
        launch=launch,
        time_s=SINCE_S + 60,
        since_s=SINCE_S + node,
        ranks=ranks,
        addresses={rank.rank: address for rank in ranks} if address else {},
    )


def two_nodes(*odd: tuple[str, int, str], address: str = "") -> tuple[Stall, ...]:
    """Rank 1 is elsewhere, if that is given."""
    first = still(0, stacks(0, MEETS, MAIN), stacks(1, *(odd or (MEETS, MAIN))), address=address)
    return first, still(1, stacks(2, MEETS, MAIN), stacks(3, MEETS, MAIN), address=address)


def running(nodes: tuple[Stall, ...], **more: object) -> AttemptEvidence:
    return attempt(state=RUNNING, ranks=4, still=nodes, **more)


def diagnosed(evidence: AttemptEvidence) -> Diagnosis:
    return diagnose(of(evidence, state=RUNNING))


def test_where_all_ranks_stand_is_said_while_they_stand_there() -> None:
    found = diagnosed(running(two_nodes(address="localhost:12355")))
    assert found.cause == "hang"
    for words in (
        "The job is running, but its ranks have not computed, read, written or printed anything",
        "ranks 0-3 are at torch/distributed/rendezvous.py:190 in _store, called from train.py:5 in "
        "main, to meet at localhost:12355.",
    ):
        assert words in found.sentence
    assert "means the node itself" in str(found.action)
    assert "fsdpkit cancel t5-1" in str(found.action)


def test_ranks_that_have_ended_well_are_not_waited_for() -> None:
    """As where only the second node leaves destroy_process_group()."""
    found = diagnosed(running(two_nodes()[:1], done=("node2",)))
    assert "(those of node2 have ended): ranks 0-1 are at torch/" in found.sentence


def test_the_rank_that_is_elsewhere_is_named() -> None:
    found = diagnosed(running(two_nodes(LOADS)))
    assert (found.rank, found.node) == (1, "node1")
    assert "rank 1 is at train.py:3 in load; ranks 0,2-3 are at torch/" in found.sentence


@pytest.mark.parametrize(
    "evidence",
    [
        pytest.param(running(()), id="all at work"),
        pytest.param(running(two_nodes()[:1]), id="the other node is at work"),
        pytest.param(
            running(two_nodes(), machines={"node2": MachineEvidence(gpus_busy=True)}),
            id="a GPU computes",
        ),
    ],
)
def test_nothing_is_said_while_anything_moves(evidence: AttemptEvidence) -> None:
    assert diagnosed(evidence).cause == "running"


def test_without_stacks_the_time_is_known_and_why_nothing_else_is() -> None:
    ranks = [RankStacks(rank=n, why_not="py-spy is not installed") for n in range(4)]
    found = diagnosed(running((still(0, *ranks),)))
    assert "where they are is unknown: py-spy is not installed" in found.sentence


def test_what_is_read_belongs_to_the_newest_launch_and_harms_nothing(tmp_path: Path) -> None:
    paths = AttemptPaths(tmp_path)
    write_stall(paths, still(0, stacks(0, MEETS), address="h\x1b[2J:1"))
    assert read_stall(paths, 0) == still(0, stacks(0, MEETS), address="h\x1b[2J:1")
    found = diagnosed(running((*two_nodes(address="h\x1b[2J:1"),)))
    assert "\x1b" not in found.sentence + str(found.action)
    paths.node_still(0).write_bytes(b'{"since_s": "\xff')
    assert read_stall(paths, 0) is None
    remove_stall(paths, 0)
    remove_stall(paths, 0)
    assert read_stall(paths, 0) is None
