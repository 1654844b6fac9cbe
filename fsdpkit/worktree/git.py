"""Asking git about a work tree, which may be anybody's: it answers, and runs nothing of theirs.

A repository's own configuration can name programs (hooks, a file system monitor, filters, external
diffs, transports). None of them is started: all are overridden by the environment, which old
releases of git do not read, so those are not asked at all. Whatever is wrong is a GitError with a
sentence; who asks goes on without the answer, and says so.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

_LIMIT_S = 30.0
_MOST_BYTES = 64 << 20
_OLDEST = (2, 31)
"""GIT_CONFIG_COUNT, by which everything dangerous is switched off."""

_SAFE = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.untrackedCache": "false",
    "diff.external": "",
    "diff.ignoreSubmodules": "dirty",  # git would start itself there, with that configuration
    "protocol.allow": "never",  # a partial clone would fetch what it lacks
    "submodule.recurse": "false",
}


class GitError(Exception):
    """Git is not there, refused, took too long, or said too much; a sentence says which."""


@dataclass(frozen=True)
class GitOutput:
    """What git printed; `cut` where it had more to say than was read."""

    output: bytes
    cut: bool = False

    @property
    def line(self) -> str:
        return self.output.decode("utf-8", "surrogateescape").strip("\n")

    @property
    def names(self) -> list[str]:
        """Of output that separates paths by NUL."""
        return [os.fsdecode(name) for name in self.output.split(b"\0") if name]


@dataclass(frozen=True)
class Git:
    """Git in the work tree around `directory`."""

    directory: Path
    environ: dict[str, str]

    def ask(self, *words: str, most_bytes: int = _MOST_BYTES, cut: bool = False) -> GitOutput:
        """What `git WORDS` prints in the directory. With `cut` the first `most_bytes` of more.
        Raises GitError."""
        return _run(self.directory, self.environ, words, most_bytes, cut)

    @property
    def top(self) -> Path:
        """The top of the work tree. Raises GitError where there is none."""
        top = Path(self.ask("rev-parse", "--show-toplevel").line)
        if not self.directory.resolve().is_relative_to(top):
            raise GitError(f"its work tree is {top}, which {self.directory} does not lie in")
        if not (top / ".git").exists():  # by core.worktree it could be anything above
            raise GitError(f"its work tree is said to be {top}, where there is no .git")
        return top


def git_in(directory: Path) -> Git:
    """Git as it may be asked about `directory`. Raises GitError if there is none, or none that can
    be kept from running what the repository says: also if another user could change its
    configuration between two questions."""
    environ = _environ(_SAFE)
    _require_release(directory, environ)
    words = ("rev-parse", "--path-format=absolute", "--git-common-dir")
    common = _run(directory, environ, words, _MOST_BYTES, False).line
    if not _is_ones_own(Path(common)):
        raise GitError(f"{common} is another user's")
    overrides = dict(_SAFE)
    for name in _own_filters(directory, environ):
        overrides |= {f"{name}.clean": "", f"{name}.process": "", f"{name}.smudge": ""}
        overrides[f"{name}.required"] = "false"
    return Git(directory, _environ(overrides))


def _is_ones_own(repository: Path) -> bool:
    try:
        found = [(repository / name).stat() for name in ("", "config")]
    except OSError:
        return False
    mine = all(one.st_uid in (0, os.geteuid()) for one in found)
    return mine and not any(one.st_mode & stat.S_IWOTH for one in found)


def _environ(overrides: dict[str, str]) -> dict[str, str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environ |= {
        "LC_ALL": "C",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_PAGER": "cat",
        "GIT_CONFIG_COUNT": str(len(overrides)),
    }
    for number, (key, value) in enumerate(overrides.items()):
        environ[f"GIT_CONFIG_KEY_{number}"] = key
        environ[f"GIT_CONFIG_VALUE_{number}"] = value
    return environ


def _require_release(directory: Path, environ: dict[str, str]) -> None:
    said = _run(directory, environ, ("version",), 4096, False).line
    found = re.search(r"(\d+)\.(\d+)", said)
    if not found or (int(found[1]), int(found[2])) < _OLDEST:
        wanted = ".".join(map(str, _OLDEST))
        raise GitError(f"{said[:60]!r} is too old to be asked safely: git {wanted} is needed")


def _own_filters(directory: Path, environ: dict[str, str]) -> set[str]:
    """`filter.<driver>` that the repository itself defines; the person's own (git-lfs) stay."""
    words = ("config", "--list", "--show-scope", "--null", "--name-only")
    told = _run(directory, environ, words, _MOST_BYTES, False).output.split(b"\0")
    return {
        os.fsdecode(key).rpartition(".")[0]
        for scope, key in zip(told[::2], told[1::2], strict=False)
        if scope in (b"local", b"worktree") and key.startswith(b"filter.")
    }


def _run(
    directory: Path, environ: dict[str, str], words: tuple[str, ...], most_bytes: int, cut: bool
) -> GitOutput:
    program = shutil.which("git")
    if program is None:
        raise GitError("git is not installed here")
    with tempfile.TemporaryFile() as complaints:
        try:
            asked = subprocess.Popen(
                [program, *words],
                cwd=directory,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
            )
        except OSError as error:
            raise GitError(f"git cannot be started: {error.strerror}") from error
        output, late = _read(asked, most_bytes)
        more = len(output) > most_bytes
        if late:
            raise GitError(f"git {words[0]} took more than {_LIMIT_S:.0f} s")
        if more and not cut:
            raise GitError(f"git {words[0]} said more than {most_bytes >> 20} MiB")
        if asked.returncode and not more:
            complaints.seek(0)
            why = complaints.read(4096).decode("utf-8", "replace").strip().partition("\n")[0]
            raise GitError(why or f"git {words[0]} ended with status {asked.returncode}")
    return GitOutput(output[:most_bytes], more)


def _read(asked: subprocess.Popen[bytes], most_bytes: int) -> tuple[bytes, bool]:
    """At most one byte more than wanted, and whether the time was up; git has ended then."""
    late = threading.Event()

    def end() -> None:
        late.set()
        asked.kill()

    clock = threading.Timer(_LIMIT_S, end)
    clock.daemon = True
    clock.start()
    try:
        assert asked.stdout is not None
        output = asked.stdout.read(most_bytes + 1)
        if len(output) > most_bytes:
            asked.kill()
        asked.stdout.close()
        asked.wait()
    finally:
        clock.cancel()
    return output, late.is_set()
