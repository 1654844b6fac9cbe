"""The work tree that a laptop sends: what belongs to it, and what is believed of what arrives."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.errors import DamagedError, StorageError, UsageError
from fsdpkit.remote import tree
from fsdpkit.remote.protocol import MOST_BYTES, RemoteRequest, answer, answer_in


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A repository in the middle of a merge, with one file of each kind."""
    top = tmp_path / "work"
    top.mkdir()
    git(top, "init", "-q", "-b", "main")
    for name in ("train.py", "gone.py", "both.py"):
        (top / name).write_text(name)
    (top / ".gitignore").write_text("*.pt\n")
    git(top, "add", ".")
    git(top, "commit", "-qm", "one")
    git(top, "checkout", "-qb", "side")
    (top / "both.py").write_text("side")
    git(top, "commit", "-qam", "two")
    git(top, "checkout", "-q", "main")
    (top / "both.py").write_text("main")
    git(top, "commit", "-qam", "three")
    assert git(top, "merge", "side", check=False) != 0
    (top / "gone.py").unlink()
    (top / "model.pt").write_text("large")
    (top / "deep").mkdir()
    os.write(os.open(os.fsencode(top / "deep") + b"/n\xffew \n", os.O_CREAT | os.O_WRONLY), b"new")
    (top / "run.sh").write_text("#!/bin/sh\n")
    (top / "run.sh").chmod(0o755)
    (top / "dangling").symlink_to("/nowhere/else")
    (top / "folder").symlink_to("deep")
    other = top / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "module.py").write_text("")
    return top


def git(top: Path, *words: str, check: bool = True) -> int:
    own = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    argv = ["git", *own, "-C", str(top), *words]
    return subprocess.run(argv, check=check, capture_output=True).returncode


def sent(made: tree.Tree) -> io.BytesIO:
    stream = io.BytesIO()
    tree.write_stream(made, stream)
    stream.seek(0)
    return stream


def stream_of(rows: list[Any], contents: bytes = b"") -> tuple[io.BytesIO, str]:
    """What another program might send, with the digest that fits."""
    manifest = json.dumps(rows, separators=(",", ":")).encode()
    text = len(manifest).to_bytes(8, "big") + manifest + contents
    return io.BytesIO(gzip.compress(text)), hashlib.sha256(manifest).hexdigest()[:32]


def test_what_git_knows_or_does_not_ignore_arrives_as_it_is(work: Path, home: Path) -> None:
    made = tree.tree_of(work / "deep", 100)
    place = tree.receive(sent(made), made.digest)
    there = {path.relative_to(place).as_posix(): path for path in place.rglob("*")}
    assert sorted(there) == sorted(
        [
            *(".gitignore", "train.py", "both.py", "run.sh", "dangling", "folder"),
            *("deep", os.fsdecode(b"deep/n\xffew \n"), "other", "other/module.py"),
        ]
    )
    assert os.readlink(there["dangling"]) == "/nowhere/else"
    assert os.readlink(there["folder"]) == "deep"
    assert os.access(there["run.sh"], os.X_OK)
    assert "<<<<<<<" in there["both.py"].read_text()
    assert place.parent == home / ".fsdpkit" / "trees"
    assert {p.stat().st_mode & 0o077 for p in there.values() if p.is_file()} == {0}


def test_without_git_hidden_folders_caches_environments_and_runs_stay(tmp_path: Path) -> None:
    top = tmp_path / "plain"
    run = ("runs/x/run.json", "runs/x/job.json", "runs/x/y/z")
    for name in ("a.py", ".hidden/b", "__pycache__/c", "env/pyvenv.cfg", *run, "d/e"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("")
    os.mkfifo(top / "pipe")
    assert [e.path for e in tree.tree_of(top, 100).entries] == ["a.py", "d/e"]


def test_a_large_tree_is_refused_with_its_largest_parts(work: Path) -> None:
    (work / "data").mkdir()
    os.truncate(os.open(work / "data" / "big", os.O_CREAT | os.O_WRONLY), 300 << 30)
    with pytest.raises(UsageError, match=r"data \(322\.1 GB\).*hosts\.toml"):
        tree.tree_of(work, 100)


def test_a_repository_s_own_programs_do_not_run(work: Path, tmp_path: Path) -> None:
    git(work, "config", "core.fsmonitor", f"touch {tmp_path}/ran; false")
    tree.tree_of(work, 100)
    assert not (tmp_path / "ran").exists()


def test_where_git_does_not_answer_nothing_is_sent(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it ignores may be secret."""
    (work / ".git" / "config").write_text("[core")
    with pytest.raises(UsageError, match="config"):
        tree.tree_of(work, 100)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="git is not installed"):
        tree.tree_of(work, 100)


def test_a_tree_is_found_again_unless_somebody_changed_it(work: Path) -> None:
    made = tree.tree_of(work, 100)
    assert tree.find_tree(made.digest) is None
    first = tree.receive(sent(made), made.digest)
    assert tree.receive(sent(made), made.digest) == first
    (first / "written by a job").write_text("")
    assert tree.find_tree(made.digest) == first
    (first / "train.py").chmod(0o600)
    (first / "train.py").write_text("another")
    assert tree.find_tree(made.digest) is None
    second = tree.receive(sent(made), made.digest)
    assert tree.find_tree(made.digest) == second != first


def test_nobody_else_can_change_what_a_job_runs(work: Path, home: Path) -> None:
    made = tree.tree_of(work, 100)
    before = os.umask(0)
    try:
        place = tree.receive(sent(made), made.digest)
    finally:
        os.umask(before)
    found = [place, *place.parents[:2], *place.rglob("*")]
    assert [str(p) for p in found if not p.is_symlink() and p.stat().st_mode & 0o077] == []
    place.parent.parent.chmod(0o770)
    with pytest.raises(StorageError, match="chmod go-w"):
        tree.receive(sent(made), made.digest)


def test_a_file_that_changes_while_it_is_sent_is_noticed(work: Path) -> None:
    made = tree.tree_of(work, 100)
    (work / "train.py").write_text("train.px")  # as long as before
    with pytest.raises(DamagedError, match=r"train\.py changed"):
        tree.receive(sent(made), made.digest)
    (work / "train.py").write_text("longer than before")
    with pytest.raises(StorageError, match="changed"):
        sent(made)
    assert not list(tree.trees_dir().iterdir())


@pytest.mark.parametrize(
    "path",
    ["../out", "/etc/x", "a/../../x", "", ".", "a//b", ".git/config", "a/.git/hooks/x", "a\0b"],
)
def test_a_path_that_leads_out_of_the_tree_is_refused(path: str, tmp_path: Path) -> None:
    stream, digest = stream_of([[path, "f", hashlib.sha256(b"").hexdigest(), 0]])
    with pytest.raises(DamagedError, match="no path"):
        tree.receive(stream, digest)
    assert not (tmp_path / "out").exists()
    assert not list(tree.trees_dir().iterdir())


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    rows = [["a", "l", str(outside), 0], ["a/b", "f", hashlib.sha256(b"").hexdigest(), 0]]
    for these in (rows, rows[::-1]):
        stream, digest = stream_of(these)
        with pytest.raises(StorageError):
            tree.receive(stream, digest)
    assert not list(outside.iterdir())


@pytest.mark.parametrize("rows", [[1], {"a": 1}, [["a", "f", "x"]], [["a", "f", "x", "y"]], "a"])
def test_a_list_that_is_none_is_refused(rows: Any) -> None:
    stream, digest = stream_of(rows)
    with pytest.raises(DamagedError):
        tree.receive(stream, digest)


def test_a_stream_that_ends_early_leaves_nothing(work: Path) -> None:
    made = tree.tree_of(work, 100)
    whole = sent(made).getvalue()
    for content in (whole[:-30], b"", b"noise", gzip.compress(b"\xff" * 8)):
        with pytest.raises(DamagedError):
            tree.receive(io.BytesIO(content), made.digest)
    assert not list(tree.trees_dir().iterdir())


def test_a_full_disk_leaves_nothing(
    work: Path, full_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(full_disk))
    made = tree.tree_of(work, 100)
    with pytest.raises(StorageError):
        tree.receive(sent(made), made.digest)
    assert not list(full_disk.rglob("train.py"))


# What the two sides say


def test_a_request_too_long_for_a_command_line_is_refused() -> None:
    with pytest.raises(UsageError, match="job file"):
        RemoteRequest("run", ("x" * MOST_BYTES,)).encode()


@pytest.mark.parametrize("text", ["", "!", "e30", "bm9uZQ", "WzFd"])
def test_what_is_no_request_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        RemoteRequest.decode(text)


def test_an_answer_is_found_among_other_lines() -> None:
    assert answer_in("motd\nno newline at its end" + answer({"a": 1}) + "logout\n") == {"a": 1}
    assert answer_in("motd\n") is None
