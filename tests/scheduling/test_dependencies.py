"""What `--after` waits for: runs whose job is theirs for certain, and jobs that are no run."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from fsdpkit.config.site import load_site
from fsdpkit.errors import NotFoundError, SchedulerError, UsageError
from fsdpkit.rendering.script import Dependency
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import save
from fsdpkit.scheduling.dependencies import confirm, dependencies
from fsdpkit.scheduling.slurm import SlurmClient
from tests.conftest import Command
from tests.scheduling.records import job, run_of


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A directory with one run, whose job is 7."""
    record = msgspec.structs.replace(run_of(job("7")), id="lr-20260101-120000-3f2a")
    directory = tmp_path / "runs" / record.id
    directory.mkdir(parents=True)
    save(RunPaths(directory), record)
    return directory.parent


def asked(text: str, runs: Path, array: str | None = None) -> str:
    site = load_site("generic")
    return ",".join(one.text for one in dependencies(text, site, runs, array))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("3f2a", "afterok:7"),
        ("4711", "afterok:4711"),
        ("4711_3", "afterok:4711_3"),
        ("afterany:3f2a", "afterany:7"),
        ("afternotok:4711", "afternotok:4711"),
        ("after:3f2a, afterany:12", "after:7,afterany:12"),
        ("singleton", "singleton"),
    ],
)
def test_a_run_or_a_job_is_waited_for_in_sbatch_s_own_words(
    text: str, told: str, runs: Path
) -> None:
    assert asked(text, runs) == told


def test_array_tasks_wait_for_array_tasks_only(runs: Path) -> None:
    assert asked("aftercorr:3f2a", runs, "0-3") == "aftercorr:7"
    with pytest.raises(UsageError, match="--array"):
        asked("aftercorr:3f2a", runs)


@pytest.mark.parametrize("text", ["afterall:3f2a", "before:12"])
def test_a_kind_that_there_is_not_is_refused_with_those_that_there_are(
    text: str, runs: Path
) -> None:
    with pytest.raises(UsageError, match="afternotok"):
        asked(text, runs)


@pytest.mark.parametrize("text", ["nosuch", "afterok:nosuch", "--me", "", "12 13"])
def test_what_is_neither_run_nor_number_is_not_found(text: str, runs: Path) -> None:
    with pytest.raises(NotFoundError):
        asked(text, runs)


def test_a_run_of_another_site_and_a_kind_that_this_machine_lacks_are_refused(runs: Path) -> None:
    local = load_site("local")
    with pytest.raises(UsageError, match="same cluster"):
        dependencies("3f2a", local, runs, None)
    with pytest.raises(UsageError, match="only one run"):
        dependencies("4711", local, runs, None)


@pytest.mark.parametrize(
    ("comment", "error"),
    [("fsdpkit:lr-20260101-120000-3f2a", None), ("(null)", SchedulerError)],
)
def test_a_number_that_is_another_job_s_is_not_waited_for(
    comment: str,
    error: type[Exception] | None,
    runs: Path,
    command: Command,
) -> None:
    command("squeue", f"echo '{os.getuid()}|1|/x|{comment}'")
    command("sacct", "exit 1")
    waits = [Dependency("afterok", "7", next(runs.iterdir()))]
    if error is None:
        confirm(waits, SlurmClient())
        return
    with pytest.raises(error):
        confirm(waits, SlurmClient())


def test_a_number_that_no_job_has_is_refused_if_slurm_says_so(command: Command) -> None:
    waits = [Dependency("afterok", "4711"), Dependency("singleton")]
    for text in ("echo '0|1|/x|of somebody'", "echo 'Unable to contact slurmctld' >&2; exit 1"):
        command("squeue", text)
        confirm(waits, SlurmClient())
    command("squeue", "echo 'Invalid job id specified' >&2; exit 1")
    with pytest.raises(UsageError, match="4711"):
        confirm(waits, SlurmClient())
