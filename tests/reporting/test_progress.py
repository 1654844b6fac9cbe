"""How far a training is, read from the end of its metrics."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.reporting.status import progress
from fsdpkit.reporting.status.progress import TrainingProgress, progress_of
from fsdpkit.runs.history import Attempt, History, Launch
from fsdpkit.runs.outcomes import Ending

JOB = {"training": {"steps": 1000}}
Write = Callable[..., History]


def step(number: int, time_s: float, **fields: Any) -> dict[str, Any]:
    line = {
        "time_s": time_s,
        "step": number,
        "loss": 2.5,
        "step_time_s": 1.0,
        "tokens_per_s": 900.0,
    }
    return {**line, **fields}


@pytest.fixture
def written(tmp_path: Path) -> Write:
    """Writes metrics.jsonl and gives the history of that run."""

    def write(lines: Sequence[object], **fields: Any) -> History:
        text = "".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines)
        (tmp_path / "metrics.jsonl").write_text(text)
        known = {"run": tmp_path, "array_task": None, "dir": tmp_path}
        return History(**{**known, "attempts": (), "checkpoints": (), **fields})

    return write


def attempt(number: int = 0, **fields: Any) -> Attempt:
    return Attempt(number=number, dir=Path("/"), job_id="1", **fields)


def test_the_newest_step_and_the_pace_by_the_clock_tell_what_is_left(written: Write) -> None:
    """Two seconds a step by the clock, checkpoints included, though a step takes one."""
    history = written([step(10 * k, 100.0 + 20 * k, mfu=0.4) for k in range(1, 6)])
    told = progress_of(history, JOB)
    assert (told.step, told.steps, told.loss, told.tokens_per_s) == (50, 1000, 2.5, 900.0)
    assert (told.step_time_s, told.mfu, told.updated_s) == (1.0, 0.4, 200.0)
    assert told.eta_s == 950 * 2.0


@pytest.mark.parametrize("job", [JOB, {"training": {"steps": 0, "epochs": 3}}, {}])
def test_the_trainer_knows_best_how_many_steps_there_are(written: Write, job: Any) -> None:
    """The length of an epoch, and a loop of somebody's own, stand in no job."""
    lines = [step(10 * k, 100.0 + 20 * k, planned_steps=60) for k in range(1, 6)]
    told = progress_of(written(lines), job)
    assert (told.step, told.steps, told.eta_s) == (50, 60, 20.0)


def test_what_lies_between_two_starts_is_no_training_time(written: Write) -> None:
    """The run waited for a week in the queue, and went on exactly where it was."""
    launch = Launch(number=0, began_s=600_000.0, nodes=("n1",))
    lines = [step(10, 100.0), step(20, 110.0), step(30, 600_010.0), step(40, 600_020.0)]
    history = written(lines, attempts=(attempt(), attempt(1, launches=(launch,))))
    assert progress_of(history, JOB).eta_s == 960.0


def test_steps_done_again_after_a_crash_do_not_count_twice(written: Write) -> None:
    lines = [step(10, 0.0), step(50, 1.0), step(30, 100.0), step(40, 110.0)]
    assert progress_of(written(lines), JOB).eta_s == 960.0


def test_evaluations_checkpoints_and_torn_lines_are_no_steps(written: Write) -> None:
    checkpoint = {"time_s": 3.0, "step": 20, "checkpoint_bytes": 1}
    lines = [step(10, 1.0), {"time_s": 2.0, "step": 20, "eval_loss": 9.0}, checkpoint, '{"step": 9']
    told = progress_of(written(lines), JOB)
    assert (told.step, told.loss, told.updated_s) == (10, 2.5, 1.0)


def test_a_loss_that_was_not_finite_or_skipped_is_not_made_up(written: Write) -> None:
    lines = [step(10, 1.0, loss=3.5), step(20, 2.0, loss=None)]
    assert progress_of(written(lines), JOB).loss == 3.5
    assert progress_of(written([step(20, 2.0, loss=None)]), JOB).loss is None


def test_an_attempt_that_has_ended_has_no_time_left(written: Write) -> None:
    ending = Ending(action="requeue", status=75, cause="time-limit", why="")
    history = written([step(10, 1.0), step(20, 2.0)], attempts=(attempt(ending=ending),))
    assert progress_of(history, JOB).eta_s is None


def test_the_newest_checkpoint_is_told_with_its_time_whoever_saved_it(written: Write) -> None:
    history = written([])
    for k in (10, 20):
        made = history.dir / "checkpoints" / f"step-{k}"
        made.mkdir(parents=True)
        os.utime(made, (k / 2, k / 2))
    told = progress_of(history, JOB)
    assert (told.checkpoint_step, told.checkpoint_s, told.step) == (20, 10.0, None)
    mark = history.dir / "trainer" / "checkpoint-30" / "fsdpkit.json"
    mark.parent.mkdir(parents=True)
    mark.write_text('{"run": "t5-1", "step": 30, "files": {}}')
    os.utime(mark, (40, 40))
    (mark.parent.with_name("checkpoint-40")).mkdir()  # without a mark: being written
    told = progress_of(history, JOB)
    assert (told.checkpoint_step, told.checkpoint_s) == (30, 40.0)


@pytest.mark.parametrize(
    "job", [{}, {"training": None}, {"training": {}}, {"training": {"steps": "x"}}]
)
def test_a_trainer_of_another_make_has_no_progress_and_no_error(
    job: dict[str, Any], tmp_path: Path
) -> None:
    history = History(run=tmp_path, array_task=None, dir=tmp_path, attempts=(), checkpoints=())
    assert progress_of(history, job) == TrainingProgress()


def test_only_the_end_of_a_long_file_is_read(
    written: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a line in between that alone is longer than what is read first."""
    monkeypatch.setattr(progress, "_TAILS_BYTES", (512, 4096, 1 << 14))
    long = step(30, 3.0, rank_compute_s=[0.1] * 200)
    history = written(["x" * 100_000, step(10, 1.0), step(20, 2.0), long])
    assert progress_of(history, JOB).step == 30
    read, parsed = 0, progress.parsed

    def counted(line: bytes) -> Any:
        nonlocal read
        read += len(line)
        return parsed(line)

    monkeypatch.setattr(progress, "parsed", counted)
    progress_of(history, JOB)
    assert read < 50_000
