"""Which checkpoint a trainer of another make goes on from."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fsdpkit.script.checkpoints import MARK, mark_whole, newest_whole


@pytest.fixture(autouse=True)
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FSDPKIT_RUN_DIR", str(tmp_path / "run-1"))
    monkeypatch.setenv("FSDPKIT_TASK_DIR", str(tmp_path / "run-1"))
    where = tmp_path / "run-1" / "trainer"
    where.mkdir(parents=True)
    return where


def saved(where: Path, step: int, *, marked: bool = True) -> Path:
    checkpoint = where / f"checkpoint-{step}"
    (checkpoint / "shards").mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(bytes(step))
    (checkpoint / "shards" / "__0_0.distcp").write_bytes(bytes(10))
    if marked:
        mark_whole(checkpoint, step)
    return checkpoint


def test_the_one_with_the_most_steps_is_taken_by_number(run: Path) -> None:
    newest = [saved(run, step) for step in (9, 10, 100)][-1]
    assert newest_whole(run) == (newest, [])


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        ("(c / 'fsdpkit.json').unlink()", "not written"),
        ("(c / 'fsdpkit.json').write_text('{')", "cannot be read"),
        ("(c / 'fsdpkit.json').write_text('[]')", "cannot be read"),
        ("(c / 'fsdpkit.json').write_text('null')", "cannot be read"),
        ("(c / 'model.safetensors').write_bytes(b'')", "changed"),
        ("(c / 'model.safetensors').unlink()", "lacks"),
        ("(c / 'shards' / '__0_0.distcp').unlink()", "lacks"),
        ("os.environ.update(FSDPKIT_RUN_DIR='/x/run-2', FSDPKIT_TASK_DIR='/x/run-2')", "another"),
        (
            "os.environ.update(FSDPKIT_TASK_DIR=os.environ['FSDPKIT_RUN_DIR'] + '/task-3')",
            "another",
        ),
    ],
)
def test_what_is_not_whole_or_not_ours_is_passed_over(run: Path, harm: str, told: str) -> None:
    older, newer = saved(run, 5), saved(run, 10)
    exec(harm, {"c": newer, "os": os})
    found, refused = newest_whole(run)
    assert told in refused[0]
    assert found == (older if told != "another" else None)


def test_a_newer_mark_takes_the_place_of_an_older_one(run: Path) -> None:
    checkpoint = saved(run, 5)
    (checkpoint / "model.safetensors").write_bytes(b"saved again")
    assert newest_whole(run)[0] is None
    mark_whole(checkpoint, 5)
    assert newest_whole(run)[0] == checkpoint
    assert MARK not in json.loads((checkpoint / MARK).read_text())["files"]
