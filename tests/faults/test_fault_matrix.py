"""Whatever a cluster does to a run, it reaches its last step, with the losses of a quiet run.

Each case of tests/faults/matrix.py is one run on two nodes of a real Slurm cluster, held in a phase
while something is broken. FSDPKIT_ALL_FAULTS=1 (`make test-faults`) breaks T5 by every fault in
every phase; otherwise it is every fault once, and the phases that take another way through the
code, most of them with the light trainer.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.faults.conftest import LANE, LOST_LANE
from tests.faults.matrix import ALL, CORE, Case
from tests.faults.trial import STEPS, T5, Bed, Trial
from tests.slurm.conftest import T5_LANE

pytestmark = pytest.mark.slurm

T5_ENTRY = "fsdp_t5.py"
EVERYTHING = os.environ.get("FSDPKIT_ALL_FAULTS") == "1"


def described(number: int, case: Case) -> ParameterSet:
    """The case as a parameter, in the lane (tests/conftest.py) in which the fewest wait."""
    if EVERYTHING:
        marks = (pytest.mark.torch, pytest.mark.xdist_group(f"faults-{number % 3}"))
    elif case.trainer == T5:
        marks = (pytest.mark.torch, T5_LANE)
    else:
        marks = (LOST_LANE if case.loses_node else LANE,)
    return pytest.param(case, marks=marks, id=str(case))


CASES = [described(number, case) for number, case in enumerate(ALL if EVERYTHING else CORE)]


@pytest.mark.parametrize("case", CASES)
def test_the_run_reaches_its_last_step_with_the_losses_of_a_quiet_one(case: Case, bed: Bed) -> None:
    trainer = T5 if EVERYTHING else case.trainer
    undisturbed = bed.undisturbed(trainer)
    trial = case.strike(bed, trainer)
    job = trial.wait_end()
    trial.wait_gone()
    try:
        assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")
        assert trial.losses() == undisturbed
        check_records(case, trial, trainer)
        check_checkpoints(trial)
        if case.fault.saves:
            assert trial.steps() == sorted(undisturbed), "a step was repeated"
    except AssertionError as error:
        raise trial.error(f"{case}: {error}") from error


def check_records(case: Case, trial: Trial, trainer: Path) -> None:
    """What the run's records call it, whom they name, and what was then done about it."""
    fault, how = case.fault, case.how
    # Until Slurm has noticed itself that a node is gone, it may refuse the step on the others
    # ("Invalid generic resource"); such an attempt is queued again and counts for none.
    numbers = [n for n in trial.task.attempts() if trial.task.attempt(n).node_events(0).exists()]
    assert numbers[0] == 0
    first = trial.ending(0)
    if not fault.recorded and first is not None and first["cause"] == "done":
        return  # its last seconds were enough; what Slurm then starts again has nothing to do
    assert len(numbers) == (2 if how == "requeue" else 1)
    done = trial.ending(numbers[-1])
    assert done is not None
    assert (done["action"], done["cause"], done["status"]) == ("end", "done", 0)
    launches = trial.launches(numbers[-1])
    assert len(launches) == (2 if how in ("restart", "spare") else 1)
    if how in ("restart", "spare"):
        (trouble,) = trial.troubles()
        assert trouble["cause"] in fault.causes
        assert fault.told in trouble["message"]
        if trouble["cause"] == "hang":
            stacks = trial.task.attempt(0).rank_file(0, "stacks", 0).read_text()
            entry = T5_ENTRY if trainer == T5 else trainer.name
            assert entry in stacks, "where the rank that waits for the other one was"
    if how == "requeue" and fault.recorded:
        ending = trial.ending(0)
        assert ending is not None
        assert ending["cause"] in fault.causes
        assert ending["avoid"] == ([fault.lost] if fault.lost else [])
    if fault.lost:
        assert fault.lost not in launches[-1]
        avoided = trial.dir.parent / "avoided-nodes" / f"{fault.lost}.json"
        assert avoided.exists()


def check_checkpoints(trial: Trial) -> None:
    """None that was whole is lost to the run, and all that have a name are whole."""
    assert max(trial.saved()) == STEPS
    if trial.good and (resumed := trial.resumed_after()):
        assert min(resumed) >= max(trial.good)
    assert trial.damage() == []
