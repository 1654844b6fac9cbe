"""What `status` says of a training besides its steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from fsdpkit.reporting.status.job_words import remarks
from fsdpkit.runs.events import JsonLines
from fsdpkit.runs.history import History, attempt_of
from fsdpkit.runs.layout import AttemptPaths
from fsdpkit.runs.outcomes import Ending

ENDED = Ending(action="end", status=0, cause="done", why="")


@pytest.mark.parametrize(
    ("nodes", "unheeded"),
    [
        ([[False]], True),
        ([[False, True]], False),
        ([[False], [True]], False),
        ([[], [False]], True),
        ([[], []], False),
        ([[None]], False),
        ([[None, False]], True),
        ([[False], [None]], False),
    ],
)
def test_a_request_to_stop_that_no_rank_looks_for_is_told(
    tmp_path: Path, nodes: list[list[bool | None]], unheeded: bool
) -> None:
    """None: its script may have a handler of its own."""
    paths = AttemptPaths(tmp_path / "attempt-0")
    JsonLines(paths.dir / "orders.jsonl").write(event="stop-requested")
    for number, looked in enumerate(nodes):
        events = JsonLines(paths.node_events(number))
        events.write(event="node-ready", node=f"n{number}")
        for one in looked:
            events.write(event="stop-passed-on", looked=one is True, handler=one is None)
    found = attempt_of(paths)
    assert found.stop_ignored is unheeded
    history = History(
        run=tmp_path, array_task=None, dir=tmp_path, attempts=(found,), checkpoints=()
    )
    assert ["stop_requested()" in one for one in remarks(history, {}, running=True)] == (
        [True] * unheeded
    )
    over = replace(history, attempts=(replace(found, ending=ENDED),))
    assert not remarks(over, {}, running=True)


@pytest.mark.parametrize(("launches", "often"), [(1, None), (2, "restarted at"), (3, "2 times")])
def test_restarts_of_the_ranks_are_told_with_the_newest_reason(
    tmp_path: Path, launches: int, often: str | None
) -> None:
    paths = AttemptPaths(tmp_path / "attempt-0")
    for number in range(launches):
        orders = JsonLines(paths.orders)
        orders.write(event="launch", launch=number, nodes=["n0"], delay_s=0)
        orders.write(event="trouble", message=f"rank 1: reason {number}")
    found = attempt_of(paths)
    history = History(
        run=tmp_path, array_task=None, dir=tmp_path, attempts=(found,), checkpoints=()
    )
    told = [one for one in remarks(history, {}, running=False) if "restarted" in one]
    assert [(often or "") in one and f"reason {launches - 2}" in one for one in told] == (
        [True] * (often is not None)
    )


def test_nodes_that_reach_no_head_are_named_until_ranks_start(tmp_path: Path) -> None:
    paths = AttemptPaths(tmp_path / "attempt-0")
    for number in range(3):
        events = JsonLines(paths.node_events(number))
        events.write(event="node-ready", node=f"n{number}")
        if number:
            events.write(event="head-unreached", node=f"n{number}", why="10.0.0.1:12345: timed out")

    def told() -> list[str]:
        history = History(
            run=tmp_path,
            array_task=None,
            dir=tmp_path,
            attempts=(attempt_of(paths),),
            checkpoints=(),
        )
        return remarks(history, {}, running=True)

    (one,) = told()
    assert "n[1-2]" in one
    assert "10.0.0.1:12345" in one
    JsonLines(paths.orders).write(event="launch", nodes=["n0"], launch=0)
    assert told() == []
