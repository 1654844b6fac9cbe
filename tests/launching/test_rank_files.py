"""Which files the ranks of a launch leave behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fsdpkit.launching.rank_files import RunDirectoryLogs
from fsdpkit.runs.layout import AttemptPaths

pytestmark = pytest.mark.torch


def test_no_directory_holds_the_files_of_more_than_1024_ranks(tmp_path: Path) -> None:
    attempt = AttemptPaths(tmp_path / "attempt-0")
    attempt.dir.mkdir()
    for node in range(300):
        logs = RunDirectoryLogs(attempt, 0, tmp_path, lambda _: {})
        made = logs.reify({n: {"RANK": str(8 * node + n)} for n in range(8)})
        for file in (*made.stdouts.values(), *made.stderrs.values()):
            Path(file).touch()
    folders = [attempt.dir, *attempt.dir.glob("ranks-*")]
    assert max(len(os.listdir(folder)) for folder in folders) <= 2 * 1024 + len(folders)
    found = {file.rank: file.path for file in attempt.rank_files() if file.kind == "err"}
    assert found == {rank: attempt.rank_file(rank, "err", 0) for rank in range(2400)}


def test_all_ranks_in_one_directory_as_before_are_read_too(tmp_path: Path) -> None:
    kept = tmp_path / "rank-5000.restart-1.out"
    kept.touch()
    assert AttemptPaths(tmp_path).rank_file(5000, "out", 1) == kept
    assert [file.path for file in AttemptPaths(tmp_path).rank_files([5000])] == [kept]
