"""A script that is started again: what it is given, and what is said if that was nothing new."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdpkit import Run
from fsdpkit.runs.history import history_of
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.saved_steps import SENTENCE, began_again
from tests.conftest import answer_of
from tests.programs import Fsdpkit, Write
from tests.reporting.made_run import T0, breaks, launches, made_run, saves, starts, write_lines

PLAIN: dict[str, Any] = {"name": "made", "retry": {"args_again": []}}
"""The job of a script that reads no [training]."""


def told(directory: Path, job: dict[str, Any], *, left: Callable[[TaskPaths], Any]) -> str | None:
    """Of a run whose second attempt has begun."""
    run = made_run(directory, job=job)
    task = run.paths.task()
    for number in (0, 1):
        starts(task, number, T0)
        launches(task, number, T0)
    left(task)
    return began_again(history_of(run.paths, run.record), job)


def nothing(_: TaskPaths) -> None:
    pass


def stopped(task: TaskPaths) -> None:
    trouble = {"cause": "stopped", "status": 75, "message": ""}
    task.attempt(0).verdict.write_text(json.dumps({"trouble": trouble}))


def looked(task: TaskPaths) -> None:
    line = {"time_s": T0, "event": "stop-passed-on", "node": "node1", "looked": True}
    write_lines(task.attempt(0).node_events(0), line)


def test_a_script_that_nothing_tells_where_to_go_on_began_at_its_beginning(tmp_path: Path) -> None:
    assert told(tmp_path / "run", PLAIN, left=nothing) == SENTENCE


KNOWN: dict[str, tuple[dict[str, Any], Callable[[TaskPaths], Any]]] = {
    "it is told by an argument": ({**PLAIN, "retry": {"args_again": ["--resume"]}}, nothing),
    "it is our trainer": ({**PLAIN, "training": {}}, nothing),
    "a checkpoint is there": (PLAIN, lambda task: saves(task, 3, T0, 0.0)),
    "it logs its steps": (PLAIN, lambda task: breaks(task, 0, T0, step=-1)),
    "it stopped as it was asked": (PLAIN, stopped),
    "it looks for such a request": (PLAIN, looked),
    "it calls a function": (PLAIN, lambda task: (task.dir / "call.pkl").touch()),
    "its job cannot be read": ({}, nothing),
}


@pytest.mark.parametrize("why", KNOWN)
def test_nothing_is_said_where_it_is_not_known(why: str, tmp_path: Path) -> None:
    job, left = KNOWN[why]
    assert told(tmp_path / "run", job, left=left) is None


@pytest.mark.local
def test_further_arguments_come_with_a_restart_and_with_a_resume(
    fsdpkit: Fsdpkit, write_script: Write
) -> None:
    script = write_script(
        "again.py", "import sys; print(sys.argv[1:]); sys.exit('--resume' not in sys.argv)"
    )
    sets = ["retry.backoff_s=0", 'retry.args_again=["--resume", "a b"]']
    words = [word for each in sets for word in ("--set", each)]
    # one rank: of two, the first that fails ends the other, perhaps before it has printed
    shape = ["--cluster", "local", "--nodes", "1", "--gpus", "1"]
    answer = answer_of(fsdpkit("submit", str(script), *shape, *words, "--json", "--", "--x", "1"))
    run = Run.open(answer["dir"])
    assert run.wait(poll_s=0.1).succeeded
    again = "['--x', '1', '--resume', 'a b']\n"
    attempt = run.paths.task().attempt(0)
    assert attempt.rank_file(0, "out", 0).read_text() == "['--x', '1']\n"
    assert attempt.rank_file(0, "out", 1).read_text() == again
    resumed = run.resume(sets=['args=["--y"]'])
    assert resumed.wait(poll_s=0.1).succeeded
    first = run.paths.task().attempt(run.paths.task().attempts()[-1])
    assert first.rank_file(0, "out", 0).read_text() == "['--y', '--resume', 'a b']\n"
