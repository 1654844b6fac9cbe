"""Nodes that failed in a run and are excluded from later jobs for some hours.

    <runs>/avoided-nodes/<node>.json

Written by whichever process saw the node fail, on any node of the cluster; read when a job is
submitted. A file has many possible writers, so each replaces it whole.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import msgspec

from fsdpkit.errors import FsdpkitError, UsageError, storage_errors
from fsdpkit.runs.layout import make_directory, write_atomically
from fsdpkit.runs.printed_words import PrintedText
from fsdpkit.runs.reading import record_in
from fsdpkit.runs.record import RunId, Time, load, now_s

_DIRECTORY = "avoided-nodes"
_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
"""A host name; it becomes a file's name, and part of sbatch's --exclude."""


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    why: str
    run_id: RunId
    since_s: Time
    until_s: Time


class AvoidedNode(msgspec.Struct, frozen=True):
    """A node with the reason why jobs are kept away from it. Times are Unix times."""

    node: str
    why: PrintedText
    run_id: str
    since_s: float
    until_s: float


def avoid(runs: Path, node: str, *, why: str, run_id: str, until_s: float) -> None:
    """Keep later jobs below `runs` off `node` until `until_s`, replacing any earlier note. Raises
    UsageError if `node` is no host name, StorageError if the note cannot be written."""
    path = _path(runs, node)
    note = _Note(why=why, run_id=run_id, since_s=now_s(), until_s=until_s)
    with storage_errors(path, "written"):
        make_directory(path.parent)
        write_atomically(path, msgspec.json.encode(note).decode() + "\n")


def avoided(runs: Path, now_s: float) -> list[AvoidedNode]:
    """The nodes to avoid at the Unix time `now_s`, by name; notes that cannot be read are
    skipped, and so are those of other users: they must not decide where a job runs."""
    found = []
    for path in sorted((runs / _DIRECTORY).glob("[!.]*.json")):
        node = path.name.removesuffix(".json")
        note = record_in(path, _Note, own=True)
        if note is not None and _NODE.fullmatch(node) and note.until_s > now_s:
            found.append(AvoidedNode(node, note.why, note.run_id, note.since_s, note.until_s))
    return found


def avoided_on(site: str, runs: Path, now_s: float) -> list[AvoidedNode]:
    """Those that failed in a run on this cluster: another's Slurm does not know the names."""

    def is_here(note: AvoidedNode) -> bool:
        try:
            return load(runs / note.run_id).site == site
        except FsdpkitError:
            return False

    return [note for note in avoided(runs, now_s) if is_here(note)]


def forgive(runs: Path, node: str) -> bool:
    """Let jobs use `node` again; False if it was not avoided. Raises UsageError, StorageError."""
    path = _path(runs, node)
    with storage_errors(path, "removed"), contextlib.suppress(FileNotFoundError):
        path.unlink()
        return True
    return False


def _path(runs: Path, node: str) -> Path:
    if not _NODE.fullmatch(node):
        raise UsageError(f"{node[:80]!r} is not a node name")
    return runs / _DIRECTORY / f"{node}.json"
