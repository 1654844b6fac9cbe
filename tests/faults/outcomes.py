"""How a trial that stops by policy has ended, and that it can go on from there."""

from __future__ import annotations

import json

from tests.faults.trial import STEPS, Phase, Trial

Losses = dict[int, float]


def ended(trial: Trial, status: int, cause: str, *, attempt: int = 0) -> str:
    """The sentence with which the job has ended, with this status, in its first attempt (which is
    the run's `attempt`); nothing was queued again."""
    job = trial.wait_end()
    ending = trial.ending(trial.task.attempts()[-1])
    try:
        assert (job["JobState"], job["ExitCode"]) == ("FAILED", f"{status}:0")
        assert ending is not None
        assert (ending["action"], ending["cause"], ending["status"]) == ("end", cause, status)
        assert trial.task.attempts()[-1] == attempt
    except AssertionError as error:
        raise trial.error(str(error)) from error
    return str(ending["why"])


def resumed(trial: Trial, undisturbed: Losses, *, told: bool = True) -> None:
    """`fsdpkit resume`, as the job's last words have it, takes the run to its end."""
    words = f"fsdpkit: to go on: fsdpkit resume {trial.dir}"
    assert words in trial.batch_log() or not told
    done = trial.bed.fsdpkit("resume", str(trial.dir), "--wait")
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        assert trial.losses() == undisturbed
        assert max(trial.saved()) == STEPS
        assert trial.damage() == []
    except AssertionError as error:
        raise trial.error(str(error)) from error


def resumed_until(trial: Trial, phase: Phase, at: int) -> Trial:
    """The run in a new job, which is held there."""
    trial.forget(phase)
    (trial.directory / f"hold-{phase}").write_text(str(at))
    return Trial(trial.bed, trial.directory, trial.dir, _next_job(trial), phase, at=at)


def chained(trial: Trial) -> str:
    """Id of one more job of the run, which is to start if this one ends short of its goal."""
    return _next_job(trial, "--chained")


def _next_job(trial: Trial, *words: str) -> str:
    done = trial.bed.fsdpkit("resume", str(trial.dir), *words, "--json")
    if done.returncode:
        raise trial.error(done.stderr)
    return str(json.loads(done.stdout)["job_id"])
