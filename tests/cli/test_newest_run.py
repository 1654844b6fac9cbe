"""Without RUN a command takes the newest, and says which that is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fsdpkit.errors import NotFoundError
from fsdpkit.runs.store import find_run
from tests.programs import Fsdpkit
from tests.reporting.made_run import T0, ends, launches, made_run, starts, trains

OLD, NEW = "zzz-20260101-000000-ffff", "made-20260102-000000-0000"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The older one has the later name in the alphabet, and what is newest is no run."""
    for name in (OLD, NEW):
        run = made_run(tmp_path / "runs" / name, state="FAILED", exit_code=1)
        starts(run.paths.task(), 0, T0)
        launches(run.paths.task(), 0, T0 + 20)
        ends(run.paths.task(), 0, trains(run.paths.task(), 1, 3, T0 + 30), "crash", "boom")
        run.paths.task().attempt(0).rank_file(0, "out", 0).write_text(f"rank 0 of {name}\n")
        told = {"by": "rank", "name": "node1", "rank": 0, "cause": "exception", "status": 1}
        failure = {**told, "words": f"ValueError: {name}"}
        trouble = {"cause": "crash", "status": 1, "message": "", "failure": failure}
        run.paths.task().attempt(0).verdict.write_text(json.dumps({"trouble": trouble}))
    (tmp_path / "runs" / "avoided-20270101-000000-0000").mkdir()
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("logs",), f"rank 0 of {NEW}"),
        (("diagnose",), f"ValueError: {NEW}"),
        (("watch",), f"{NEW}: FAILED"),
        (("report",), f"{NEW}.html"),
    ],
)
def test_the_newest_run_is_taken_and_named(
    words: tuple[str, ...], told: str, runs: Path, fsdpkit: Fsdpkit
) -> None:
    done = fsdpkit(*words)
    assert told in done.stdout, done.stderr
    assert f"fsdpkit: {NEW}, the newest run\n" in done.stderr
    named = fsdpkit(*words, OLD)
    assert "the newest run" not in named.stderr
    assert OLD in named.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a run of somebody else")
def test_a_run_of_somebody_else_is_never_the_newest(runs: Path, fsdpkit: Fsdpkit) -> None:
    theirs = made_run(runs / "sams-20990101-000000-0000")
    os.chown(theirs.dir, 12002, 12002)
    (runs / "link-20990102-000000-0000").symlink_to(NEW)
    os.chown(runs / "link-20990102-000000-0000", 12002, 12002, follow_symlinks=False)
    assert f"fsdpkit: {NEW}, the newest run\n" in fsdpkit("logs").stderr
    for name in (OLD, NEW):
        os.chown(runs / name, 12002, 12002)
    assert f"there is no run in {runs} that is yours" in fsdpkit("logs").stderr


@pytest.mark.parametrize(
    ("word", "found"),
    [("260101-0", OLD), ("ffff", OLD), ("zzz", OLD), ("made-", NEW), ("fff", None), ("0", None)],
)
def test_a_run_is_named_by_a_part_of_its_id_too_long_to_be_there_by_chance(
    word: str, found: str | None, runs: Path
) -> None:
    if found is None:
        with pytest.raises(NotFoundError, match="there is no run"):
            find_run(word, runs)
    else:
        assert find_run(word, runs).name == found


def test_what_stands_after_two_dashes_is_no_run(runs: Path, fsdpkit: Fsdpkit) -> None:
    for words in (("shell", "--", "made"), ("shell", "--node", "1", "--", OLD)):
        assert f"{NEW}, the newest run\n" in fsdpkit(*words).stderr
