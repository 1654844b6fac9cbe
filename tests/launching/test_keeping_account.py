"""The account that the batch shell keeps when srun is over, and how long it may take."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpkit.launching import keeping_account
from fsdpkit.launching.keeping_account import keep_account
from fsdpkit.runs.account import Account
from fsdpkit.scheduling.run import Run
from tests.reporting.made_run import T0, ends, launches, made_run, starts, trains


@pytest.fixture
def run(tmp_path: Path) -> Run:
    job = {"name": "made", "resources": {"time": "2:00:00"}}
    run = made_run(tmp_path / "made-20260101-000000-0000", job=job)
    task = run.paths.task()
    starts(task, 0, T0)
    launches(task, 0, T0 + 1800)
    trains(task, 1, 2, T0 + 1800, step_s=900.0, mfu=0.41)
    ends(task, 0, T0 + 3600)
    return run


def test_it_is_kept_beside_the_ending_and_told_in_one_line(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = keep_account(run.paths, None, 0, ending=False)
    file = run.paths.task().attempt(0).account
    assert kept == msgspec.json.decode(file.read_bytes(), type=Account)
    assert kept.used_s == {"training": 3600, "startup": 3600}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fsdpkit: used 4.00 of 8.00 GPU-hours: ")
    assert {"computing 50%", "start-up 50%", "MFU 41%"} <= set(re.split("[:;,] ", line))


def test_it_takes_no_longer_than_it_may_and_the_shells_own_alarm_stands(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that blocks looks like an error of each file to whoever reads it."""

    def slow(*given: Any) -> None:
        try:
            time.sleep(300)
        except OSError:
            pytest.fail("nothing may go on")
        pytest.fail("it waited for all of it")

    monkeypatch.setattr(keeping_account, "_LATE_S", 0.1)
    monkeypatch.setattr(keeping_account, "history_of", slow)
    signal.alarm(10_000)
    try:
        assert keep_account(run.paths, None, 0, ending=True) is None
        assert 9000 < signal.getitimer(signal.ITIMER_REAL)[0] <= 10_000
    finally:
        signal.alarm(0)
    assert keep_account(Run(Path("/nowhere"), run.record).paths, None, 0, ending=True) is None
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
