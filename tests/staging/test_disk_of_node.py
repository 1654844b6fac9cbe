"""Trees on a node's disk: filled, resumed, found, shared, removed; and a hostile user there."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.staging import copying, disk, manifest, stream
from fsdpkit.staging.copying import StageCopy
from fsdpkit.staging.disk import StageStore
from fsdpkit.staging.listing import listed
from fsdpkit.staging.manifest import CopiedEntry, Manifest, StageError
from fsdpkit.staging.source import SharedFiles
from tests.staging.copies import copied, copy_some, ended, forked

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="takes another user's part")
BLOCK = 4096
SIZES = (BLOCK + 7, 0, 5, 2 * BLOCK, 1000)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "BLOCK", BLOCK)
    monkeypatch.setattr(stream, "BLOCK", BLOCK)
    monkeypatch.setattr(stream, "_ZEROS", bytes(BLOCK))


class Original:
    """Some files, their manifest, and their blocks."""

    def __init__(self, top: Path) -> None:
        (top / "sub").mkdir(parents=True)
        for number, size in enumerate(SIZES):
            path = top / ("sub" if number % 2 else "") / f"f{number}"
            content = bytearray(os.urandom(size))
            if number == 3:
                content[BLOCK - 1012 : 2 * BLOCK - 1012] = bytes(BLOCK)
            path.write_bytes(content)
            path.chmod(0o400)
        (top / "link").symlink_to("f0")
        self.top = top
        self.manifest, sources = listed([("set", str(top))])
        self.name = self.manifest.digest[:16]
        source = SharedFiles(self.manifest, sources)
        self._blocks = [source.read(index) for index in range(self.manifest.block_count)]
        assert [bool(block) for block in self._blocks] == [True, True, False, True]
        self.contents = {each.relative_to(top): each.read_bytes() for each in top.rglob("*f*")}

    def read(self, index: int) -> bytes:
        return self._blocks[index]

    def fill(self, store: StageStore) -> Path:
        """What a job does on a node."""
        return store.claim(self.manifest) or self.part_of(store, None).finish()

    def part_of(self, store: StageStore, end: int | None) -> StageCopy:
        """The tree with its first blocks, filled by who holds its lock."""
        copy = store.begin(self.manifest)
        copy_some(copy, self, end)
        return copy

    def is_whole_in(self, tree: Path) -> bool:
        return all(
            (tree / "set" / name).read_bytes() == content for name, content in self.contents.items()
        )


@pytest.fixture
def original(tmp_path: Path) -> Original:
    return Original(tmp_path / "set")


@pytest.fixture
def local(tmp_path: Path) -> Path:
    (tmp_path / "local").mkdir()
    return tmp_path / "local"


@pytest.fixture
def store(local: Path) -> StageStore:
    return StageStore.open(str(local))


def names(store: StageStore) -> set[str]:
    return {each.name for each in (store.path / "trees").iterdir()}


class KilledAt:
    """Ends this process in the midst of its n-th call that changes the disk."""

    def __init__(self, left: int) -> None:
        self.left = left
        for name in ("pwrite", "open", "rename", "utime", "fchmod", "symlink", "mkdir"):
            setattr(os, name, self._instead_of(name, getattr(os, name)))

    def _instead_of(self, name: str, really: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left:
                return really(*args, **more)
            if name == "pwrite":
                really(args[0], args[1][: len(args[1]) // 2], args[2])
            return os.kill(os.getpid(), signal.SIGKILL)

        return call


def test_a_copy_that_is_killed_anywhere_is_resumed_and_never_half_under_its_name(
    tmp_path: Path, original: Original
) -> None:
    for calls in range(1, 1000):
        (local := tmp_path / str(calls)).mkdir()

        def act(calls: int = calls, local: Path = local) -> None:
            KilledAt(calls)
            original.fill(StageStore.open(str(local)))

        status = ended(forked(act))
        store = StageStore.open(str(local))
        if original.name in names(store):
            assert original.is_whole_in(store.path / "trees" / original.name)
        assert original.is_whole_in(original.fill(store))
        if status == 0:
            break
    assert status == 0 < 40 < calls


def test_what_was_recorded_and_is_not_on_the_disk_is_copied_again(
    store: StageStore, original: Original
) -> None:
    original.part_of(store, 4)
    part = store.path / "trees" / f"{original.name}.part"
    (part / "set" / "sub" / "f3").chmod(0o600)
    with open(part / "set" / "sub" / "f3", "r+b") as file:
        file.seek(BLOCK - 12)  # in block 2, which is a hole
        file.write(b"no hole")
    copy = store.begin(original.manifest)
    assert copy.done == 2
    copy_some(copy, original)
    assert original.is_whole_in(copy.finish())


def test_a_tree_from_before_the_nodes_last_start_is_looked_at_by_content(
    store: StageStore, original: Original, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = original.fill(store)
    file = tree / "set" / "f4"
    was, time_ns = file.read_bytes(), file.stat().st_mtime_ns
    for start in (b"a later start".ljust(32), b"one more".ljust(32)):
        monkeypatch.setattr(copying, "this_start", lambda start=start: start)
        assert store.find(original.manifest) == tree
    file.chmod(0o600)
    file.write_bytes(bytes(len(was)))
    os.utime(file, ns=(time_ns, time_ns))
    assert store.find(original.manifest) == tree, "of this start: names, sizes and times are enough"
    monkeypatch.setattr(copying, "this_start", lambda: b"the next".ljust(32))
    assert store.find(original.manifest) is None
    assert original.is_whole_in(original.fill(store))


@pytest.mark.parametrize(
    "how", ["size", "time", "missing", "link", "file for link", "link for directory", "no record"]
)
def test_a_tree_that_is_not_as_it_was_is_not_found(
    how: str, store: StageStore, original: Original
) -> None:
    tree = original.fill(store)
    (tree / "set" / "another").touch()
    assert store.find(original.manifest) == tree, "further names may be there"
    file, link = tree / "set" / "f2", tree / "set" / "link"
    if how == "size":
        file.chmod(0o600)
        os.truncate(file, 6)
    elif how == "time":
        os.utime(file, ns=(1, 1))
    elif how == "no record":
        (tree.parent / f"{tree.name}.blocks").unlink()
    else:
        changed = {"missing": file, "link for directory": tree / "set" / "sub"}.get(how, link)
        changed.rename(tree / "aside")
        if how != "missing":
            changed.touch() if how == "file for link" else changed.symlink_to("../aside")
    assert store.find(original.manifest) is None
    assert original.fill(store) == tree
    assert original.is_whole_in(tree)
    assert store.find(original.manifest) == tree


def test_blocks_are_read_by_another_thread_while_they_are_written_and_after(
    store: StageStore, original: Original
) -> None:
    assert store.claim(original.manifest) is None
    copy = store.begin(original.manifest)
    with pytest.raises(IndexError):
        copy.read(0)
    had: list[bytes] = []

    def serve() -> None:
        while len(had) < original.manifest.block_count:
            if copy.done > len(had):
                had.append(copy.read(len(had)))

    thread = threading.Thread(target=serve)
    thread.start()
    copy_some(copy, original)
    tree = copy.finish()
    thread.join()
    assert had == [original.read(index) for index in range(copy.done)]
    found = store.whole(original.manifest)
    assert found is not None
    assert [found.read(index) for index in range(found.done)] == had
    assert [found.sha256(index) for index in range(found.done)] == [
        stream.sha256_of(data, original.manifest.length(index)) for index, data in enumerate(had)
    ]
    (tree / "set" / "sub" / "f3").chmod(0o600)
    os.truncate(tree / "set" / "sub" / "f3", 1)
    with pytest.raises(StageError):
        found.read(2)


def test_a_hole_takes_no_room_is_not_read_and_is_handed_on_as_one(
    tmp_path: Path, store: StageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    really = os.pread
    monkeypatch.setattr(os, "pread", lambda *a: calls.append(a) or really(*a))
    (top := tmp_path / "set").mkdir()
    with open(top / "sparse", "wb") as file:
        file.seek(300 * BLOCK)
        file.write(b"in the middle")
        file.truncate(1000 * BLOCK + 5)
    (top / "zeros").write_bytes(bytes(2 * BLOCK))
    tree, held = copied([("set", str(top))], store)
    assert len(calls) < 10
    assert (tree / "set" / "sparse").read_bytes() == (top / "sparse").read_bytes()
    assert (tree / "set" / "sparse").stat().st_blocks * 512 <= 4 * BLOCK
    assert (copy := store.whole(held))
    assert [index for index in range(copy.done) if copy.read(index)] == [300]


@pytest.fixture
def small_disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={60 * BLOCK},mode=700", "none", made]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("may mount nothing")
        yield Path(made)
        subprocess.run(["umount", "-l", made], check=True)


def test_a_disk_that_fills_up_is_told_by_name_and_gone_on_with_once_there_is_room(
    small_disk: Path, original: Original
) -> None:
    store = StageStore.open(str(small_disk))
    copy = original.part_of(store, 2)
    with pytest.raises(OSError, match="No space"):
        (small_disk / "other").write_bytes(bytes(60 * BLOCK))
    with pytest.raises(StageError, match=platform.node()) as full:
        copy_some(copy, original)
    assert full.value.cause == "disk-full"
    copy.close()
    with pytest.raises(StageError, match=r"GB needed, .* free") as full:
        store.begin(original.manifest)
    assert full.value.cause == "disk-full"
    (small_disk / "other").unlink()
    assert original.name not in names(store)
    copy = store.begin(original.manifest)
    assert copy.done >= 2
    copy_some(copy, original)
    assert original.is_whole_in(copy.finish())


def test_more_than_the_disk_has_is_refused_before(small_disk: Path) -> None:
    entries = (CopiedEntry("big", "file", 100_000 * BLOCK),)
    with pytest.raises(StageError, match="GB needed") as full:
        StageStore.open(str(small_disk)).begin(Manifest(entries, {"big": "/big"}))
    assert full.value.cause == "disk-full"


@pytest.mark.parametrize("who", ["a link", "a file", "another user", "open to all", "trees a link"])
def test_a_name_that_somebody_else_made_before_us_is_left_alone(
    who: str, local: Path, tmp_path: Path, original: Original
) -> None:
    (victim := tmp_path / "victim").mkdir(mode=0o700)
    ours = local / f"fsdpkit-{os.geteuid()}"
    if who == "a link":
        ours.symlink_to(victim)
    elif who == "a file":
        ours.touch()
    else:
        ours.mkdir(mode=0o700)
        if who == "open to all":
            ours.chmod(0o777)
        elif who == "trees a link":
            (ours / "trees").symlink_to(victim)
        elif os.geteuid() != 0:
            pytest.skip("takes another user's part")
        else:
            os.chown(ours, 4321, 4321)
    store = StageStore.open(str(local))
    assert store.path != ours
    assert original.fill(store)
    assert not list(victim.iterdir())
    assert store.path.stat().st_mode & 0o077 == 0
    assert StageStore.open(str(local)).find(original.manifest), "ours beside it is found again"


@root_only
@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o1777, 4321)])
def test_a_place_where_others_may_rename_our_files_is_refused(
    mode: int, owner: int, local: Path
) -> None:
    local.chmod(mode)
    os.chown(local, owner, owner)
    with pytest.raises(StageError):
        StageStore.open(str(local))


def test_a_place_that_the_node_does_not_have_is_named(tmp_path: Path) -> None:
    for place in ("$NO_SUCH_VARIABLE/x", "relative", str(tmp_path / "nowhere/at/all")):
        with pytest.raises(StageError, match=place.rpartition("/")[2]):
            StageStore.open(place)


@pytest.mark.parametrize("what", ["part", "part/set/sub", "part/set/sub/f3", "blocks", "lock"])
@pytest.mark.parametrize("in_hand", [False, True])
def test_what_becomes_a_link_between_our_looks_is_not_followed(
    what: str, in_hand: bool, store: StageStore, tmp_path: Path, original: Original
) -> None:
    (victim := tmp_path / "victim").mkdir()
    precious = original.contents[Path("sub/f3")][: BLOCK - 1012] + b"precious" * 1000
    (file := victim / "f3").write_bytes(precious)
    os.utime(file, (1, 1))
    at = store.path / "trees" / f"{original.name}.{what}"
    assert store.claim(original.manifest) is None
    copy = original.part_of(store, 2)
    at.rename(tmp_path / "aside")
    at.symlink_to(victim if what in ("part", "part/set/sub") else file)
    if in_hand and what == "part":
        copy_some(copy, original)
        with pytest.raises(StageError):
            copy.finish()
    elif not in_hand:
        store.lock(original.manifest).release()
        again = StageStore.open(str(store.path.parent))
        with contextlib.suppress(StageError):
            assert original.is_whole_in(original.fill(again))
        with contextlib.suppress(StageError):
            again.remove(original.manifest)
    assert os.listdir(victim) == ["f3"]
    assert (file.read_bytes(), file.stat().st_mtime) == (precious, 1)


def test_an_ordinary_user_resumes_and_removes_what_may_not_be_written(original: Original) -> None:
    def act() -> None:
        store = StageStore.open(f"{made}/local")
        tree = original.fill(store)
        (tree / "set" / "f4").unlink()
        (tree / "set").chmod(0o500)
        with open(tree.parent / f"{tree.name}.blocks", "r+b") as record:
            record.seek(32 * 3)
            record.write(b"wrong")
        assert original.fill(store) == tree
        assert original.is_whole_in(tree)
        (tree / "set" / "out").symlink_to(victim)
        (tree / "set" / "sub").chmod(0)
        (tree / "set").chmod(0o500)
        assert store.remove(original.manifest)
        assert not names(store)
        assert os.listdir(victim) == ["file"]

    with tempfile.TemporaryDirectory() as made:
        (local := Path(made) / "local").mkdir()
        (victim := Path(made) / "victim").mkdir()
        (victim / "file").touch()
        if os.geteuid() != 0:
            act()
            return
        os.chmod(made, 0o711)
        for each in (local, victim):
            os.chown(each, 4321, 4321)
        assert ended(forked(act, uid=4321)) == 0


@pytest.mark.parametrize("fate", ["fills it", "is killed"])
def test_of_two_jobs_one_fills_and_the_other_waits(
    fate: str, local: Path, original: Original
) -> None:
    began, goes_on = os.pipe(), os.pipe()

    def first() -> None:
        store = StageStore.open(str(local))
        assert store.claim(original.manifest) is None
        copy = original.part_of(store, 1)
        os.write(began[1], b"x")
        os.read(goes_on[0], 1)
        copy_some(copy, original)
        copy.finish()

    child = forked(first)
    os.read(began[0], 1)
    store = StageStore.open(str(local))
    found: list[Path | None] = []
    waiting = threading.Thread(target=lambda: found.append(store.claim(original.manifest)))
    waiting.start()
    time.sleep(0.3)
    assert not found
    assert not StageStore.open(str(local)).remove(original.manifest), "in use"
    if fate == "is killed":
        os.kill(child, signal.SIGKILL)
    else:
        os.write(goes_on[1], b"x")
    ended(child)
    waiting.join()
    tree = store.path / "trees" / original.name
    assert found == [tree if fate == "fills it" else None]
    if fate == "is killed":
        assert store.begin(original.manifest).done == 1


def test_who_waits_too_long_or_finds_a_tree_in_use_that_was_changed_says_so(
    local: Path, original: Original, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_POLL_S", 0.001)
    one, two = (StageStore.open(str(local)) for _ in range(2))
    assert one.claim(original.manifest) is None
    with pytest.raises(StageError, match="not whole"):
        two.claim(original.manifest, wait_s=0.0)
    tree = original.part_of(one, None).finish()
    assert one.claim(original.manifest) == tree
    (tree / "set" / "f2").unlink()
    with pytest.raises(StageError, match="not whole"):
        two.claim(original.manifest)
    one.lock(original.manifest).release()
    assert two.claim(original.manifest) is None


def test_what_is_in_use_or_was_used_lately_is_not_removed(
    local: Path, store: StageStore, original: Original, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = original.fill(store)
    assert store.claim(original.manifest) == tree
    job = store.job_dir("1_0_0")
    (store.path / "trees" / ("a" * 16 + ".part")).mkdir()
    (store.path / "jobs" / "2_0_0").mkdir()
    other = StageStore.open(str(local))
    locks = [tree.parent / f"{tree.name}.lock", job.parent / "1_0_0.lock"]

    def later(hours: float) -> None:
        for lock in locks:
            os.utime(lock, (time.time() - hours * 3600,) * 2)

    later(100)
    for each in (store, other):
        each.prune(kept_h=0.0)
    assert not other.remove(original.manifest)
    assert not other.remove_job("1_0_0")
    assert {each.name for each in job.parent.iterdir()} == {"1_0_0", "1_0_0.lock"}
    assert names(store) == {tree.name, f"{tree.name}.lock", f"{tree.name}.blocks"}
    assert store.find(original.manifest) == tree
    store.lock(original.manifest).release()
    other.prune(kept_h=0.0)
    later(100)
    with monkeypatch.context() as patched:  # used by a third between two looks
        take = disk.TreeLock.take
        patched.setattr(disk.TreeLock, "take", lambda *a, **k: later(0) or take(*a, **k))
        other.prune(kept_h=0.0)
    later(1)
    other.prune(kept_h=2.0)
    assert tree.exists(), "used lately"
    other.prune(kept_h=0.5)
    assert names(store) == set()
    assert store.remove_job("1_0_0")
    assert not list(job.parent.iterdir())


def test_a_lock_that_was_removed_with_its_tree_locks_nothing(
    local: Path, store: StageStore, original: Original
) -> None:
    """Whoever waits for it takes the new one."""
    original.fill(store)
    lock = store.lock(original.manifest)
    assert lock.take(exclusive=True)
    other = StageStore.open(str(local))
    taken: list[bool] = []
    waits = threading.Thread(
        target=lambda: taken.append(other.lock(original.manifest).take(True, wait_s=600.0))
    )
    waits.start()
    time.sleep(0.2)
    assert store.remove(original.manifest)
    waits.join()
    assert taken == [True]
    assert not store.lock(original.manifest).take(exclusive=True)
    assert not store.lock(original.manifest).held


def test_a_small_file_costs_few_calls(
    tmp_path: Path, store: StageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1000):
        (path := tmp_path / "many" / f"d{number // 100}" / f"{number}").parent.mkdir(
            parents=True, exist_ok=True
        )
        path.write_bytes(b"few bytes")
    calls: list[str] = []
    for name in ("open", "pwrite", "utime", "fchmod", "stat", "fstat", "close", "lseek", "pread"):
        really = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *a, _of=(name, really), **k: calls.append(_of[0]) or _of[1](*a, **k)
        )
    copied([("many", str(tmp_path / "many"))], store)
    assert len(calls) < 1000 * 9
