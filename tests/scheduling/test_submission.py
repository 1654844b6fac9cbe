"""What a submission leaves behind when something goes wrong on the way."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Completed


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few kilobytes, all of them taken."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(place)], check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        (place / "filler").write_bytes(b"x" * 12_288)
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_named_and_no_half_run_stays(
    full_disk: Path, fsdpkit: Callable[..., Completed]
) -> None:
    done = fsdpkit("submit", "--cluster", "local", "--runs", str(full_disk / "runs"))
    assert done.returncode == 74, done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((full_disk / "runs").iterdir()) == []


def test_a_refused_submission_leaves_no_run(
    fsdpkit: Callable[..., Completed], tmp_path: Path
) -> None:
    commands = tmp_path / "commands"
    commands.mkdir()
    (commands / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: no' >&2\nexit 1\n")
    (commands / "sbatch").chmod(0o755)
    done = fsdpkit(
        "submit", "--cluster", "generic", env={"PATH": f"{commands}:{os.environ['PATH']}"}
    )
    assert done.returncode == 69
    assert "sbatch refused: sbatch: error: no" in done.stderr
    assert list((tmp_path / "runs").iterdir()) == []


def test_two_submissions_in_one_second_are_two_runs(
    fsdpkit: Callable[..., Completed], tmp_path: Path
) -> None:
    commands = tmp_path / "commands"
    commands.mkdir()
    (commands / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (commands / "sbatch").chmod(0o755)
    env = {"PATH": f"{commands}:{os.environ['PATH']}"}
    done = [fsdpkit("submit", "--cluster", "generic", env=env) for _ in range(3)]
    assert [d.returncode for d in done] == [0, 0, 0]
    assert len({d.stdout.splitlines()[0] for d in done}) == 3
    assert len(list((tmp_path / "runs").iterdir())) == 3
