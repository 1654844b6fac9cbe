"""What `status` says of a request to stop that no rank looks for."""

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
    ],
)
def test_a_request_to_stop_that_no_rank_looks_for_is_told(
    tmp_path: Path, nodes: list[list[bool]], unheeded: bool
) -> None:
    paths = AttemptPaths(tmp_path / "attempt-0")
    JsonLines(paths.dir / "orders.jsonl").write(event="stop-requested")
    for number, looked in enumerate(nodes):
        events = JsonLines(paths.node_events(number))
        events.write(event="node-ready", node=f"n{number}")
        for one in looked:
            events.write(event="stop-passed-on", looked=one)
    found = attempt_of(paths)
    assert found.stop_unheeded is unheeded
    history = History(
        run=tmp_path, array_task=None, dir=tmp_path, attempts=(found,), checkpoints=()
    )
    assert ["stop_requested()" in one for one in remarks(history, {}, running=True)] == (
        [True] * unheeded
    )
    over = replace(history, attempts=(replace(found, ending=ENDED),))
    assert not remarks(over, {}, running=True)
