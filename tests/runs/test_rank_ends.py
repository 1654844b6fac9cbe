"""How the ranks of a launch ended: the agent's line, read back and told in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.runs.events import JsonLines
from fsdpkit.runs.rank_ends import RankEnd, event_of, in_words, rank_ends, read_rank_ends

ENDS = {
    0: RankEnd(status=137, time_s=102.5, killed=True),
    1: RankEnd(status=1, time_s=101.0),
    2: RankEnd(status=0, time_s=90.0),
    3: RankEnd(status=134, time_s=100.5),
    4: RankEnd(status=None, time_s=103.0, killed=True),
}


def test_what_the_agent_wrote_is_read_back_launch_by_launch(tmp_path: Path) -> None:
    path = tmp_path / "node-0.events.jsonl"
    lines = JsonLines(path)
    lines.write(**event_of(0, ENDS))
    lines.write(event="ranks-failed", launch=1)
    lines.write(**event_of(1, {0: RankEnd(status=9, time_s=1.0)}))
    assert read_rank_ends(path, 0) == ENDS
    assert read_rank_ends(path, 1) == {0: RankEnd(status=9, time_s=1.0)}
    assert read_rank_ends(path, 2) == {}
    assert read_rank_ends(tmp_path / "absent", 0) == {}


def test_of_a_line_that_somebody_else_wrote_only_what_fits_is_taken() -> None:
    good = {"status": 1, "time_s": 2.0}
    ranks = {"3": good, "x": good, "4": {"status": "1"}, "5": [1], "6": {**good, "new": 7}}
    records = [
        {"event": "ranks-ended", "launch": 0, "ranks": ranks},
        {"event": "ranks-ended", "launch": 0, "ranks": [good]},
        {"event": "ranks-ended", "launch": "0", "ranks": {"7": good}},
    ]
    assert sorted(rank_ends(records, 0)) == [3, 6]


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (
            ENDS,
            "rank 3 ended first, by itself (signal 6); then rank 1 after 0.5 s; the agents then "
            "ended 2 others",
        ),
        ({1: ENDS[1]}, "rank 1 ended first, by itself (exit status 1)"),
        ({0: ENDS[0], 2: ENDS[2]}, None),
        ({}, None),
        (
            {rank: RankEnd(status=1, time_s=rank) for rank in range(8)},
            "rank 0 ended first, by itself (exit status 1); then ranks 1 after 1.0 s, 2 after "
            "2.0 s, 3 after 3.0 s, 4 after 4.0 s and 3 more",
        ),
    ],
)
def test_who_ended_by_itself_is_told_from_who_was_ended(
    ends: dict[int, RankEnd], said: str | None
) -> None:
    assert in_words(ends) == said


def test_ranks_of_a_node_that_all_ended_well_are_known_by_their_start() -> None:
    """What a rank on another node waited for may have left early."""
    lines = [
        {"event": "ranks-started", "launch": 0, "pids": {"2": 70, "3": 71}},
        {"event": "ranks-done", "launch": 0, "time_s": 9.5},
        {"event": "ranks-started", "launch": 1, "pids": {"2": 80, "3": 81}},
    ]
    well = RankEnd(status=0, time_s=9.5)
    assert rank_ends(lines, 0) == {2: well, 3: well}
    assert rank_ends(lines, 1) == {}
