"""The main path as somebody who is not root, and what a second such person can do about it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fsdpkit.runs.events import read_json_lines
from tests.attackers.bed import PersonBed
from tests.config.access_lists import MASK, USER, set_list
from tests.conftest import COLD, Completed, answer_of
from tests.faults.trial import STEPS, T5, Trial
from tests.slurm.conftest import ACCOUNT, USERS_LANE, Person, everything_said
from tests.slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, USERS_LANE]


@pytest.fixture(scope="module")
def module_bed(alex: Person) -> PersonBed:
    return PersonBed.of(alex)


@pytest.fixture
def bed(module_bed: PersonBed) -> Iterator[PersonBed]:
    yield module_bed
    module_bed.mend()


def forked(trial: Trial, node: int) -> list[int]:
    """How many of the node's ranks were forked, by launch."""
    lines = read_json_lines(trial.task.attempt(0).node_events(node))
    return [line["forked"] for line in lines if line["event"] == "ranks-started"]


def owners(top: Path) -> set[int]:
    return {path.lstat().st_uid for path in [top, *top.rglob("*")]}


@pytest.mark.torch
def test_t5_trains_with_warm_ranks_and_over_a_rank_that_is_killed(
    bed: PersonBed, shared_cluster: SlurmCluster
) -> None:
    trial = bed.start(trainer=T5)
    trial.wait_held()
    node, number = (trial.directory / "rank-1").read_text().split()
    owner = shared_cluster.as_user("alex", on=node)
    assert owner.run(["kill", "-KILL", number]).returncode == 0
    trial.release()
    job = trial.wait_end()
    assert job["JobState"] == "COMPLETED", everything_said(trial.dir)
    assert job["UserId"].endswith("(61001)")
    assert [*trial.losses()] == [*range(1, STEPS + 1)]
    (trouble,) = trial.troubles()
    assert "rank 1" in trouble["message"]
    assert [forked(trial, node) for node in (0, 1)] == [[1, 1], [1, 1]]
    assert owners(trial.dir) == {61001}


def test_what_a_run_does_is_told_to_its_owner_and_it_stops_and_goes_on_as_they_say(
    bed: PersonBed,
) -> None:
    """status, logs, diagnose, cancel --save, resume, report."""
    trial = bed.start()
    trial.wait_held()
    told = bed.answer(trial, "status")
    assert (told["phase"], told["job_id"]) == ("running", trial.job_id)
    assert trial.dir.name in bed.fsdpkit("status", "--runs", str(trial.dir.parent)).stdout
    assert bed.answer(trial, "diagnose")["cause"] == "running"

    done = bed.fsdpkit("cancel", str(trial.dir), "--save")
    assert done.returncode == 0, done.stderr
    trial.wait_warned()
    trial.release()
    trial.wait_end()
    assert trial.saved()[-1] == len(trial.losses()) < STEPS
    assert bed.answer(trial, "status")["phase"] != "succeeded"

    done = bed.fsdpkit("resume", str(trial.dir), "--wait")
    assert done.returncode == 0, done.stderr + everything_said(trial.dir)
    assert trial.steps() == list(range(1, STEPS + 1))
    assert "resumed    after step" in bed.fsdpkit("logs", str(trial.dir)).stdout
    report = bed.fsdpkit("report", str(trial.dir))
    assert report.returncode == 0, report.stderr
    assert owners(trial.dir) == {61001}


def test_a_run_that_others_exchange_while_it_waits_does_not_start_and_they_can_write_to_none_of_it(
    alex: Person, sam: Person
) -> None:
    """In a project directory that sam's group can write to, with a list of access for sam."""
    assert alex.session is not None
    assert sam.session is not None
    project, thesis = alex.cluster.root / "project", alex.home / "thesis"
    runs = project / "alex" / "runs"
    runs.mkdir(parents=True)
    thesis.mkdir()
    (thesis / "chapter1").write_text("words")
    os.chown(thesis / "chapter1", 61001, 61001)
    for path, owner in ((project, 0), (runs.parent, 61001), (runs, 61001), (thesis, 61001)):
        os.chown(path, owner, 61002 if path == project else 61001)
    project.chmod(0o2771)
    set_list(runs, [(1, 0, 7), (USER, 61002, 7), (4, 0, 7), (MASK, 0, 7), (32, 0, 0)], default=True)
    script = alex.home / "says.py"
    script.write_text("print('up')\n")
    words = ["submit", str(script), "--nodes", "1", "--gpus", "1", *ACCOUNT, *COLD, "--json"]
    words += ["--set", "files.group=true", "--sbatch-option", "begin=now+1hour"]
    done = alex.fsdpkit(*words, "--runs", str(runs))
    assert f"others can write to {project} " in done.stderr
    answer = answer_of(done)
    run, job_id = Path(answer["dir"]), answer["job_id"]

    exchange = (
        f"cd {project} && mv alex real && mkdir -p {run}/attempt-0 && "
        f"ln -s {thesis} {run}/attempt-0/failures && "
        f"ln -s {thesis}/chapter1 {run}/slurm-{job_id}.log && chmod -R 0777 alex"
    )
    assert sam.session.run(["bash", "-c", exchange]).returncode == 0
    start = ["scontrol", "update", f"JobId={job_id}", "StartTime=now"]
    assert alex.session.run(start).returncode == 0
    job = alex.cluster.wait_job(job_id)
    assert job["ExitCode"] == "78:0"
    assert [path.read_text() for path in thesis.iterdir()] == ["words"]

    back = f"cd {project} && chmod -R 0777 alex; mv alex theirs && mv real alex"
    assert sam.session.run(["bash", "-c", back]).returncode == 0
    resume = ["resume", str(run), "--set", "slurm.options.begin=now", "--wait"]
    done = alex.fsdpkit(*resume)
    assert done.returncode == 0, done.stderr + everything_said(run)
    (log,) = run.glob("slurm-*.log")
    assert stat.S_IMODE(log.stat().st_mode) == 0o640
    theirs = sam.session.run(["find", str(run), "-writable", "-not", "-type", "l"])
    assert theirs.stdout == ""


@dataclass
class Left:
    """A run of alex's that sam tried to end while it trained, and that ended by itself."""

    trial: Trial
    tried: list[Completed]
    """`cancel`, with and without a last checkpoint."""
    stop_requested: bool
    ended: str


@pytest.fixture(scope="module")
def left(module_bed: PersonBed, sam: Person) -> Left:
    trial = module_bed.start()
    trial.wait_held()
    tried = [sam.fsdpkit("cancel", str(trial.dir), *words) for words in ([], ["--save"])]
    stop_requested = trial.task.stop_requested.exists()
    trial.release()
    return Left(trial, tried, stop_requested, trial.wait_end()["JobState"])


@pytest.fixture
def finished(left: Left) -> Trial:
    assert left.ended == "COMPLETED", everything_said(left.trial.dir)
    assert [*left.trial.losses()] == [*range(1, STEPS + 1)]
    return left.trial


def test_another_user_can_neither_end_nor_change_a_run(
    left: Left, finished: Trial, sam: Person
) -> None:
    for done in left.tried:
        assert done.returncode != 0, done.stdout
        assert re.search("[Pp]ermission denied", done.stderr), done.stderr
        assert "Traceback" not in done.stderr
    assert not left.stop_requested
    resumed = sam.fsdpkit("resume", str(finished.dir))
    assert resumed.returncode != 0
    assert "Traceback" not in resumed.stderr
    assert owners(finished.dir) == {61001}


def test_another_user_reads_nothing_of_a_run(finished: Trial, shared_cluster: SlurmCluster) -> None:
    session = shared_cluster.as_user("sam")
    assert session.run(["ls", str(finished.dir)]).returncode != 0
    open_files = ["find", str(finished.dir.parent), "-type", "f", "-readable"]
    assert session.run(open_files).stdout == ""


def test_a_run_that_is_closed_to_somebody_is_said_to_be(
    finished: Trial, sam: Person, request: pytest.FixtureRequest
) -> None:
    closed = finished.dir.parent.stat().st_mode
    finished.dir.parent.chmod(0o755)
    request.addfinalizer(lambda: finished.dir.parent.chmod(closed))
    for command in ("status", "logs", "diagnose", "report", "cancel", "resume"):
        done = sam.fsdpkit(command, str(finished.dir))
        assert done.returncode != 0, f"{command}: {done.stdout}"
        assert "Traceback" not in done.stderr, f"{command}: {done.stderr}"
        assert re.search("[Pp]ermission denied", done.stderr), f"{command}: {done.stderr}"
        assert str(finished.dir) in done.stderr, f"{command}: {done.stderr}"
    every = sam.fsdpkit("status", "--runs", str(finished.dir.parent))
    assert finished.dir.name in every.stdout + every.stderr
    assert re.search("[Pp]ermission denied", every.stdout + every.stderr)
