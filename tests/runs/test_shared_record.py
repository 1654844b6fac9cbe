"""What a run that is shared tells its centre, from submission to its last end."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.publishing.audit import audit
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import now_s
from fsdpkit.runs.shared_record import AttemptEnd, SharedRecord, Used, add_end, share


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    (tmp_path / "centre" / "audit").mkdir(parents=True)
    paths = RunPaths(tmp_path / "run-1")
    paths.dir.mkdir()
    used = [Used(kind="template", name="small", version="1.0.0")]
    record = SharedRecord(
        run="run-1", submitted_s=now_s(), nodes=1, ranks_per_node=1, fsdpkit="1", used=used
    )
    share(paths, record, [tmp_path / "centre" / "audit"])
    return paths


def end(cause: str, action: str = "end") -> AttemptEnd:
    return AttemptEnd(action="requeue" if action == "requeue" else "end", cause=cause, at_s=now_s())


def counts(run: RunPaths) -> tuple[int, int, int, int, dict[str, int]]:
    (line,) = audit(run.dir.parent / "centre", weeks=1).lines
    return line.runs, line.done, line.failed, line.unknown, dict(line.causes)


def test_a_run_is_counted_once_with_the_causes_of_all_its_ends(run: RunPaths) -> None:
    assert counts(run) == (1, 0, 0, 1, {})
    add_end(run, None, end("node-failure", "requeue"))
    assert counts(run) == (1, 0, 0, 1, {"node-failure": 1})
    add_end(run, None, end("done"))
    assert counts(run) == (1, 1, 0, 0, {"node-failure": 1})


def test_an_end_never_fails_for_what_cannot_be_told(run: RunPaths, tmp_path: Path) -> None:
    for broken in (b"", b"{}", b"[" * 9999):
        run.shared_record.write_bytes(broken)
        add_end(run, None, end("crash"))
    run.shared_record.unlink()
    add_end(run, None, end("crash"))
    assert counts(run) == (1, 0, 0, 1, {})
