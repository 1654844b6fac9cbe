"""Readers have the old or the new whole thing: whatever a publisher's end comes in between, however
many publish at once, and however far the folder is copied."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fsdpkit.publishing import writing
from fsdpkit.runs import layout
from tests.publishing.centres import Centre, says, state_files, submit, typed

CALLS = (
    "open",
    "write",
    "mkdir",
    "chmod",
    "fchmod",
    "fsync",
    "rename",
    "replace",
    "link",
    "unlink",
)


class Crash(BaseException):
    """The machine stops here. What would tidy up afterwards does not run either."""


class Failing:
    """`os`, until the n-th call that changes something on disk; then nothing changes any more."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*args: Any, **options: Any) -> Any:
            if name == "open" and not (args[1] & os.O_CREAT):
                return real(*args, **options)
            self.count += 1
            if self.count >= self.at:
                raise Crash(name)
            return real(*args, **options)

        return call


def _forget() -> None:
    for path in state_files():
        path.unlink()


def test_a_publisher_who_is_stopped_at_any_write_leaves_the_old_or_the_new(
    centre: Centre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # nor does it tidy up
    monkeypatch.setattr("fsdpkit.runs.lock.ABANDONED_S", -1e9)  # the dead hold no lock
    centre.publish_version("1.0.0")
    seen, at = set(), 0
    while True:
        at += 1
        with monkeypatch.context() as patch:
            fake = Failing(at)
            for module in (writing, layout):
                patch.setattr(module, "os", fake)
            patch.setattr(writing.shutil, "rmtree", lambda *a, **k: None)
            try:
                centre.publish_version(f"2.0.{at}")
                ended = True
            except Crash:
                ended = False
        (centre.dir / "published" / "lock").unlink(missing_ok=True)
        said = says(submit())
        assert said in ("v1.0.0", f"v2.0.{at}"), at
        assert not ended or said == f"v2.0.{at}"
        seen.add(said == "v1.0.0")
        assert typed("templates", "--check").status == 0, at
        # Whoever comes next publishes the same, or what follows.
        centre.publish_version(f"2.0.{at}")
        assert says(submit()) == f"v2.0.{at}"
        if ended:
            break
        centre.publish_version("1.0.0")
        assert typed("publish", "promote", "small@1.0.0", "--key", centre.alex).status == 0
    assert seen == {True, False}
    assert at > 25, "so many writes there are"


def test_whoever_is_killed_anywhere_holds_nobody_up(centre: Centre) -> None:
    """A process of its own, ended by SIGKILL while it holds the lock."""
    centre.publish_version("1.0.0")
    program = (
        "import os, signal, sys\n"
        "from fsdpkit.publishing import writing\n"
        "def die(*a): os.kill(os.getpid(), signal.SIGKILL)\n"
        "writing._replace_index = die\n"
        "from fsdpkit.cli.main import main\n"
        "main()\n"
    )
    words = ["publish", str(centre.template("2.0.0")), "--to", str(centre.dir)]
    command = [sys.executable, "-c", program, *words, "--key", str(centre.alex)]
    assert subprocess.run(command, check=False).returncode == -9
    assert (centre.dir / "published" / "lock").exists()
    assert says(submit()) == "v1.0.0"
    centre.publish_version("2.0.1")
    assert says(submit()) == "v2.0.1"


def test_two_who_publish_at_once_both_have_published(centre: Centre) -> None:
    """Six processes, two people, six things."""
    sources = []
    for n in range(6):
        path = centre.profile(f"Cluster {n}")
        sources.append(path.rename(centre.drafts / f"cluster{n}.toml"))
    keys = (centre.alex, centre.kim)
    started = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "fsdpkit", "publish", str(source)),
                *("--to", str(centre.dir), "--key", str(keys[n % 2])),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for n, source in enumerate(sources)
    ]
    for process in started:
        said = process.communicate(timeout=300)[0]
        assert process.returncode == 0, said
    out = typed("publish", "list").out
    assert all(f"cluster{n} " in out for n in range(6))
    assert len(list((centre.dir / "published" / "history").iterdir())) == 6


def test_without_a_lock_that_holds_the_loser_is_told(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another index appears while this one is being made, as where a file system's locks fail."""
    centre.publish_version("1.0.0")
    real = writing._write_versions

    def meanwhile(*args: Any) -> None:
        monkeypatch.setattr(writing, "_write_versions", real)
        (centre.dir / "published" / "lock").unlink()
        centre.publish(centre.profile(), key=centre.kim)
        real(*args)

    monkeypatch.setattr(writing, "_write_versions", meanwhile)
    done = centre.try_to_publish(centre.template("2.0.0", "v2.0.0"))
    assert done.status == 74
    assert "somebody else published" in done.err
    assert says(submit()) == "v1.0.0"
    assert "cluster" in typed("publish", "list").out, "nothing of theirs is lost"
    centre.publish_version("2.0.0")
    assert says(submit()) == "v2.0.0"


def test_every_half_of_a_copy_is_refused_or_whole(
    centre: Centre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is copied file by file, in two orders, and read after each file, also while the
    file is half there."""
    centre.publish_version("1.0.0")
    centre.publish(centre.profile())
    files = sorted(p for p in centre.dir.rglob("*") if p.is_file())
    for order in (files, files[::-1]):
        copy = tmp_path / "copy"
        monkeypatch.setenv("FSDPKIT_SITE_PATH", str(copy))
        _forget()
        copy.mkdir()
        for file in order:
            target = copy / file.relative_to(centre.dir)
            target.parent.mkdir(parents=True, exist_ok=True)
            content = file.read_bytes()
            for part in (content[: len(content) // 2], content):
                target.write_bytes(part)
                done = submit()
                if done.status == 0:
                    assert says(done) == "v1.0.0"
                else:
                    assert done.status in (65, 66), done.err
                    assert done.out == ""
        assert says(submit()) == "v1.0.0"
        shutil.rmtree(copy)


def test_a_file_that_is_replaced_while_nfs_reads_it_is_read_again(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    from fsdpkit.config.published import centre as reading

    centre.publish(centre.template())
    real, stale = reading.read_bytes, [True, True]

    def read(path: Path, most: int) -> bytes:
        if path.name == "index" and stale:
            stale.pop()
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return real(path, most)

    monkeypatch.setattr(reading, "read_bytes", read)
    assert says(submit()) == "hello"


def test_one_submission_is_of_one_index(centre: Centre, monkeypatch: pytest.MonkeyPatch) -> None:
    """Job and template are published together while somebody submits: both old, or both new."""
    from fsdpkit.scheduling import submission

    centre.publish(centre.template("1.0.0", "v1"))
    centre.publish(centre.job())
    real = submission.load_template

    def slow(name: str) -> Any:
        monkeypatch.setattr(submission, "load_template", real)
        centre.publish(centre.template("2.0.0", "v2"))
        return real(name)

    monkeypatch.setattr(submission, "load_template", slow)
    done = typed("submit", "mine", "--cluster", "generic", "--dry-run")
    assert says(done) == "v1"
    assert says(typed("submit", "mine", "--cluster", "generic", "--dry-run")) == "v2"


def test_what_is_published_is_as_open_as_the_folder(centre: Centre) -> None:
    before = os.umask(0o077)
    try:
        centre.publish(centre.template())
    finally:
        os.umask(before)
    for path in (centre.dir / "published").rglob("*"):
        wanted = 0o755 if path.is_dir() else 0o044
        assert path.stat().st_mode & wanted == wanted, path
        assert not path.stat().st_mode & 0o022, path
