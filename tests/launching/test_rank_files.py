"""Which files the ranks of a launch leave behind."""

from __future__ import annotations

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
