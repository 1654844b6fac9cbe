"""What befalls one task of an array on a real cluster concerns that task alone."""

from __future__ import annotations

import pytest

from tests.faults import injectors as by
from tests.faults.conftest import LANE
from tests.faults.trial import STEPS, Bed

pytestmark = [pytest.mark.slurm, LANE]


def test_each_task_survives_what_befalls_it_and_the_other_notices_nothing(
    bed: Bed, undisturbed: dict[int, float]
) -> None:
    """One is warned, saves and is queued again; of the other a rank is killed and started again."""
    warned, crashed = trials = bed.submit_array(2, hold="training")
    for trial in trials:
        trial.wait_held()
    warned.strike(by.warn_shell)
    crashed.strike(by.kill_rank)
    for trial in trials:
        job = trial.wait_end()
        try:
            assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")
            assert trial.losses() == undisturbed
            assert max(trial.saved()) == STEPS
            assert trial.damage() == []
        except AssertionError as error:
            raise trial.error(str(error)) from error
    assert warned.task.attempts() == [0, 1]
    assert warned.steps() == sorted(undisturbed), "a step was repeated"
    assert crashed.task.attempts() == [0]
    assert len(crashed.launches()) == 2
    (trouble,) = crashed.troubles()
    assert (trouble["cause"], f"rank 1 on {by.LEFT}" in trouble["message"]) == ("crash", True)
