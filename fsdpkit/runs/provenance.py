"""What a run's job was made of: its script, the commit it came from, the packages it found.

Written at submission (scheduling/provenance.py) beside the record, for whoever asks months later
which code that was: `provenance.json`, and `source.diff` with what was not committed. What could
not be found out is absent, and `unknown` says why.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.runs.reading import read_bytes


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The git work tree in which the script lies."""

    top: str
    """Its directory."""
    id: str
    """Of the commit that is checked out; empty before the first."""
    branch: str | None
    """None: a commit is checked out by itself."""
    changed: int
    """Files that git knows and that differ from the commit."""
    untracked: int
    """Files that git neither knows nor ignores; they are not in the difference."""
    diff_bytes: int
    """Length of the whole difference; of a longer one than is kept, `source.diff` has the start."""
    script_tracked: bool


class Setting(msgspec.Struct, frozen=True):
    """One key of the job."""

    value: Any
    origin: str
    """The file that set it, `--set`, `command line` or `default`."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """`provenance.json`."""

    schema: str = "fsdpkit.provenance/1"
    command: list[str]
    script: str
    script_sha256: str | None = None
    commit: Commit | None = None
    python: str | None = None
    """The interpreter of the job's environment, if that is known where it was submitted."""
    packages: dict[str, str] = {}
    """Name and version of each distribution that it has."""
    settings: dict[str, Setting] = {}
    """By dotted key; those that have a value."""
    unknown: list[str] = []
    """What could not be found out, a sentence each."""


def read_provenance(path: Path) -> Provenance | None:
    """None where there is none, or none that can be understood."""
    try:
        return msgspec.json.decode(read_bytes(path), type=Provenance)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def in_words(found: Provenance) -> str:
    """`commit 1f2e3d4c5b6a of main, 2 files changed, 1 not tracked`; without git a digest."""
    if found.commit is None:
        return f"SHA-256 {(found.script_sha256 or 'unknown')[:12]}, not in git"
    commit = found.commit
    parts = [f"commit {commit.id[:12]}" if commit.id else "no commit yet"]
    parts[0] += f" of {commit.branch}" if commit.branch else ""
    if commit.changed:
        parts.append(f"{commit.changed} file{'s' * (commit.changed > 1)} changed")
    if commit.untracked:
        parts.append(f"{commit.untracked} not tracked")
    if not commit.script_tracked:
        parts.append("the script itself is not tracked")
    return ", ".join(parts)
