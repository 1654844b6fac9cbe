"""One writer, nothing overwritten, and a kill at any moment leaves only what is whole."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from fsdpkit.errors import StorageError
from fsdpkit.runs.checkpoint_writing import CLAIM, Claim, WrittenFile, abandon, claim, now, publish
from fsdpkit.runs.checkpoints import (
    CHECKSUMS,
    Best,
    Description,
    checkpoints_in,
    describe,
    problems_of,
)

SHARD = "__0_0.distcp"


def begin(mine: Claim, step: int) -> dict[str, WrittenFile]:
    """What ranks do before a checkpoint is published: their files, synced, in the draft."""
    data = f"weights after step {step}".encode() * 100
    mine.draft(step).mkdir()
    (mine.draft(step) / SHARD).write_bytes(data)
    return {SHARD: WrittenFile(len(data), hashlib.sha256(data).hexdigest())}


def finish(
    mine: Claim,
    step: int,
    written: dict[str, WrittenFile],
    *,
    keep_last: int = 2,
    refused: Collection[Path] = (),
    measured: dict[str, float] | None = None,
    best_by: Best | None = None,
) -> Path:
    description = Description(
        step=step,
        saved_at=now(),
        world_size=1,
        optimizer="AdamW",
        versions={},
        progress={"step": step},
        measured=measured or {},
        best_by=best_by,
        files={},
    )
    texts = {"config.json": "{}\n"}
    return publish(mine, description, written, texts, keep_last=keep_last, refused=refused)


def save(mine: Claim, step: int, **options: Any) -> Path:
    return finish(mine, step, begin(mine, step), **options)


def steps_in(directory: Path) -> list[int]:
    """The step that each checkpoint says it is of; each of them must be whole."""
    found = checkpoints_in(directory)
    assert [problem for path in found for problem in problems_of(path)] == []
    return [describe(path).step for path in found]


def test_a_checkpoint_has_its_name_when_all_is_there_and_sha256sum_agrees(tmp_path: Path) -> None:
    mine = claim(tmp_path / "a" / "checkpoints")
    written = begin(mine, 7)
    assert checkpoints_in(mine.directory) == []
    path = finish(mine, 7, written)
    assert path == mine.directory / "step-7"
    assert {p.name for p in mine.directory.iterdir()} == {CLAIM, "step-7"}
    assert describe(path).files == {SHARD: written[SHARD].bytes, "config.json": 3}
    done = subprocess.run(
        ["sha256sum", "-c", "--strict", CHECKSUMS], cwd=path, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout == "__0_0.distcp: OK\ncheckpoint.json: OK\nconfig.json: OK\n"
    assert done.returncode == 0


def test_an_existing_checkpoint_is_not_overwritten(tmp_path: Path) -> None:
    mine = claim(tmp_path)
    before = (save(mine, 1) / CHECKSUMS).read_bytes()
    with pytest.raises(StorageError, match="step-1 exists already; it was not overwritten"):
        save(mine, 1)
    assert (tmp_path / "step-1" / CHECKSUMS).read_bytes() == before
    abandon(mine, 1)
    assert {p.name for p in tmp_path.iterdir()} == {CLAIM, "step-1"}


@pytest.mark.parametrize("lost_at", ["begun", "not begun", "first sync", "last sync"])
def test_who_claimed_last_may_write_and_the_other_is_told_who_it_is(
    lost_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the first lost the directory, and with it the draft that it had begun."""
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    first = claim(tmp_path)
    save(first, 1)
    seconds: list[Claim] = []
    fsync = os.fsync

    def claim_at(descriptor: int) -> None:
        file = os.readlink(f"/proc/self/fd/{descriptor}")
        fsync(descriptor)
        if not seconds and (lost_at == "first sync" or file == str(first.draft(2))):
            monkeypatch.undo()
            monkeypatch.setenv("SLURM_JOB_ID", "4711")
            seconds.append(claim(tmp_path))

    written = begin(first, 2) if lost_at != "not begun" else {}
    if lost_at.endswith("sync"):
        monkeypatch.setattr(os, "fsync", claim_at)
    else:
        seconds.append(claim(tmp_path))
    with pytest.raises(
        StorageError,
        match=rf"belongs to another job of the same run \(Slurm job 4711, process {os.getpid()} on",
    ):
        finish(first, 2, written or begin(first, 2))
    assert steps_in(tmp_path) == [1]
    save(seconds[0], 2)
    assert steps_in(tmp_path) == [1, 2]


def test_a_claim_removes_the_drafts_of_earlier_writers_and_nothing_else(tmp_path: Path) -> None:
    earlier = claim(tmp_path)
    save(earlier, 1)
    begin(earlier, 2)
    (tmp_path / "notes.txt").write_text("mine")
    claim(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {CLAIM, "step-1", "notes.txt"}


def test_the_newest_are_kept(tmp_path: Path) -> None:
    mine = claim(tmp_path)
    for step in (1, 2, 3, 10):
        save(mine, step, keep_last=2)
    assert steps_in(tmp_path) == [3, 10]
    assert {p.name for p in tmp_path.iterdir()} == {CLAIM, "step-3", "step-10"}
    save(mine, 11, keep_last=1)
    assert steps_in(tmp_path) == [11]


def test_the_best_is_never_pruned_until_a_better_one_is_whole(tmp_path: Path) -> None:
    """The numbers are those of a run that was made to diverge."""
    mine, by = claim(tmp_path), Best("eval_loss")
    losses = {2: 21.9, 4: 305.0, 6: 1e6, 8: 58_452_336.0}
    for step, loss in losses.items():
        save(mine, step, measured={"eval_loss": loss}, best_by=by)
    assert steps_in(tmp_path) == [2, 6, 8]
    save(mine, 10, best_by=by)  # not measured: it is no better
    assert steps_in(tmp_path) == [2, 8, 10]
    save(mine, 12, measured={"eval_loss": 20.0}, best_by=by)
    assert steps_in(tmp_path) == [10, 12]
    save(mine, 13, keep_last=1, measured={"eval_loss": 20.0}, best_by=by)
    assert steps_in(tmp_path) == [12, 13], "of two that are equal the earlier one is the best"


def test_all_is_on_disk_before_it_has_its_name_and_then_the_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut would show: files, then the names in the draft, the rename, its record."""
    mine = claim(tmp_path)
    written = begin(mine, 1)
    draft = mine.draft(1)
    happened: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        happened.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        happened.append(f"{source.name} -> {target.name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    finish(mine, 1, written)
    *small, names, naming, record = happened
    assert set(small) == {str(draft / n) for n in ("config.json", "checkpoint.json", CHECKSUMS)}
    assert (names, naming, record) == (str(draft), f"{draft.name} -> step-1", str(tmp_path))


def may_change_files(function: Any) -> bool:
    """Of a function of C: it is a file's, or the system's and does more than look."""
    if isinstance(getattr(function, "__self__", None), io.IOBase):
        return function.__name__ not in ("__enter__", "fileno", "read", "readinto")
    looks = {"fspath", "fstat", "getpid", "lstat", "scandir", "stat", "uname"}
    home = getattr(function, "__module__", None)
    return home in ("posix", "io", "_io") and function.__name__ not in looks


def calls_until_death(work: Callable[[], object], death: int | None) -> int:
    """Run `work` in a child that ends just before its call number `death` that may change files.

    How many of them it made; no `finally`, no destructor and no buffer of it is written after.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        made = 0

        def count(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal made
            if event == "c_call" and may_change_files(argument):
                if made == death:
                    os._exit(9)
                made += 1

        sys.setprofile(count)
        try:
            work()
        finally:
            sys.setprofile(None)
            os.write(write, str(made).encode())
            os._exit(0)
    _, status = os.waitpid(child, 0)
    os.close(write)
    with open(read, "rb") as stream:
        told = stream.read()
    # A fork of a process in which libraries have threads may crash by itself: as sudden an end.
    assert os.waitstatus_to_exitcode(status) in ((0,) if told else (9, -signal.SIGSEGV))
    return int(told or 0)


@pytest.mark.parametrize("replaces", [False, True])
def test_a_kill_before_any_call_leaves_the_old_or_the_new_and_each_whole(
    replaces: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the claim to the last removal; `replaces`: a checkpoint of the step that was refused."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # what was written survives a mere kill
    origin, here = tmp_path / "origin", tmp_path / "here"
    mine = claim(origin)
    for step in (2, 4, 6):
        save(mine, step, keep_last=3)
    begin(mine, 8)  # left by an earlier kill
    step, refused = 8, []
    if replaces:
        (origin / "step-6" / SHARD).unlink()
        step, refused = 6, [here / "step-6"]

    def work() -> None:
        save(claim(here), step, keep_last=2, refused=refused)

    def start_over() -> None:
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(origin, here)

    start_over()
    calls = calls_until_death(work, None)
    assert calls > 30
    seen = [steps_in(here)]
    for death in reversed(range(calls)):
        start_over()
        assert calls_until_death(work, death) == 0
        if replaces and not (here / "step-6" / SHARD).exists():
            shutil.rmtree(here / "step-6", ignore_errors=True)  # the refused one, still there
        if (found := steps_in(here)) != seen[-1]:
            seen.append(found)
        save(claim(here), 10, keep_last=1)
        assert steps_in(here) == [10]
        left = {p.name for p in here.iterdir() if not p.name.startswith(f".{CLAIM}.")}
        assert left == {CLAIM, "step-10"}, death
    # From the last moment to the first.
    if replaces:
        assert seen == [[4, 6], [2, 4, 6], [2, 4]]
    else:
        assert seen == [[6, 8], [4, 6, 8], [2, 4, 6, 8], [2, 4, 6]]


@pytest.mark.parametrize("missing", [True, False])
def test_what_a_node_wrote_elsewhere_makes_no_checkpoint(missing: bool, tmp_path: Path) -> None:
    """A node without the shared file system makes the same path on its own disk."""
    save(mine := claim(tmp_path), 1)
    written = begin(mine, 2)
    if missing:
        (mine.draft(2) / SHARD).unlink()
    else:
        os.truncate(mine.draft(2) / SHARD, 1)
    with pytest.raises(StorageError, match=SHARD):
        finish(mine, 2, written)
    assert steps_in(tmp_path) == [1]
