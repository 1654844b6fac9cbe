"""Whatever a cluster does to a run, it reaches its last step, with the losses of a quiet run.

Each case of tests/faults/matrix.py is one run on two nodes of a real Slurm cluster, held in a phase
while something is broken. FSDPKIT_ALL_FAULTS=1 (`make test-faults`) breaks T5 by every fault in
every phase; otherwise it is every fault once, and the phases that take another way through the
code, most of them with the light trainer.
"""

from __future__ import annotations

import os
from itertools import zip_longest
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.faults.conftest import LANE, LOST_LANE
from tests.faults.courses import COURSES, Course, Standing
from tests.faults.matrix import ALL, Case
from tests.faults.trial import STEPS, T5, Bed, Trial
from tests.slurm.conftest import T5_LANE

pytestmark = pytest.mark.slurm

T5_ENTRY = "fsdp_t5.py"
EVERYTHING = os.environ.get("FSDPKIT_ALL_FAULTS") == "1"


def described(number: int, course: Course) -> ParameterSet:
    """The course as a parameter, in the lane (tests/conftest.py) in which the fewest wait."""
    if EVERYTHING:
        marks = (pytest.mark.torch, pytest.mark.xdist_group(f"faults-{number % 3}"))
    elif course.trainer == T5:
        marks = (pytest.mark.torch, T5_LANE)
    else:
        lost = any(blow.case.loses_node for blow in course.blows)
        marks = ((LOST_LANE if lost else LANE),)
    return pytest.param(course, marks=marks, id=course.name)


EACH_ALONE = tuple(Course.alone(case, T5) for case in ALL)
PARAMETERS = [described(*each) for each in enumerate(EACH_ALONE if EVERYTHING else COURSES)]


@pytest.mark.parametrize("course", PARAMETERS)
def test_the_run_reaches_its_last_step_with_the_losses_of_a_quiet_one(
    course: Course, bed: Bed
) -> None:
    undisturbed = bed.undisturbed(course.trainer)
    trial = course.submit(bed)
    for blow, following in zip_longest(course.blows, course.blows[1:]):
        trial.wait_held()
        before = Standing.of(trial)
        trial.injure(blow.case.fault.inject)
        if following:
            anew = blow.case.how != "undisturbed"
            trial.go_on_to(following.case.phase, following.at, anew=anew)
            trial.wait_held()
        else:
            trial.release()
            job = trial.wait_end()
            trial.wait_gone()
        try:
            check_records(blow.case, trial, course.trainer, before)
            check_progress(blow.case, trial, before)
        except AssertionError as error:
            raise trial.error(f"{blow.case}: {error}") from error
    try:
        assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")
        assert trial.losses() == undisturbed
        done = trial.ending(trial.task.attempts()[-1])
        assert done is not None
        assert (done["action"], done["cause"], done["status"]) == ("end", "done", 0)
        assert max(trial.saved()) == STEPS
        assert trial.damage() == []
    except AssertionError as error:
        raise trial.error(f"{course.name}: {error}") from error


def check_records(case: Case, trial: Trial, trainer: Path, before: Standing) -> None:
    """What the run's records call it, whom they name, and what was then done about it."""
    fault, how, struck = case.fault, case.how, before.attempt
    # Until Slurm has noticed itself that a node is gone, it may refuse the step on the others
    # ("Invalid generic resource"); such an attempt is queued again and counts for none.
    later = [n for n in trial.task.attempts() if n > struck]
    later = [n for n in later if trial.task.attempt(n).node_events(0).exists()]
    ending = trial.ending(struck)
    if not fault.recorded and ending is not None and ending["cause"] == "done":
        return  # its last seconds were enough; what Slurm then starts again has nothing to do
    assert len(later) == (how == "requeue")
    again = trial.launches(struck)[before.launches :]
    troubles = trial.troubles(struck)[before.troubles :]
    if how in ("restart", "spare"):
        assert len(again) == 1
        (trouble,) = troubles
        assert trouble["cause"] in fault.causes
        assert fault.told in trouble["message"]
        if trouble["cause"] == "hang":
            stacks = trial.task.attempt(struck).rank_file(0, "stacks", 0).read_text()
            entry = T5_ENTRY if trainer == T5 else trainer.name
            assert entry in stacks, "where the rank that waits for the other one was"
    else:
        assert again == []
    if how == "undisturbed":
        assert troubles == []
    if how == "requeue":
        again = trial.launches(later[0])
        assert len(again) == 1
    if fault.lost:
        assert fault.lost not in again[-1]
    if how == "requeue" and fault.recorded and ending is None:
        # Slurm missed the node, too, and queued the job again before its shell could.
        assert fault.lost
        assert any(trouble["cause"] in fault.causes for trouble in troubles)
        return
    if how == "requeue" and fault.recorded:
        assert ending is not None
        assert ending["cause"] in fault.causes
        assert ending["avoid"] == ([fault.lost] if fault.lost else [])
    if fault.lost:
        avoided = trial.dir.parent / "avoided-nodes" / f"{fault.lost}.json"
        assert avoided.exists()


def check_progress(case: Case, trial: Trial, before: Standing) -> None:
    """No checkpoint that was whole is lost to the run, and no step where there was time to save."""
    resumed = trial.resumed_after()[before.resumes :]
    if trial.good and resumed:
        assert min(resumed) >= max(trial.good)
    if case.fault.saves:
        since = trial.steps()[len(before.steps) :]
        assert not {*since} & {*before.steps}, "a step was repeated"
        assert since == sorted({*since}), "a step was repeated"
