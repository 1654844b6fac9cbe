"""`submit --here`: what is taken from the allocation, what is refused, whose steps are ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpkit.config.allocation import Allocation
from fsdpkit.errors import UsageError
from fsdpkit.launching.ending import job_told
from fsdpkit.runs.record import JobRecord
from fsdpkit.scheduling import submission
from fsdpkit.scheduling.here import allocation as asking
from fsdpkit.scheduling.here import request as requests
from fsdpkit.scheduling.here import state as states
from fsdpkit.scheduling.here.commands import AllocationStep
from fsdpkit.scheduling.job_mark import JobMark, JobTraits, MarkedJob
from fsdpkit.scheduling.opened import OpenRun
from fsdpkit.scheduling.states import JobState
from tests.programs import Write
from tests.scheduling.records import recorded

NODES = Allocation(
    job_id="7",
    nodes=("n1", "n2", "n3"),
    gpus=2,
    cpus=8,
    left_s=1800,
    partition="debug",
    account=None,
    cluster="c",
    submit_s=100.0,
)
RUN = "run-1"
OWN = JobRecord(job_id="7", nodes=2, ranks_per_node=1, here=True)
ANOTHER = JobRecord(job_id="8", nodes=2, ranks_per_node=1)
RECORD = recorded(id=RUN, name="run", ranks_per_node=1, here=True, version="1")


def told(monkeypatch: pytest.MonkeyPatch, write_script: Write, **asked: object) -> str:
    monkeypatch.setattr(requests, "allocation_here", lambda: NODES)
    job = str(write_script("t.py", "pass"))
    request = submission.SubmitRequest(job=job, cluster="generic", here=True, **asked)  # type: ignore[arg-type]
    return submission.script_of(submission.plan(request)[0])


def test_what_nobody_asked_for_is_the_allocations(
    monkeypatch: pytest.MonkeyPatch, write_script: Write
) -> None:
    script = told(monkeypatch, write_script, gpus=1)
    for line in ("--nodes=3", "--gpus-per-node=1", "--time=00:30:00", "--no-requeue"):
        assert f"#SBATCH {line}\n" in script
    assert "SRUN=(--overlap --nodelist=n1,n2,n3 --job-name=t-RUN-ID)" in script
    assert script.count('srun "${SRUN[@]}" --') == 3
    assert "srun --" not in script.replace("(srun --wait)", "")


@pytest.mark.parametrize(
    "asked", [{"nodes": 4}, {"gpus": 3}, {"time": "60"}, {"array": "0-1"}, {"spare": 1}]
)
def test_more_than_there_is_is_refused(
    asked: dict[str, object], monkeypatch: pytest.MonkeyPatch, write_script: Write
) -> None:
    with pytest.raises(UsageError, match="--here"):
        told(monkeypatch, write_script, **asked)


def test_outside_an_allocation_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(UsageError, match="salloc"):
        asking.allocation_here()


def test_the_smallest_node_counts() -> None:
    text = (
        "JobId=7 Nodes=n[1-2] CPU_IDs=0-3,8 Mem=0 GRES=gpu:a100:4(IDX:0-3),nic:1 "
        "Nodes=n3 CPU_IDs=0-7 Mem=0 GRES=gpu:2(IDX:0,2) MinCPUsNode=1"
    )
    assert asking.per_node(text) == (5, 2)
    assert asking.per_node("JobId=7 NumNodes=1") == (None, None)


def test_an_allocation_is_never_queued_again(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "JobId=7 JobState=RUNNING Requeue=1 Restarts=1"
    assert (job_told(text).requeue, job_told(text).requeued) == (True, True)
    monkeypatch.setenv("FSDPKIT_HERE", "1")
    assert (job_told(text).requeue, job_told(text).requeued) == (False, False)


@pytest.mark.parametrize("change", [{"array": [0, 1]}, {"earlier": [ANOTHER, OWN]}])
def test_a_run_whose_jobs_could_be_mistaken_goes_on_in_no_allocation(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch, write_script: Write
) -> None:
    monkeypatch.setattr(requests, "allocation_here", lambda: NODES)
    asked = submission.SubmitRequest(job=str(write_script("t.py", "pass")), cluster="generic")
    load = submission.asked_for
    run = OpenRun(Path("runs/r"), RECORD)
    assert requests.again_in_allocation(run, asked, load, None)[1] == NODES
    run = run.with_record(msgspec.structs.replace(RECORD, **change))
    with pytest.raises(UsageError, match="leave out --here"):
        requests.again_in_allocation(run, asked, load, None)


def test_in_the_allocation_of_its_newest_job_a_run_has_no_other_job() -> None:
    again = msgspec.structs.replace(OWN, first_attempt=4, nodes=1)
    assert [(one.job_id, one.first_attempt) for one in RECORD.with_job(again).jobs] == [("7", 0)]
    assert len(RECORD.with_job(ANOTHER).jobs) == 2


class TestState:
    @pytest.fixture
    def job(self, tmp_path: Path) -> MarkedJob:
        (tmp_path / RUN / "here").mkdir(parents=True)
        mark = JobMark("fsdpkit:run-1", 5, None, "c", 100.0, tmp_path / RUN / "here")
        return MarkedJob("7", mark)

    @pytest.fixture
    def steps(self, monkeypatch: pytest.MonkeyPatch) -> list[AllocationStep]:
        names = f"{states.SCRIPT_STEP}{RUN}", RUN, "bash"
        steps = [AllocationStep(f"7.{number}", name, "n1") for number, name in enumerate(names)]
        monkeypatch.setattr(states, "steps_of", lambda job_id, cluster=None: steps)
        return steps

    def write(self, job: MarkedJob, state: str) -> None:
        assert job.mark.here is not None
        (job.mark.here / "state.json").write_text(json.dumps({"state": state, "source": "here"}))

    @pytest.mark.parametrize(
        ("written", "allocation", "state"),
        [
            ("FAILED", "RUNNING", "FAILED"),
            ("RUNNING", "RUNNING", "RUNNING"),
            ("RUNNING", "COMPLETED", "CANCELLED"),
            ("RUNNING", "TIMEOUT", "TIMEOUT"),
            ("COMPLETED", "TIMEOUT", "COMPLETED"),
        ],
    )
    def test_it_is_the_scripts_own_while_the_allocation_lasts(
        self, written: str, allocation: str, state: str, job: MarkedJob, steps: object
    ) -> None:
        self.write(job, written)
        found = states.state_here(job, JobState(allocation, "squeue"), None)
        assert found is not None
        assert found.state == state

    def test_without_its_step_it_is_lost(self, job: MarkedJob, steps: list[AllocationStep]) -> None:
        self.write(job, "RUNNING")
        del steps[0]
        found = states.state_here(job, JobState("RUNNING", "squeue"), None)
        assert found is not None
        assert found.over or found.may_return
        assert not found.succeeded

    def test_only_the_runs_own_steps_are_ended(
        self, job: MarkedJob, steps: list[AllocationStep], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ended: list[object] = []
        monkeypatch.setattr(states, "warn_step", lambda step, cluster: ended.append(step))
        monkeypatch.setattr(states, "end_steps", lambda steps, cluster: ended.append(steps))
        assert job.mark.here is not None
        states.end_here(job, job.mark.here, None)
        del steps[0]
        states.end_here(job, job.mark.here, None)
        assert ended == ["7.0", ["7.1"]]

    def test_another_job_of_the_number_is_another(self, job: MarkedJob) -> None:
        assert job.mark.fits(JobTraits("", 5, "x.sh", 100.0, "c"))
        assert not job.mark.fits(JobTraits("", 5, "x.sh", 200.0, "c"))
        assert not job.mark.fits(JobTraits("", 5, "x.sh", 100.0, "d"))
