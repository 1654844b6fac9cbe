"""Who may be asked for a checkpoint, what whoever asked is told, and what a trainer answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from fsdpkit import Run
from fsdpkit.cli import cancel
from fsdpkit.errors import SchedulerError
from fsdpkit.runs.events import JsonLines
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.save_requests import SaveAnswer, answer, answer_to, ask, wish, withdraw
from fsdpkit.scheduling import opened, saving
from fsdpkit.scheduling.asking import Pace
from fsdpkit.scheduling.run_states import States
from fsdpkit.scheduling.states import JobState
from tests.scheduling.records import job, run_of


@dataclass(frozen=True)
class Told(Run):
    """A run whose states are told one after another, the last one for ever."""

    told: list[States] = field(default_factory=list)

    def states(self) -> States:
        return self.told.pop(0) if len(self.told) > 1 else self.told[0]

    def newer(self) -> Run:
        return self


def state(word: str, **more: object) -> JobState:
    return JobState(word, "squeue", **more)  # type: ignore[arg-type]


def a_run(
    directory: Path, *told: States | JobState | None, claimed: str | None = "attempt-0"
) -> Told:
    """A run of one job with attempt 0, its checkpoints claimed by an attempt."""
    (directory / "attempt-0").mkdir()
    if claimed is not None:
        (directory / "checkpoints").mkdir()
        claim = {"writer": "w", "who": "a job", "since": "now", "attempt": claimed}
        (directory / "checkpoints" / "writer.json").write_text(json.dumps(claim))
    states = [each if isinstance(each, dict) else {"12": each} for each in told]
    return Told(directory, run_of(job("12")), states)


def test_a_request_is_joined_answered_and_gone(tmp_path: Path) -> None:
    task = TaskPaths(tmp_path)
    assert wish(task) is None
    first = ask(task)
    assert ask(task) == first == wish(task)
    assert answer_to(task, first) is None
    answer(task, first, SaveAnswer(step=7))
    assert answer_to(task, first) == SaveAnswer(step=7)
    assert wish(task) is None
    second = ask(task)
    assert second != first
    answer(task, first, SaveAnswer(step=8))  # one that came late takes nothing away
    assert wish(task) == second
    withdraw(task, first)
    assert wish(task) == second
    withdraw(task, second)
    assert wish(task) is None


def test_whoever_waits_is_told_the_checkpoint_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path, state("RUNNING"))
    (request,) = run.save_checkpoint()
    slow: list[int] = []
    monkeypatch.setattr(saving, "SLOW_S", -1.0)
    clock = SimpleNamespace(
        sleep=lambda _: answer(request.task, request.id, SaveAnswer(step=40)), monotonic=lambda: 0.0
    )
    monkeypatch.setattr(saving, "time", clock)
    assert request.wait(lambda: slow.append(1)) == tmp_path / "checkpoints" / "step-40"
    assert slow == [1]


def test_whoever_waits_is_told_that_the_run_ended_and_the_request_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = state("FAILED", exit_code=1)
    run = a_run(tmp_path, state("RUNNING"), state("RUNNING"), over)
    (tmp_path / "checkpoints" / "step-5").mkdir()
    (request,) = run.save_checkpoint()
    monkeypatch.setattr(saving, "Pace", lambda: Pace(0.0))
    monkeypatch.setattr(saving, "_LOOK_S", 0.0)
    with pytest.raises(SchedulerError, match=r"ended before it saved .*FAILED.*step-5") as caught:
        request.wait()
    assert caught.value.exit_code == 69
    assert wish(request.task) is None


@pytest.mark.parametrize(("looked", "handler"), [(False, False), (True, False), (False, True)])
def test_a_stop_that_no_script_checks_for_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked: bool, handler: bool
) -> None:
    run = a_run(tmp_path, *[state("RUNNING")] * 3, state("FAILED", exit_code=75))
    attempt = run.paths.task().attempt(0)
    JsonLines(attempt.orders).write(event="stop-requested")
    told = {"looked": looked, "handler": handler}
    JsonLines(attempt.node_events(0)).write(event="stop-passed-on", **told)
    monkeypatch.setattr(saving, "UNHEARD_S", -1.0)
    monkeypatch.setattr(opened, "Pace", lambda _: Pace(0.0))
    monkeypatch.setattr(Run, "open", lambda *_, **__: run)
    monkeypatch.setattr(Told, "cancel", lambda *_, **__: ["12"])
    done = CliRunner().invoke(cancel.command, ["12", "--save", "--wait"])
    if looked or handler:
        assert done.stdout.endswith(f"{run.id}: FAILED, exit status 75\n")
    else:
        assert isinstance(done.exception, SchedulerError)
        assert str(done.exception).endswith(f"without saving: fsdpkit cancel {run.id}")
