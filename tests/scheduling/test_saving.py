"""Who may be asked for a checkpoint, what whoever asked is told, and what a trainer answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from fsdpkit import Run
from fsdpkit.cli.checkpoint_save import _print_json
from fsdpkit.errors import FsdpkitError, NotFoundError, SchedulerError, StorageError, UsageError
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.save_requests import SaveAnswer, answer, answer_to, ask, wish, withdraw
from fsdpkit.scheduling import saving
from fsdpkit.scheduling.run_states import States
from fsdpkit.scheduling.saving import request_checkpoints
from fsdpkit.scheduling.states import JobState
from tests.json_answers import checked
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


@pytest.mark.parametrize("content", ["", "please\n", "\x1b[2J", "f" * 70_000])
def test_a_file_that_was_touched_is_a_request_too(tmp_path: Path, content: str) -> None:
    task = TaskPaths(tmp_path)
    task.save_requested.write_text(content)
    assert wish(task) == ""
    answer(task, "", SaveAnswer(step=3))
    assert not task.save_requested.exists()
    assert not task.save_answered.exists()


@pytest.mark.parametrize(
    "content", ["", "[]", '{"id": "x"}', '{"id": "%s", "step": "seven", "problem": null}']
)
def test_an_answer_that_is_none_is_none(tmp_path: Path, content: str) -> None:
    task = TaskPaths(tmp_path)
    asked = ask(task)
    task.save_answered.write_text(content.replace("%s", asked))
    assert answer_to(task, asked) is None


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


def test_a_saved_checkpoint_is_told_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (request,) = request_checkpoints(a_run(tmp_path, state("RUNNING")))
    _print_json("r", [request], False)
    (job_,) = checked(capsys.readouterr().out)["jobs"]
    assert job_ == {"job_id": "12", "task": None, "path": None}
    answer(request.task, request.id, SaveAnswer(step=40))
    _print_json("r", [request], True)
    (job_,) = checked(capsys.readouterr().out)["jobs"]
    assert job_["path"] == str(tmp_path / "checkpoints" / "step-40")


def test_whoever_waits_is_told_that_it_could_not_be_written(tmp_path: Path) -> None:
    (request,) = request_checkpoints(a_run(tmp_path, state("RUNNING")))
    answer(request.task, request.id, SaveAnswer(problem="No space left on device."))
    with pytest.raises(StorageError, match=r"No space left on device\. The run goes on"):
        request.wait()


def test_whoever_waits_is_told_that_the_run_ended_and_the_request_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = state("FAILED", exit_code=1)
    run = a_run(tmp_path, state("RUNNING"), state("RUNNING"), over)
    (tmp_path / "checkpoints" / "step-5").mkdir()
    (request,) = run.save_checkpoint()
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now)
    monkeypatch.setattr(saving, "time", clock)
    with pytest.raises(SchedulerError, match=r"ended before it saved .*FAILED.*step-5") as caught:
        request.wait()
    assert caught.value.exit_code == 69
    assert wish(request.task) is None


REFUSED: dict[str, tuple[JobState | None, type[FsdpkitError], str]] = {
    "ended": (state("COMPLETED", exit_code=0), UsageError, "has ended (job 12: COMPLETED"),
    "pending": (state("PENDING"), UsageError, "has not begun (job 12: PENDING"),
    "nobody knows": (None, SchedulerError, "unknown whether job 12"),
}


@pytest.mark.parametrize(("told", "kind", "words"), REFUSED.values(), ids=REFUSED)
def test_a_checkpoint_is_asked_only_of_what_runs(
    tmp_path: Path, told: JobState | None, kind: type[FsdpkitError], words: str
) -> None:
    run = a_run(tmp_path, told)
    (tmp_path / "checkpoints" / "step-5").mkdir()
    with pytest.raises(kind) as caught:
        request_checkpoints(run)
    assert words in str(caught.value)
    assert ("step-5" in str(caught.value)) == words.startswith("has ended")
    assert not run.paths.task().save_requested.exists()


@pytest.mark.parametrize("claimed", [None, "attempt-7", ""])
def test_a_script_that_has_opened_no_checkpoints_is_told_of(
    tmp_path: Path, claimed: str | None
) -> None:
    run = a_run(tmp_path, state("RUNNING"), claimed=claimed)
    with pytest.raises(SchedulerError, match=r"Checkpointer.*never does"):
        request_checkpoints(run)
    assert not run.paths.task().save_requested.exists()


def test_an_array_has_no_task_that_it_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no array task 3"):
        request_checkpoints(a_run(tmp_path, state("RUNNING")), 3)
