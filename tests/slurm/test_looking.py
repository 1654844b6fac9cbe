"""What somebody does to the runs of another user of the cluster: looking runs nothing, and nothing
that is said to act does."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from pathlib import Path

import pytest

from tests.conftest import COLD
from tests.slurm.conftest import ACCOUNT, USERS_LANE, Person, until
from tests.slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, USERS_LANE]

SCRIPT = """
    import os, pathlib, time
    pathlib.Path({marks!r}, f"ran-as-{{os.getuid()}}").touch()
    while not os.path.exists({stop!r}):
        time.sleep(0.1)
"""
LOOKS = ("status", "logs", "diagnose", "top --once", "report")
ACTS = (
    *("cancel", "cancel --save", "stacks", "checkpoint save", "shell", "track --to mlflow"),
    *("resume", "resume --chained 1"),
)


def submitted(person: Person, name: str, marks: Path, stop: Path) -> tuple[Path, str]:
    """A run that goes on until there is a file `stop`, and its job's number."""
    script = person.home / f"{name}.py"
    script.write_text(textwrap.dedent(SCRIPT.format(marks=str(marks), stop=str(stop))))
    done = person.fsdpkit(
        *("submit", str(script), "--nodes", "1", "--gpus", "1", *ACCOUNT, *COLD),
        *("--runs", str(person.home / f"{name}-runs")),
    )
    assert done.returncode == 0, done.stderr
    (run,) = (person.home / f"{name}-runs").glob(f"{name}-*")
    job_id = json.loads((run / "run.json").read_text())["job_id"]
    person.cluster.wait_job(job_id, states={"RUNNING"})
    return run, job_id


def open_to_all(run: Path, owner: int) -> None:
    """Whoever shares a run with colleagues does this, and a stranger who wants it written to."""
    run.parent.chmod(0o755)
    for path in (run, *run.rglob("*")):
        os.lchown(path, owner, owner)
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o777 if path.is_dir() else 0o666))


def test_another_user_looks_at_a_run_and_neither_runs_nor_ends_anything(
    shared_cluster: SlurmCluster, alex: Person, sam: Person
) -> None:
    """Of two runs of sam's, one whose record names alex's own job, alex tries every command."""
    marks = shared_cluster.root / "looking"
    marks.mkdir()
    marks.chmod(0o1777)
    alexs_stop, sams_stop = marks / "alexs-stop", marks / "sams-stop"
    _, alexs_job = submitted(alex, "mine", marks, alexs_stop)
    run, sams_job = submitted(sam, "sams", marks, sams_stop)
    until(lambda: len([*marks.glob("ran-as-*")]) == 2, "both scripts")
    (marks / f"ran-as-{alex.session.user.id}").unlink()
    forged = run.with_name(f"{run.name[:-4]}f0f0")
    shutil.copytree(run, forged, symlinks=True)
    for name in ("run.json", "job.json"):
        text = (forged / name).read_text().replace(run.name, forged.name)
        (forged / name).write_text(text.replace(f'"{sams_job}"', f'"{alexs_job}"'))
    for each in (run, forged):
        open_to_all(each, sam.session.user.id)

    for words in LOOKS:
        done = alex.fsdpkit(*words.split(), str(run))
        assert done.returncode == 0, (words, done.stderr)
    tried = [(words, each) for words in ACTS for each in (run, forged)]
    done_by = {(w, each.name): alex.fsdpkit(*w.split(), str(each)) for w, each in tried}
    assert [each for each, done in done_by.items() if done.returncode == 0] == []
    running = [shared_cluster.jobs(job)[0]["JobState"] for job in (alexs_job, sams_job)]
    assert running == ["RUNNING", "RUNNING"]

    for stop, job in ((alexs_stop, alexs_job), (sams_stop, sams_job)):
        stop.touch()
        shared_cluster.wait_job(job)
    ended = alex.fsdpkit("resume", str(run), "--set", "args=['x']")
    assert ended.returncode != 0
    assert "--trust" in ended.stderr
    assert not (marks / f"ran-as-{alex.session.user.id}").exists()
