"""Resuming where Slurm refuses, does not answer, has forgotten, or does not queue jobs again."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fsdpkit import Run
from fsdpkit.errors import FsdpkitError, SchedulerError, UsageError
from fsdpkit.runs.avoided_nodes import avoid
from fsdpkit.runs.record import JobRecord, save
from tests.conftest import Completed
from tests.publishing.live_answers import CONFIG, node, partition
from tests.scheduling.bare_template import write_bare_template

SBATCH = """
for script; do :; done
[ -e {here}/no-sbatch ] && echo 'sbatch: error: no' >&2 && exit 1
[ -e {here}/deaf-sbatch ] && echo && exit 0
[ -e {here}/slow-sbatch ] && touch {here}/called && sleep 1
id=$(( $(cat {here}/jobs 2>/dev/null | wc -l) + 1 ))
echo "$id|$(sed -n 's/^#SBATCH --comment=//p' "$script")" >> {here}/jobs
echo $id
"""
# The queue holds what `state` says, in squeue's words; without that file it knows no job.
SQUEUE = """
case "$*" in
    *%F*) cat {here}/jobs ;;
    *) [ -e {here}/state ] ||
           {{ echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1; }}
       while IFS= read -r row; do
           its=$(sed -n "s/^${{row%%|*}}|//p" {here}/jobs)
           case "$*" in *%T*) printf '%s||||' "$row" ;; esac
           echo "$(id -u)|1|/x/job.sbatch|$its"
       done < {here}/state ;;
esac
"""


class FakeSlurm:
    """Slurm's commands as they answer when files in `here` say so."""

    def __init__(self, here: Path) -> None:
        self.here = here
        here.mkdir()
        for name, text in {
            "sbatch": SBATCH,
            "squeue": SQUEUE,
            "sacct": "exit 1",
            "scontrol": "for what; do :; done; cat {here}/$what",
            "scancel": 'echo "$@" >> {here}/cancelled',
        }.items():
            self.says(name, text)

    def says(self, name: str, text: str) -> None:
        """What a command does from now on, in the words of a shell."""
        (self.here / name).write_text("#!/bin/sh\n" + text.format(here=self.here))
        (self.here / name).chmod(0o755)

    def queue(self, *lines: str) -> None:
        """What squeue prints: `1|RUNNING|None|n1`; nothing: it knows no job."""
        (self.here / "state").unlink(missing_ok=True)
        if lines:
            (self.here / "state").write_text("\n".join(lines) + "\n")

    def nodes(self, *names: str) -> None:
        """What scontrol shows: nodes with four GPUs each, all idle. Else it fails."""
        own = {"Partitions": "main", "Gres": "gpu:4"}
        (self.here / "config").write_text(CONFIG)
        (self.here / "partition").write_text(partition("main", Default="YES"))
        (self.here / "node").write_text("".join(node(name, **own) for name in names))


@pytest.fixture
def slurm(tmp_path: Path, isolated_user: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    write_bare_template(isolated_user / "config")
    monkeypatch.setenv("PATH", f"{tmp_path / 'fake'}:{os.environ['PATH']}")
    monkeypatch.setenv("FSDPKIT_CLUSTER", "generic")
    (tmp_path / "train.py").touch()
    return FakeSlurm(tmp_path / "fake")


@pytest.fixture
def run(slurm: FakeSlurm, fsdpkit: Callable[..., Completed], tmp_path: Path) -> Run:
    """A run that had one attempt and that Slurm, which keeps no accounts, has forgotten."""
    words = ["--nodes", "2", "--gpus", "1", "--set", "template=bare"]
    fsdpkit("submit", "train.py", *words, status=0)
    (directory,) = (tmp_path / "runs").iterdir()
    (directory / "attempt-0").mkdir()
    return Run.open(directory)


def directives(run: Run) -> str:
    text = run.paths.script.read_text()
    return "\n".join(line for line in text.splitlines() if line.startswith("#SBATCH"))


def test_a_run_that_slurm_has_forgotten_is_over(run: Run) -> None:
    assert run.states() == {"1": None}
    again = run.resume()
    assert again.job_id == "2"
    assert again.record.earlier[0].ended == {}  # nobody will ever say
    assert "attempt-$ATTEMPT" in run.paths.script.read_text()
    assert "ATTEMPT=$(( 1 + " in run.paths.script.read_text()


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("PENDING", "launch failed requeued held"),
        ("PENDING", "launch_failed_requeued_held"),
        ("REQUEUE_HOLD", "None"),
        ("PENDING", "JobHeldUser"),
    ],
)
def test_a_job_that_is_held_is_released_and_no_second_one_made(
    run: Run, slurm: FakeSlurm, state: str, reason: str
) -> None:
    slurm.queue(f"1|{state}|{reason}|")
    slurm.says("scontrol", 'echo "$@" >> {here}/asked')
    assert run.resume().job_id == "1"
    assert (slurm.here / "asked").read_text() == "release 1\n"
    with pytest.raises(UsageError, match="held"):
        run.resume(nodes=1)
    assert (slurm.here / "asked").read_text() == "release 1\n"


def test_a_dry_run_changes_nothing(run: Run, fsdpkit: Callable[..., Completed]) -> None:
    before = {p: p.read_bytes() for p in run.dir.rglob("*") if p.is_file()}
    done = fsdpkit("resume", str(run.dir), "--nodes", "1", "--dry-run")
    assert "#SBATCH --nodes=1\n" in done.stdout
    assert {p: p.read_bytes() for p in run.dir.rglob("*") if p.is_file()} == before


def test_a_job_that_slurm_may_have_taken_is_waited_for_before_another_is_made(
    run: Run, slurm: FakeSlurm
) -> None:
    (slurm.here / "deaf-sbatch").touch()
    with pytest.raises(SchedulerError, match="whether the job was accepted is not known"):
        run.resume(nodes=5)
    (slurm.here / "deaf-sbatch").unlink()
    cut_short = Run.open(run.dir)
    assert cut_short.job_id == run.job_id
    with pytest.raises(UsageError, match=r"try again in at most \d+ s"):
        run.resume()

    assert cut_short.record.resuming is not None
    long_ago = msgspec.structs.replace(cut_short.record.resuming, submitted_s=time.time() - 200)
    save(run.paths, msgspec.structs.replace(cut_short.record, resuming=long_ago))
    again = run.resume()
    assert (again.job_id, again.record.nodes) == ("2", 2)  # not the 5 that were never submitted
    assert again.record.resuming is None


def test_a_job_that_nobody_heard_of_is_found_by_its_comment(run: Run, slurm: FakeSlurm) -> None:
    next_job = JobRecord(nodes=3, ranks_per_node=1, submitted_s=time.time())
    save(run.paths, msgspec.structs.replace(run.record, resuming=next_job))
    assert Run.open(run.dir).job_id == "1"
    with open(slurm.here / "jobs", "a") as jobs:
        jobs.write(f"8|fsdpkit:{run.id}\n9|fsdpkit:another\n")
    found = Run.open(run.dir)
    assert (found.job_id, found.record.nodes) == ("8", 3)
    assert json.loads(run.paths.record.read_text())["job_id"] == "8"


def test_a_chained_job_gets_attempts_that_the_one_before_cannot_reach(
    run: Run, slurm: FakeSlurm
) -> None:
    slurm.queue("1|RUNNING|None|n1")
    chained = run.resume(chained=True)
    assert "--dependency=afternotok:1\n#SBATCH --kill-on-invalid-dep=yes" in directives(run)
    assert chained.record.first_attempt == 100
    slurm.queue("1|RUNNING|None|n1", "2|PENDING|Dependency|")
    assert run.resume(chained=True).record.first_attempt == 200
    assert "--dependency=afternotok:1:2\n" in directives(run)


def test_a_site_that_does_not_queue_jobs_again_is_told_with_the_remedy(
    slurm: FakeSlurm, fsdpkit: Callable[..., Completed], tmp_path: Path
) -> None:
    """A35. And its chained jobs have the numbers one after the other."""
    profile = tmp_path / "strict.toml"
    profile.write_text('schema = "fsdpkit.site/1"\ntitle = "Strict"\n[policy]\nrequeue = false\n')
    words = ["--cluster", str(profile), "--set", "template=bare"]
    done = fsdpkit("submit", "train.py", *words)
    assert "Strict does not requeue jobs" in done.stderr
    assert "fsdpkit resume RUN --chained" in done.stderr
    (directory,) = (tmp_path / "runs").iterdir()
    slurm.queue("1|RUNNING|None|n1")
    again = Run.open(directory).resume(chained=True)  # the profile is found again by its file
    assert again.record.first_attempt == 1
    assert "#SBATCH --no-requeue" in directives(again)

    never = [f"retry.on_{what}=stop" for what in ("time_limit", "preemption", "node_failure")]
    done = fsdpkit(
        "submit", "train.py", *words, *(word for one in never for word in ("--set", one)), status=0
    )
    assert "does not queue" not in done.stderr


@pytest.mark.parametrize(
    ("nodes", "words", "out"),
    [
        (("n1", "n2", "n3", "n4"), ("--nodes", "2"), {"n2", "n3"}),
        (("n1", "n2", "n3"), ("--nodes", "2"), {"n3"}),  # the newest
        (("n1", "n2", "n3"), ("--nodes", "2", "--spare", "1"), set()),
        (("n1", "n2", "n3"), ("--nodes", "2", "--set", "resources.exclude=n1"), set()),
        (("n1", "n3", "n4"), ("--nodes", "2"), {"n3"}),  # Slurm has no n2
        ((), ("--nodes", "1"), set()),  # nobody can say
        (("n1", "n2", "n3"), ("--nodes", "1", "--set", "resources.exclude=n["), set()),
        (("n1", "n2", "n3"), ("--nodes", "1", "--set", "resources.reservation=mine"), set()),
    ],
)
def test_a_job_leaves_out_no_more_nodes_than_it_can_do_without(
    run: Run,
    slurm: FakeSlurm,
    fsdpkit: Callable[..., Completed],
    tmp_path: Path,
    nodes: tuple[str, ...],
    words: tuple[str, ...],
    out: set[str],
) -> None:
    if nodes:
        slurm.nodes(*nodes)
    until_s = time.time() + 3600
    for name in ("n2", "n3"):
        avoid(tmp_path / "runs", name, why="hung", run_id=run.id, until_s=until_s)
        time.sleep(0.002)
    done = fsdpkit("submit", "train.py", "--set", "template=bare", "--gpus", "2", *words, status=0)
    made = next(path for path in (tmp_path / "runs").glob("train-*") if path != run.dir)
    (asked,) = re.findall(r"--exclude=(\S+)", directives(Run.open(made))) or [""]
    assert set(asked.strip('"').split(",")) - {"n1", "n["} == out or (not asked and not out)
    assert set(Run.open(made).record.left_out) == out
    used = {"n2", "n3"} & set(nodes or ("n2", "n3")) - out
    assert [f"not avoiding {', '.join(sorted(used))}: " in done.stderr] == [bool(used)]


@pytest.mark.parametrize("verb", ["cancel", "resume"])
def test_a_job_of_the_record_s_number_that_is_not_the_run_s_is_left_alone(
    run: Run, slurm: FakeSlurm, verb: str
) -> None:
    """Whoever can write to a directory of runs can write a record."""
    other = run.resume()
    assert other.job_id == "2"
    with (slurm.here / "jobs").open("a") as jobs:
        jobs.write("3|fsdpkit:another-run\n")
    save(run.paths, msgspec.structs.replace(other.record, job_id="3"))
    slurm.queue("3|PENDING|JobHeldUser|")
    slurm.says("scontrol", 'echo "$@" >> {here}/asked')
    with pytest.raises(FsdpkitError, match=r"3 is .* 'fsdpkit:another-run'"):
        getattr(Run.open(run.dir), verb)()
    assert not (slurm.here / "cancelled").exists()
    assert not (slurm.here / "asked").exists()


def test_the_local_cluster_resumes_and_chains_nothing(
    slurm: FakeSlurm, fsdpkit: Callable[..., Completed], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, pathlib, sys, time\n"
        "task = pathlib.Path(os.environ['FSDPKIT_TASK_DIR'])\n"
        "while not (task / 'go').exists(): time.sleep(0.05)\n"
        "sys.exit(0 if (task / 'attempt-1').exists() else 75)\n"
    )
    words = ["--cluster", "local", "--nodes", "1", "--gpus", "1", "--set", "template=bare"]
    assert fsdpkit("submit", "train.py", *words).returncode == 0
    (directory,) = (tmp_path / "runs").iterdir()
    run = Run.open(directory)
    with pytest.raises(UsageError, match="cannot chain jobs"):
        run.resume(chained=True)
    (directory / "go").touch()
    assert run.wait(poll_s=0.1).exit_code == 75
    assert run.resume().wait(poll_s=0.1).succeeded
    assert run.paths.task().attempts() == [0, 1]
