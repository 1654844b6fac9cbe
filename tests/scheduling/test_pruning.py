"""`fsdpkit prune`: which checkpoints may go, and everything that speaks against it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from fsdpkit.runs.checkpoint_writing import claim, now, publish
from fsdpkit.runs.checkpoints import Best, Description
from fsdpkit.runs.layout import RunPaths, TaskPaths
from fsdpkit.runs.record import save
from fsdpkit.scheduling import pruning
from fsdpkit.scheduling.pruning import Holding, prune, survey
from fsdpkit.scheduling.run import Run
from tests.conftest import answer_of
from tests.programs import Fsdpkit
from tests.reporting.made_run import made_run
from tests.runs.trained import flip

OLD, OTHER = "old-20261121-101500-3f2a", "new-20261121-101501-77aa"


def save_checkpoints(task: TaskPaths, *steps: int, by: Best | None = None, best: int = 0) -> None:
    """Whole checkpoints as the trainer publishes them, of a few bytes."""
    mine = claim(task.checkpoints)
    for step in steps:
        draft = mine.draft(step)
        draft.mkdir()
        description = Description(
            step=step,
            saved_at=now(),
            world_size=1,
            optimizer="AdamW",
            versions={},
            progress={},
            files={},
            measured={"eval_loss": 0.1 if step == best else 0.5},
            best_by=by,
        )
        publish(mine, description, {}, {"weights": "x" * 1000}, keep_last=100)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def run(top: Path) -> Run:
    """A run that failed, with checkpoints of the steps 10, 20 and 30."""
    made = made_run(top / OLD, state="FAILED", exit_code=1)
    save_checkpoints(made.paths.task(), 10, 20, 30)
    return made


def steps_of(run: Run, task: int | None = None) -> list[str]:
    return sorted(p.name for p in run.paths.task(task).checkpoints.glob("*step-*"))


def looked_at(run: Run, top: Path) -> Holding:
    (found,) = survey([run.dir], top)
    return found


def test_the_newest_whole_one_stays(run: Run, top: Path) -> None:
    found = looked_at(run, top)
    assert [one.path.name for one in found.spare] == ["step-10", "step-20"]
    assert steps_of(run) == ["step-10", "step-20", "step-30"]  # looking deletes nothing
    read: list[int] = []
    done = prune(found, lambda path, count: read.append(count))
    assert (len(done.deleted), done.problem) == (2, None)
    assert sum(read) >= 1000
    assert steps_of(run) == ["step-30"]


def test_a_newest_one_that_lacks_a_file_is_not_the_one_that_stays(run: Run, top: Path) -> None:
    (run.paths.task().checkpoints / "step-30" / "weights").unlink()
    assert prune(looked_at(run, top)).problem is None
    assert steps_of(run) == ["step-20"]


def test_a_newest_one_with_a_changed_byte_costs_no_other(run: Run, top: Path) -> None:
    """Its size is right, so that only reading it tells."""
    flip(run.paths.task().checkpoints / "step-30" / "weights")
    done = prune(looked_at(run, top))
    assert done.deleted == ()
    assert "weights" in (done.problem or "")
    assert steps_of(run) == ["step-10", "step-20", "step-30"]


def test_without_a_whole_one_all_stay(run: Run, top: Path) -> None:
    for step in (10, 20, 30):
        (run.paths.task().checkpoints / f"step-{step}" / "SHA256SUMS").unlink()
    assert looked_at(run, top).spare == ()


def test_the_best_one_and_what_another_run_starts_from_stay(top: Path) -> None:
    made = made_run(top / OLD, state="FAILED")
    save_checkpoints(made.paths.task(), 10, 20, 30, 40, by=Best("eval_loss"), best=20)
    start = {"checkpoint": {"start": f"runs/{OLD}/checkpoints/step-10"}}
    job = {"name": "new", "training": start}
    made_run(top / OTHER, state=None, job=job, work_dir=str(top.parent))
    prune(looked_at(made, top))
    assert steps_of(made) == ["step-10", "step-20", "step-40"]


def test_each_task_of_an_array_keeps_its_own(top: Path) -> None:
    made = made_run(top / OLD, array=[0, 3])
    save_checkpoints(made.paths.task(0), 10, 20)
    save_checkpoints(made.paths.task(3), 10)
    prune(looked_at(made, top))
    assert (steps_of(made, 0), steps_of(made, 3)) == (["step-20"], ["step-10"])


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "SUSPENDED", "NODE_FAIL", "WHATEVER"])
def test_a_run_that_may_go_on_is_left_alone(
    top: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    made = made_run(top / OLD, state=None)
    save_checkpoints(made.paths.task(), 10, 20)
    from fsdpkit.scheduling.run_states import Standing
    from fsdpkit.scheduling.states import JobState

    def standing(runs: list[tuple[RunPaths, object]]) -> list[Standing]:
        told = {made.record.job_id or "": JobState(state, "squeue")}
        return [Standing(made.record, told) for _ in runs]

    monkeypatch.setattr(pruning, "standings", standing)
    found = looked_at(made, top)
    assert found.spare == ()
    assert "is not over" in (found.why_not or "")


def test_a_run_whose_job_nobody_knows_is_left_alone(top: Path) -> None:
    made = made_run(top / OLD, state=None)  # the local cluster has no such job
    save_checkpoints(made.paths.task(), 10, 20)
    found = looked_at(made, top)
    assert (found.spare, found.kept) == ((), ())
    assert found.why_not


def test_a_run_that_is_resumed_between_the_question_and_the_answer(run: Run, top: Path) -> None:
    found = looked_at(run, top)
    from fsdpkit.runs.record import JobRecord

    save(run.paths, run.record.with_job(JobRecord(job_id="8", nodes=2, ranks_per_node=2)))
    done = prune(found)
    assert done.deleted == ()
    assert done.problem
    assert steps_of(run) == ["step-10", "step-20", "step-30"]


def test_links_are_not_followed(run: Run, top: Path, tmp_path: Path) -> None:
    elsewhere = made_run(tmp_path / "elsewhere" / OTHER, state="FAILED")
    save_checkpoints(elsewhere.paths.task(), 10, 20)
    (run.paths.task().checkpoints / "step-5").symlink_to(
        elsewhere.paths.task().checkpoints / "step-10"
    )
    (top / OTHER).symlink_to(elsewhere.dir)
    bare = made_run(top / "bare-20261121-101502-1111", state="FAILED")
    bare.paths.task().checkpoints.symlink_to(elsewhere.paths.task().checkpoints)
    for found in survey([run.dir, top / OTHER, bare.dir], top):
        prune(found)
    assert steps_of(elsewhere) == ["step-10", "step-20"]
    assert steps_of(run) == ["step-30", "step-5"]


def test_a_link_that_is_put_there_after_the_question(run: Run, top: Path, tmp_path: Path) -> None:
    """`checkpoints` becomes a link to another run's once the survey is over."""
    found = looked_at(run, top)
    elsewhere = made_run(tmp_path / "elsewhere" / OTHER, state="FAILED")
    save_checkpoints(elsewhere.paths.task(), 10, 20, 30)
    place = run.paths.task().checkpoints
    place.rename(tmp_path / "aside")
    place.symlink_to(elsewhere.paths.task().checkpoints)
    done = prune(found)
    assert done.deleted == ()
    assert done.problem
    assert steps_of(elsewhere) == ["step-10", "step-20", "step-30"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_user_s_run_is_left_alone_even_by_root(run: Run, top: Path) -> None:
    os.chown(run.dir, 65534, 65534)
    found = looked_at(run, top)
    assert found.spare == ()
    assert "belongs to user 65534" in (found.why_not or "")


def test_the_command_deletes_only_after_a_yes(run: Run, fsdpkit: Fsdpkit) -> None:
    done = fsdpkit("prune", "--older", "0", status=0)
    assert "2 of 3 checkpoints" in done.stdout
    assert "nothing was deleted" in done.stderr
    told = answer_of(fsdpkit("prune", OLD, "--json"))
    assert told["schema"] == "fsdpkit.prune/1"
    assert told["deleted"] == []
    assert len(told["runs"][0]["spare"]) == 2
    assert len(steps_of(run)) == 3
    assert fsdpkit("prune", "--yes").returncode == 0  # it ended too recently
    assert len(steps_of(run)) == 3
    told = answer_of(fsdpkit("prune", "--older", "0", "--yes", "--json"))
    assert len(told["deleted"]) == 2
    assert steps_of(run) == ["step-30"]


@pytest.mark.parametrize(("typed", "left"), [(b"n\n", 3), (b"\n", 3), (b"y\n", 1)])
def test_a_person_at_a_terminal_is_asked(run: Run, tmp_path: Path, typed: bytes, left: int) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fsdpkit", "prune", OLD],
        cwd=tmp_path,
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    os.close(slave)
    os.write(master, typed)
    out, _ = process.communicate(timeout=300)
    os.close(master)
    assert b"keep checkpoints/step-30" in out
    assert len(steps_of(run)) == left
