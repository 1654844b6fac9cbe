"""`run.json`: one process at a time changes it, and older and newer ones can be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.lock import BusyError
from fsdpkit.runs.record import changing, load, save
from tests.scheduling.records import recorded

RECORD = recorded(id="t5-1")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths(tmp_path / RECORD.id)
    found.dir.mkdir()
    save(found, RECORD)
    return found


def lock_of(paths: RunPaths) -> Path:
    return paths.dir / "run.json.lock"


def test_a_run_is_changed_by_one_at_a_time(paths: RunPaths) -> None:
    with changing(paths) as record:
        assert record == RECORD
        with (
            pytest.raises(BusyError, match=f"by process {os.getpid()} on "),
            changing(paths, patience_s=0.2),
        ):
            pass
    with changing(paths, patience_s=0):
        pass
    assert not lock_of(paths).exists()


def test_the_lock_of_a_process_that_was_killed_is_in_nobody_s_way(paths: RunPaths) -> None:
    program = (
        "import os, pathlib, signal\n"
        "from fsdpkit.runs.layout import RunPaths\n"
        "from fsdpkit.runs.record import changing\n"
        f"with changing(RunPaths(pathlib.Path({str(paths.dir)!r}))):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    assert lock_of(paths).exists()
    with changing(paths, patience_s=0):  # nothing to wait for
        pass
    assert [p.name for p in paths.dir.iterdir()] == ["run.json"]


@pytest.mark.parametrize("holder", ['{"host": "another-login-node", "pid": 1}', ""])
def test_a_lock_that_nobody_here_can_judge_is_left_alone(holder: str, paths: RunPaths) -> None:
    lock_of(paths).write_text(holder)
    with pytest.raises(BusyError, match="remove /"), changing(paths, patience_s=0.2):
        pass
    assert lock_of(paths).read_text() == holder


def test_a_record_from_before_runs_could_be_resumed_is_read(paths: RunPaths) -> None:
    known = json.loads(paths.record.read_text())
    for key in ("earlier", "resuming", "first_attempt", "after", "submitted_s", "site_file"):
        del known[key]
    paths.record.write_text(json.dumps(known))
    assert load(paths.dir).job_ids == ["7"]
