"""Which files the ranks of a launch leave behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.launching.rank_files import RunDirectoryLogs
from fsdpkit.runs.layout import AttemptPaths, raised_beside

pytestmark = pytest.mark.torch


def test_files_that_nobody_wrote_to_do_not_stay(tmp_path: Path) -> None:
    """With 512 ranks and five restarts thousands, on a file system that counts them."""
    attempt = AttemptPaths(tmp_path)
    other = attempt.rank_file(0, "err", 0)
    other.touch()
    logs = RunDirectoryLogs(attempt, 2, tmp_path / "memory", lambda _: {})
    logs.drop_empty()  # of a launch that came to no rank
    logs.reify({local: {"RANK": str(4 + local)} for local in range(2)})
    for rank in (4, 5):
        attempt.rank_file(rank, "out", 2).touch()
        attempt.rank_file(rank, "err", 2).touch()
    attempt.rank_file(5, "err", 2).write_text("ValueError\n")
    logs.drop_empty()
    assert sorted(tmp_path.iterdir()) == [other, attempt.rank_file(5, "err", 2)]


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
