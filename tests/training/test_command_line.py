"""Which job a rank believes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fsdpkit.errors import DamagedError
from fsdpkit.runs.job_file import DIGEST
from fsdpkit.training.command_line import read_settings

SUBMITTED = b'{"training": {"steps": 7}}'


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """job.json of the run that this process belongs to."""
    monkeypatch.setenv("FSDPKIT_RUN_DIR", str(tmp_path))
    monkeypatch.setenv(DIGEST, hashlib.sha256(SUBMITTED).hexdigest())
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    path = tmp_path / "job.json"
    path.write_bytes(SUBMITTED)
    return path


def steps(job: Path) -> int:
    return read_settings("", ["--job", str(job)]).steps


def test_a_rank_believes_the_job_that_was_submitted_alone(job: Path) -> None:
    assert steps(job) == 7
    job.write_bytes(SUBMITTED.replace(b"7", b"8"))
    with pytest.raises(DamagedError, match="is not what was submitted"):
        steps(job)


def test_a_rank_goes_on_with_its_own_job_when_the_runs_next_one_waits(job: Path) -> None:
    job.rename(job.with_name("job.12.json"))
    job.write_bytes(SUBMITTED.replace(b"7", b"8"))
    assert steps(job) == 7


def test_a_file_that_is_not_the_runs_has_no_digest(job: Path) -> None:
    other = job.with_name("mine.json")
    other.write_bytes(SUBMITTED.replace(b"7", b"9"))
    assert steps(other) == 9
