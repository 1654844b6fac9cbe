"""What is listed and read of the shared file system, and what is refused."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.staging.disk import StageStore
from fsdpkit.staging.listing import listed
from fsdpkit.staging.manifest import BLOCK, CopiedEntry, Manifest, StageError
from fsdpkit.staging.source import PACK_MAGIC, PackFile, SharedFiles
from tests.staging.copies import copied, ended, forked

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="takes another user's part")


@pytest.fixture
def store(tmp_path: Path) -> StageStore:
    (tmp_path / "local").mkdir()
    return StageStore.open(str(tmp_path / "local"))


def files(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(name.encode() * 3)
    return directory


def looked_at(top: bytes) -> dict[bytes, tuple[object, ...]]:
    """All that a tree is."""
    found: dict[bytes, tuple[object, ...]] = {}
    for directory, directories, names in os.walk(top):
        for name in directories + names:
            path = os.path.join(directory, name)
            at = os.lstat(path)
            if stat.S_ISREG(at.st_mode):
                content = Path(os.fsdecode(path)).read_bytes()
                found[path[len(top) :]] = content, at.st_mtime_ns, at.st_mode & 0o700
            else:
                target = os.readlink(path) if stat.S_ISLNK(at.st_mode) else None
                found[path[len(top) :]] = at.st_mode & 0o170000, target
    return found


def test_a_tree_arrives_as_it_is(tmp_path: Path, store: StageStore) -> None:
    top = files(tmp_path / "set", "a/b/c", "a.txt", "a/z", "new\nline", ".hidden", " ")
    (top / "a" / "empty").touch()
    (top / "none").mkdir()
    (top / "long").write_bytes(os.urandom(2 * BLOCK + 5))
    with open(os.fsencode(top) + b"/\xff\xfe*", "wb") as file:
        file.write(b"no text")
    for number, path in enumerate(sorted(each for each in top.rglob("*") if each.is_file())):
        path.chmod((0o644, 0o400, 0o755)[number % 3])
        os.utime(path, ns=(0, 1_600_000_000_123_456_789 + number))
    (top / "link").symlink_to("a/../a/b/c")
    tree, _ = copied([("set", str(top))], store)
    arrived, was = looked_at(os.fsencode(tree / "set")), looked_at(os.fsencode(top))
    assert arrived.pop(b"/link")[1] == b"a/b/c"
    assert was.pop(b"/link")
    assert arrived == was


def test_links_stay_within_the_tree_or_become_what_they_lead_to(
    tmp_path: Path, store: StageStore
) -> None:
    out = files(tmp_path / "out", "deep/file", "single")
    (out / "deep" / "again").symlink_to(out / "deep")  # a cycle
    (out / "back").symlink_to(tmp_path / "set" / "real")
    top = files(tmp_path / "set", "real/file")
    (top / "absolute").symlink_to(top / "real")
    (top / "here").symlink_to(".")
    (top / "one").symlink_to("../out/single")
    (top / "two").symlink_to("one")
    (top / "whole").symlink_to("../out")
    manifest, _ = listed([("set", str(top))])
    assert {entry.path: entry.target for entry in manifest.entries if entry.kind == "link"} == {
        "set/absolute": "real",
        "set/here": ".",
        "set/two": "one",
        "set/whole/back": "../real",
        "set/whole/deep/again": ".",
    }
    nested, _ = listed([("real", str(top / "real")), ("set", str(top))])
    assert ("set/real", "../real") in [(entry.path, entry.target) for entry in nested.entries]
    tree, _ = copied([("set", str(top))], store)
    assert (tree / "set" / "two").read_bytes() == b"single" * 3
    assert (tree / "set" / "whole" / "deep" / "file").read_bytes() == b"deep/file" * 3


@pytest.mark.parametrize(
    "kind", ["dangling", "itself", "above", "fifo", "socket", "device", "gone"]
)
def test_what_cannot_be_copied_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = files(tmp_path / "set", "a")
    monkeypatch.chdir(top)  # a socket's path is short
    odd = top / "odd"
    if kind == "device" and os.geteuid() != 0:
        pytest.skip("takes root")
    with socket.socket(socket.AF_UNIX) as listening:
        make: dict[str, Callable[[], object]] = {
            "dangling": lambda: odd.symlink_to("nowhere"),
            "itself": lambda: odd.symlink_to("odd"),
            "above": lambda: odd.symlink_to(".."),
            "fifo": lambda: os.mkfifo(odd),
            "socket": lambda: listening.bind("odd"),
            "device": lambda: os.mknod(odd, 0o600 | stat.S_IFCHR, os.makedev(1, 5)),
            "gone": lambda: None,
        }
        make[kind]()
        with pytest.raises(StageError, match="odd") as refused:
            listed([("set", str(odd if kind == "gone" else top))])
    assert refused.value.cause == "data-missing"


@root_only
@pytest.mark.parametrize("closed", ["set/file", "set/below"])
def test_what_may_not_be_read_is_named(closed: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o711)
        top = files(Path(made), "set/file", "set/below/file")
        (top / closed).chmod(0o700 if closed.endswith("below") else 0o640)

        def act() -> None:
            with pytest.raises(StageError, match=Path(closed).name) as refused:
                listed([("set", str(top / "set"))])
            assert refused.value.cause == "data-missing"

        assert ended(forked(act, uid=4321)) == 0


def test_patterns_choose_names(tmp_path: Path) -> None:
    top = files(tmp_path / "set", "b/2.x", "a/1.x", "a/1.y", "3.x", ".h.x", "a/c/4.x", "[1].x")

    (top / "b" / "loop").mkdir()
    (top / "b" / "loop" / "up").symlink_to(top)

    def names(pattern: str) -> list[str]:
        manifest, _ = listed([("set", str(top / pattern))])
        return [entry.path[4:] for entry in manifest.entries if entry.kind == "file"]

    assert names("*.x") == ["3.x", "[1].x"]
    assert names("*/*.x") == ["a/1.x", "b/2.x"]
    assert names("**/*.x") == ["3.x", "[1].x", "a/1.x", "a/c/4.x", "b/2.x"]
    assert names("[ac]") == ["a/1.x", "a/1.y", "a/c/4.x"]
    assert listed([("[1].x", str(top / "[1].x"))])[0].entries[0].kind == "file"
    with pytest.raises(StageError) as refused:
        names("*.z")
    assert refused.value.cause == "data-missing"


def test_of_sharded_files_a_node_has_its_own_and_links_to_others(tmp_path: Path) -> None:
    top = files(tmp_path / "set", *(f"{number:02}" for number in range(11)))
    (top / "05").unlink()
    (top / "05").symlink_to("04")  # counts: a script that sorts the names sees a file
    had: list[int] = []
    for node in range(2):
        manifest, sources = listed([("set", f"{top}/*")], share=(node, 2, 4))
        mine = [int(entry.path[-2:]) for entry in manifest.entries if entry.kind == "file"]
        assert all(number % 4 // 2 == node for number in mine)
        assert sources == [str(top / f"{number:02}") for number in mine]
        had += mine
        for entry in manifest.entries:
            if entry.kind == "link" and entry.path != "set/05":
                assert entry.target == str(top / entry.path[-2:])
    assert sorted(had) == [number for number in range(11) if number != 5]


@pytest.mark.parametrize(
    "how", ["grows", "shrinks", "is rewritten", "is gone", "is a fifo", "link"]
)
@pytest.mark.parametrize("begun", [False, True])
def test_a_file_that_changes_while_it_is_copied_is_named(
    how: str, begun: bool, tmp_path: Path
) -> None:
    top = files(tmp_path / "set", "a")
    long = top / "long"
    long.write_bytes(os.urandom(2 * BLOCK))
    source = SharedFiles(*listed([("set", str(top))]))
    if begun:
        source.read(0)
    time, size = long.stat().st_mtime_ns, long.stat().st_size
    if how == "is rewritten":
        os.utime(long, ns=(time, time + 1))
    elif how in ("grows", "shrinks"):
        os.truncate(long, size + (1 if how == "grows" else -1))
        os.utime(long, ns=(time, time))
    else:
        long.rename(top / "before")
        if how == "is a fifo":
            os.mkfifo(long)
        elif how == "link":
            long.symlink_to(long)
    if begun and how not in ("grows", "shrinks", "is rewritten"):
        assert len(source.read(1)) == BLOCK, "the file that is open is as it was"
        return
    with pytest.raises(StageError, match="long") as refused:
        source.read(1)
    assert refused.value.cause == "data-missing"


def test_each_file_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = files(tmp_path / "set", *(f"d{number % 7}/{number}" for number in range(100)))
    (top / "e").write_bytes(os.urandom(3 * BLOCK))
    manifest, sources = listed([("set", str(top))])
    source = SharedFiles(manifest, sources)
    opened: list[object] = []
    really = os.open
    monkeypatch.setattr(os, "open", lambda *a, **k: opened.append(a[0]) or really(*a, **k))
    for index in range(manifest.block_count):
        source.read(index)
    assert opened == [os.fsencode(each) for each in sources]


def test_a_pack_gives_what_it_says(tmp_path: Path) -> None:
    stream = os.urandom(BLOCK) + bytes(BLOCK) + b"end"
    blocks = [stream[at : at + BLOCK] for at in range(0, len(stream), BLOCK)]
    digests = tuple(hashlib.sha256(block).hexdigest() for block in blocks)
    manifest = Manifest(
        (CopiedEntry("f", "file", len(stream)),), {"f": "/f"}, digests, {"kind": "venv"}
    )
    head = manifest.encode() + bytes(100)
    whole = PACK_MAGIC + len(head).to_bytes(8, "big") + head + stream
    (tmp_path / "pack").write_bytes(whole)
    pack = PackFile(tmp_path / "pack")
    assert pack.manifest == manifest
    assert [pack.read(index) for index in range(3)] == [blocks[0], b"", blocks[2]]
    for damaged in (whole[:-1], whole + b"!", b"x" + whole[1:], whole[:40]):
        (tmp_path / "pack").write_bytes(damaged)
        with pytest.raises(StageError):
            PackFile(tmp_path / "pack")
    (tmp_path / "pack").write_bytes(whole[:-1] + b"!")
    with pytest.raises(StageError):
        PackFile(tmp_path / "pack").read(2)


@pytest.mark.parametrize(
    "entry",
    [
        ["../a", "file", 1, 0o600, 0, ""],
        ["a", "file", 1 << 63, 0o600, 0, ""],
        ["\ud800", "file", 1, 0o600, 0, ""],
        ["a/b", "file", 1, 0o600, 0, ""],
        ["a", "file", 1, 0o4600, 0, ""],
    ],
)
def test_a_list_that_no_disk_can_have_is_refused(entry: list[object]) -> None:
    told = Manifest(())
    object.__setattr__(told, "entries", [entry])
    with pytest.raises(StageError):
        Manifest.decode(told.encode())
