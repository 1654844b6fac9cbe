"""Where `[retry]` or common sense says stop, the job ends soon, says why, and how to go on.

Each run is then resumed, as its last words say, and ends with the losses of a quiet one.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.conftest import LANE
from tests.faults.outcomes import Losses, chained, ended, resumed
from tests.faults.trial import Bed, Trial

pytestmark = [pytest.mark.slurm, LANE]


AT_STEP_12 = {
    "rank": 1,
    "steps": [12],
    "error": "RuntimeError",
    "message": "a sample that cannot be read",
    "once": False,
}


def test_a_crash_that_comes_back_at_the_same_step_ends_the_job_with_the_diagnosis(
    bed: Bed, undisturbed: Losses
) -> None:
    """And no job that is chained behind it starts, which would only meet the same."""
    trial = bed.submit(breaks=AT_STEP_12, hold="training")
    behind = chained(trial)
    trial.release()
    why = ended(trial, 1, "crash")
    assert bed.cluster.wait_job(behind)["JobState"] == "CANCELLED"
    assert re.search(rf"cancelled.*\b{behind}\b", trial.batch_log())
    status = json.loads(bed.fsdpkit("status", str(trial.dir), "--json").stdout)
    assert status["states"] == {trial.job_id: "FAILED"}
    assert json.loads(bed.fsdpkit("diagnose", str(trial.dir), "--json").stdout)["rank"] == 1
    assert "rank 1 on node2: RuntimeError: a sample that cannot be read" in why
    assert "step 12 again" in why
    assert len(trial.launches()) == 2
    (trial.directory / "raise.json").unlink()
    assert f"mend the cause (fsdpkit diagnose {trial.dir})" in trial.batch_log()
    resumed(trial, undisturbed, told=False)


def test_a_run_saves_and_goes_on_or_does_not_come_back_as_it_is_asked(
    bed: Bed, undisturbed: Losses
) -> None:
    """`checkpoint save`, then `cancel --save`. Once the job has ended, whoever asks is told so."""
    trial = bed.submit(hold="training", at=12, sets=["training.checkpoint.keep_last=9"])
    trial.wait_held()
    with ThreadPoolExecutor() as pool:
        asking = pool.submit(bed.fsdpkit, "checkpoint", "save", str(trial.dir), "--wait")
        trial.until(trial.task.save_requested.exists, "the request")
        trial.go_on_to("training", 16)
        done = asking.result()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"asked {trial.dir.name} (job {trial.job_id}) to save a checkpoint and to go on\n"
        f"step-13 is saved: {trial.task.checkpoints}/step-13\n"
    )
    trial.wait_held()
    assert trial.saved() == [5, 10, 13, 15]
    assert not trial.task.save_requested.exists()

    def cancel(_: Trial) -> None:
        done = bed.fsdpkit("cancel", str(trial.dir), "--save")
        assert done.returncode == 0, done.stderr
        trial.wait_warned()

    trial.strike(cancel)
    ended(trial, 75, "cancelled")
    assert trial.saved() == [5, 10, 13, 15, 17]
    late = bed.fsdpkit("checkpoint", "save", str(trial.dir))
    assert late.returncode == 2
    assert "has ended" in late.stderr
    assert "The newest checkpoint is step-17" in late.stderr
    resumed(trial, undisturbed)
    assert trial.steps() == sorted(undisturbed), "a step was repeated"
