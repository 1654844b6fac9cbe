"""A poorer cluster, without accounting, with nodes that call themselves 127.0.1.1, and where a job
that does not say how much memory it needs gets all of a node's: nothing may hang, lie or fail for
any of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdpkit import Run
from fsdpkit.runs import record
from tests.conftest import COLD, answer_of
from tests.programs import Fsdpkit, Write
from tests.slurm.conftest import ACCOUNT, WHO, Person, everything_said, until
from tests.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm


def test_states_come_from_the_controller(
    on_bare: SlurmCluster, fsdpkit: Fsdpkit, write_script: Write
) -> None:
    """A01, A41, L5: nodes meet although each calls itself 127.0.1.1, and success, failure and
    cancellation are all told without accounting."""
    words = ["--nodes", "1", "--gpus", "1", "--time", "10", *COLD, "--json"]
    who = str(write_script("who.py", WHO))
    good = answer_of(fsdpkit("submit", who, *words, "--nodes", "2"))
    run = Run.open(good["dir"])
    assert run.wait(poll_s=0.2).succeeded, everything_said(run.dir)
    assert [r["node"] for r in run.results()] == ["node1", "node2"]

    failing = (str(write_script("fails.py", "raise SystemExit(4)")), *words)
    fsdpkit("submit", *failing, "--set", "retry.on_crash=stop", "--wait", status=4)

    sleeper = write_script("sleeps.py", "import time; time.sleep(600)")
    run = Run.open(answer_of(fsdpkit("submit", str(sleeper), *words))["dir"])
    (job,) = run.jobs()
    job.cancel()
    assert run.wait(poll_s=0.2).state == "CANCELLED"
    assert job.done(force_check=True)


def test_of_a_job_nobody_knows_its_own_files_say_how_it_ended_or_nobody_does(
    on_bare: SlurmCluster, fsdpkit: Fsdpkit, write_script: Write
) -> None:
    words = ["--nodes", "1", "--gpus", "1", "--time", "10", *COLD, "--json"]
    answer = answer_of(fsdpkit("submit", str(write_script("who.py", WHO)), *words))
    run = Run.open(answer["dir"])
    run.wait(poll_s=0.2)
    record.save(run.paths, msgspec.structs.replace(run.record, job_id="99999"))
    ended = Run.open(answer["dir"]).state()
    assert ended is not None
    assert (ended.source, ended.succeeded) == ("files", True)
    record.save(run.paths, msgspec.structs.replace(run.record, job_id="99999"))
    run.paths.task().attempt(0).ending.unlink()
    assert Run.open(answer["dir"]).state() is None
    assert "unknown" in fsdpkit("status", answer["dir"]).stdout


def test_two_jobs_share_a_node_s_gpus_where_its_memory_is_known(
    on_bare: SlurmCluster, tmp_path: Path, write_script: Write
) -> None:
    person = Person.at(on_bare, tmp_path)
    (profile,) = tmp_path.rglob("testbed.toml")
    text, memory = profile.read_text(), f"memory_mb = {on_bare.options.memory_mb}"
    sleeper = str(write_script("sleeps.py", "import time; time.sleep(600)"))

    def submit() -> str:
        words = ("--nodes", "1", "--gpus", "1", "--set", "resources.nodelist=node1")
        done = person.fsdpkit("submit", sleeper, *words, *ACCOUNT, *COLD, "--json")
        return str(answer_of(done)["job_id"])

    def running(job_id: str) -> bool:
        return on_bare.jobs(job_id)[0]["JobState"] == "RUNNING"

    whole = submit()
    until(lambda: running(whole))
    profile.write_text(text.replace("cpus = 8", f"cpus = 8\n{memory}"))
    share = submit()
    until(lambda: on_bare.jobs(share)[0]["Reason"] == "Resources")
    assert not running(share), "the first job has all of the node's memory"
    on_bare.run(["scancel", whole])
    until(lambda: running(share))
    other = submit()
    until(lambda: running(other))
    assert running(share)
    on_bare.run(["scancel", share, other])
