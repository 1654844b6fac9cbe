"""Hiccups of the network that come one after the other: the run goes on, whoever they hit."""

from __future__ import annotations

import pytest

from tests.faults import injectors as by
from tests.faults.conftest import LOST_LANE
from tests.faults.outcomes import Losses
from tests.faults.trial import HELD_AT, Bed, Trial

pytestmark = [pytest.mark.slurm, LOST_LANE]


def hiccup(trial: Trial, node: str, attempt: int) -> None:
    """The node's cable is out until the agents have noticed, then in again."""
    hold = trial.directory / "hold-training"
    at = [trial.directory / f"at-training-rank-{rank}" for rank in (0, 1)]
    for file in at:
        trial.until(file.exists, file.name)
        file.unlink()
    trial.bed.cluster.cut(node)
    hold.unlink()
    verdict = trial.task.attempt(attempt).verdict
    trial.until(verdict.exists, f"verdict of attempt {attempt}")
    hold.write_text(str(HELD_AT["training"]))
    trial.bed.cluster.join(node)


def test_two_hiccups_leave_enough_nodes_to_go_on_with(bed: Bed, undisturbed: Losses) -> None:
    """On three nodes, of which the job needs two. The second hits the head node."""
    trial = bed.submit(hold="training")
    hiccup(trial, by.LEFT, 0)
    hiccup(trial, by.HEAD, 1)
    trial.until((trial.directory / "at-training-rank-0").exists, "the third attempt's ranks")
    trial.release()
    job = trial.wait_end()
    trial.wait_gone()
    try:
        assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")
        assert trial.losses() == undisturbed
        endings = [trial.ending(n) or {} for n in trial.task.attempts()]
        assert [one["avoid"] for one in endings] == [[by.LEFT], [by.HEAD], []]
        assert [one["left_out"] for one in endings] == [[by.LEFT], [by.HEAD], []]
        assert job["ExcNodeList"] == by.HEAD
        assert "Killed" not in trial.batch_log()
    except AssertionError as error:
        raise trial.error(str(error)) from error

    again = bed.submit(runs=trial.dir.parent)
    assert bed.cluster.wait_job(again.job_id)["JobState"] == "COMPLETED"
