"""Whose job a number is: what a scheduler says of it is believed, or not, and why is said."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fsdpkit.errors import SchedulerError, UsageError
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import RunRecord, save
from fsdpkit.scheduling import slurm_answers
from fsdpkit.scheduling.job_mark import (
    JobMark,
    JobTraits,
    MarkedJob,
    sacct_traits,
    scontrol_traits,
    squeue_traits,
)
from fsdpkit.scheduling.resuming import jobs_ahead
from fsdpkit.scheduling.run import Run
from tests.conftest import Command
from tests.scheduling.records import job, run_of

MARK = JobMark("fsdpkit:r", 501, "r/job.sbatch", "pitzer", 1000.0)
OURS = JobTraits("fsdpkit:r", 501, "/runs/r/job.sbatch", 1000.0, "pitzer")


@pytest.mark.parametrize(
    ("seen", "fits"),
    [
        (OURS, True),
        (replace(OURS, script=None, submit_s=5000.0), True),  # queued again
        (replace(OURS, comment="checked by the centre"), True),  # by a job_submit plugin
        (replace(OURS, comment="", script="sbatch --parsable /runs/r/job.sbatch"), True),
        (JobTraits("", 501, None, 1000.5, "pitzer"), True),
        (JobTraits("", 501, None, 1000.5, "ascend"), False),  # two clusters, one moment
        (JobTraits("", 501, None, 1000.5, None), False),
        (JobTraits("", 501, None, 2000.0, "pitzer"), False),  # a controller that counts anew
        (JobTraits("fsdpkit:s", 501, "/runs/s/job.sbatch", 2000.0, "pitzer"), False),
        (JobTraits(), False),  # half an answer
    ],
)
def test_a_job_is_known_by_comment_or_script_or_by_cluster_and_time(
    seen: JobTraits, fits: bool
) -> None:
    assert MARK.fits(seen) is fits


@pytest.mark.parametrize("seen", [replace(OURS, owner=502), replace(OURS, owner=None)])
def test_nobody_else_s_job_is_touched_whatever_its_comment(seen: JobTraits) -> None:
    with pytest.raises(SchedulerError, match="is not the one"):
        MarkedJob("7", MARK).refuse_another(seen)
    MarkedJob("7", MARK).refuse_another(OURS)


def test_a_run_of_which_nothing_but_its_comment_is_known_fits_no_empty_answer() -> None:
    mark = JobMark("fsdpkit:r", 501)
    assert not mark.fits(JobTraits("", 501, "", None, None))


def test_traits_are_read_past_what_free_text_holds() -> None:
    row = "7|RUNNING|None|n1|1|2|3|501|1000|/a|b/r/job.sbatch|fsdpkit:r"
    assert squeue_traits(row)["7"] == JobTraits("fsdpkit:r", 501, "/a|b/r/job.sbatch", 1000.0)
    assert squeue_traits("7|RUNNING|None|n1|1|2") == {}
    assert squeue_traits("7|RUNNING|None|n1|1|2|3|501|1000|/a/r/jo")["7"] == JobTraits()
    row = "7_[0-1]|FAILED|1:0|0:0||n1|1000|2|3|pitzer|sbatch 'a|b' /r/job.sbatch|"
    told = sacct_traits(row)
    assert [*told] == ["7_0", "7_1"]
    assert told["7_0"] == JobTraits("", None, "sbatch 'a|b' /r/job.sbatch", 1000.0, "pitzer")
    line = (
        "JobId=7 UserId=alex(501) JobState=RUNNING SubmitTime=1000 Command=/r/job.sbatch "
        "WorkDir=/ AdminComment=x Comment=fsdpkit:r StdErr=/r"
    )
    assert scontrol_traits(line)["7"] == JobTraits("fsdpkit:r", 501, "/r/job.sbatch", 1000.0)
    assert scontrol_traits("JobId=7 JobState=RUNN")["7"].comment is None


# Two clusters with one home, one controller that counted from 1 again, one that says nothing

ANOTHER = "7|RUNNING|None|n1|1|2|3|{owner}|4000|/b/precious.sh|(null)"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Job 7 of cluster pitzer, which trained; Slurm's commands are this test's, and note calls."""
    directory = tmp_path / "runs" / "r"
    (directory / "attempt-0").mkdir(parents=True)
    taken = msgspec.structs.replace(job("7"), slurm_cluster="pitzer", slurm_submit_s=1000.0)
    save(RunPaths(directory), run_of(taken))
    return Run.open(directory)


@pytest.fixture
def slurm(command: Command, tmp_path: Path, run: Run) -> Callable[..., None]:
    def says(cluster: str = "pitzer", squeue: str = "", fails: str = "") -> None:
        row = squeue.format(owner=os.getuid())
        traits = row.split("|", 7)[-1]
        broken = f"echo '{fails}' >&2; exit 1" if fails else ""
        texts = {
            "squeue": broken or f'case "$*" in *%T*) echo "{row}" ;; *) echo "{traits}" ;; esac',
            "sacct": "echo 'Slurm accounting storage is disabled' >&2; exit 1",
            "scontrol": broken
            or f'case "$*" in *config*) echo "ClusterName = {cluster}"; '
            "echo SLURM_VERSION=24.11.5 ;; "
            f"*update* | *release*) echo $* >> {tmp_path}/done ;; esac",
            "scancel": f"echo $* >> {tmp_path}/done",
        }
        for name, text in texts.items():
            command(name, text)

    return says


def untouched(run: Run) -> bool:
    return not (run.dir.parent.parent / "done").exists()


@pytest.mark.parametrize("row", [ANOTHER, ""])
def test_the_run_of_another_cluster_is_neither_believed_nor_touched(
    run: Run, slurm: Callable[..., None], row: str
) -> None:
    slurm("ascend", row)
    standing = run.standing()
    assert standing.states == {"7": None}
    assert standing.elsewhere
    assert "pitzer" in str(standing.strange)
    assert "ascend" in str(standing.strange)
    with pytest.raises(SchedulerError, match="pitzer"):
        run.cancel()
    with pytest.raises(UsageError, match="pitzer"):
        jobs_ahead(run, run.standing())
    assert untouched(run)


def test_a_number_that_was_given_again_is_another_job(run: Run, slurm: Callable[..., None]) -> None:
    slurm("pitzer", ANOTHER)
    standing = run.standing()
    assert standing.states == {"7": None}
    assert not standing.elsewhere
    assert "another" in str(standing.strange)
    with pytest.raises(SchedulerError, match="is not the one"):
        run.cancel()
    assert jobs_ahead(run, standing) == []  # it began, and nobody is at work any more
    assert untouched(run)


def test_where_its_nodes_still_write_no_second_job_is_made(
    run: Run, slurm: Callable[..., None]
) -> None:
    """Two clusters of one name: what this one does not know, the other may run."""
    slurm("pitzer", ANOTHER)
    (run.dir / "attempt-0" / "node-0.samples.jsonl").touch()
    with pytest.raises(UsageError, match="still write"):
        jobs_ahead(run, run.standing())


def test_what_never_began_and_cannot_be_told_is_not_resumed(
    run: Run, slurm: Callable[..., None]
) -> None:
    slurm("pitzer", ANOTHER)
    (run.dir / "attempt-0").rmdir()
    with pytest.raises(UsageError, match="submit it again"):
        jobs_ahead(run, run.standing())


def test_a_controller_that_is_away_decides_nothing(run: Run, slurm: Callable[..., None]) -> None:
    slurm(fails="slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    standing = run.standing()
    assert (standing.states, standing.answered) == ({"7": None}, False)
    assert not run.client().forgot(run.marked("7"))
    with pytest.raises(SchedulerError, match="Unable to contact"):
        run.cancel()
    assert untouched(run)


def test_the_own_job_is_believed_and_cancelled(run: Run, slurm: Callable[..., None]) -> None:
    slurm("pitzer", "7|RUNNING|None|n1|1|2|3|{owner}|4000|/x|fsdpkit:r")
    state = run.state()
    assert state is not None
    assert state.phase == "running"
    run.cancel()
    assert not untouched(run)


def test_no_other_job_than_the_run_s_has_a_mark(run: Run) -> None:
    with pytest.raises(SchedulerError, match="no job"):
        run.marked("8")


def test_what_a_receipt_cannot_hold_is_not_recorded(
    run: Run, slurm: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_answers, "_KEPT_S", 0.0)  # asked anew
    slurm("pit;zer", "7|RUNNING|None|n1|1|2|3|{owner}|4000|/x|fsdpkit:r")
    assert run.client().receipt(run.marked("7")) == (None, 4000.0)
    slurm("pitzer", ANOTHER)
    assert run.client().receipt(run.marked("7")) == ("pitzer", None)


def test_a_record_keeps_where_its_job_is(run: Run) -> None:
    read = msgspec.json.decode(msgspec.json.encode(run.record), type=RunRecord)
    assert (read.job.slurm_cluster, read.job.slurm_submit_s) == ("pitzer", 1000.0)
