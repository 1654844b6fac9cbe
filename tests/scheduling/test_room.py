"""Room for what a job writes, and the files that it names, looked at before it is queued."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.errors import ConfigError, StorageError
from fsdpkit.rendering.script import Plan
from fsdpkit.scheduling.submission import SubmitRequest, plan, submit_plan
from tests.programs import Fsdpkit


def planned(tmp_path: Path, *sets: str, job: str = "t5", cluster: str = "local") -> Plan:
    shape = {"nodes": 1, "gpus": 1, "cluster": cluster, "runs": tmp_path / "runs"}
    return plan(SubmitRequest(job, sets=sets, **shape))[0]  # type: ignore[arg-type]


def warnings(tmp_path: Path, *sets: str, job: str = "t5", cluster: str = "local") -> str:
    return "\n".join(planned(tmp_path, *sets, job=job, cluster=cluster).placement.warnings)


def submitted(tmp_path: Path, *sets: str) -> None:
    submit_plan(planned(tmp_path, *sets), tmp_path / "runs")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Makes every file system look as if it had so many GB free, to this user."""

    def free(gb: float) -> None:
        real = os.statvfs(tmp_path)
        blocks = int(gb * 1e9 / real.f_frsize)
        told = list(real)
        told[3], told[4] = 10 * blocks, blocks  # what root alone may use does not count
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(told))

    return free


def test_a_checkpoint_of_our_trainer_has_a_known_size(
    tmp_path: Path, small: Callable[[float], None]
) -> None:
    """T5 v1.1 small: 77 million parameters, 12 bytes each under AdamW, and three at a time."""
    model = "training.model.preset=t5-v1.1-small"
    small(0.9)
    with pytest.raises(StorageError, match=r"takes 0\.9 GB"):
        submitted(tmp_path, model)
    small(2)
    assert "3 checkpoints" in warnings(tmp_path, model)
    small(3)
    assert "checkpoints" not in warnings(tmp_path, model)
    small(0.5)
    assert "checkpoint" not in warnings(
        tmp_path,
        model,
        "training.optimizer.name=adafactor",
        "training.checkpoint.keep_last=1",
        "training.checkpoint.at_end=false",
        "training.checkpoint.every_steps=0",
        "training.checkpoint.every_minutes=0",
    )


def test_a_file_that_the_job_needs_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "data").mkdir()
    job = str(tmp_path / "train.py")
    assert warnings(tmp_path, f'files.needs=["{tmp_path}/data"]', job=job) == ""
    with pytest.raises(ConfigError, match=r"files\.needs: .*/gone: No such file"):
        warnings(tmp_path, f'files.needs=["{tmp_path}/data", "{tmp_path}/gone"]', job=job)


def test_a_disk_that_is_really_full(fsdpkit: Fsdpkit, tmp_path: Path, full_disk: Path) -> None:
    (tmp_path / "train.py").write_text("")
    done = fsdpkit(
        *("submit", "train.py", "--cluster", "local", "--runs", str(full_disk / "r")),
        *("--set", "files.room_gb=0.5"),
        status=StorageError.exit_code,
    )
    assert "GB free" in done.stderr
