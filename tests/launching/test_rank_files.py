"""Which files the ranks of a launch leave behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fsdpkit.launching.rank_files import RunDirectoryLogs
from fsdpkit.runs.layout import AttemptPaths, raised_beside

pytestmark = pytest.mark.torch


def test_what_ranks_tell_of_exceptions_is_kept_as_far_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, memory = AttemptPaths(tmp_path / "attempt-0"), tmp_path / "memory"
    memory.mkdir()
    attempt.dir.mkdir()
    logs = RunDirectoryLogs(attempt, 1, memory, lambda _: {})
    environ = {"RANK": "6"}
    logs.reify({0: environ})
    raised_beside(environ["TORCHELASTIC_ERROR_FILE"]).write_text("{}\n")
    logs.keep_errors()
    assert [*attempt.dir.iterdir()] == [attempt.rank_file(6, "raised.json", 1)]

    def full(_: str, kept: Path) -> None:
        kept.write_text("{")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    logs.keep_errors()
    assert [*attempt.dir.iterdir()] == []


def test_no_directory_holds_the_files_of_more_than_1024_ranks(tmp_path: Path) -> None:
    attempt = AttemptPaths(tmp_path / "attempt-0")
    attempt.dir.mkdir()
    for node in range(1024):
        logs = RunDirectoryLogs(attempt, 0, tmp_path, lambda _: {})
        made = logs.reify({n: {"RANK": str(8 * node + n)} for n in range(8)})
        for file in (*made.stdouts.values(), *made.stderrs.values()):
            Path(file).touch()
    folders = [attempt.dir, *attempt.dir.glob("ranks-*")]
    assert max(len(os.listdir(folder)) for folder in folders) <= 2 * 1024 + len(folders)
    found = {file.rank: file.path for file in attempt.rank_files() if file.kind == "err"}
    assert found == {rank: attempt.rank_file(rank, "err", 0) for rank in range(8192)}


def test_all_ranks_in_one_directory_as_before_are_read_too(tmp_path: Path) -> None:
    kept = tmp_path / "rank-5000.restart-1.out"
    kept.touch()
    assert AttemptPaths(tmp_path).rank_file(5000, "out", 1) == kept
    assert [file.path for file in AttemptPaths(tmp_path).rank_files([5000])] == [kept]
