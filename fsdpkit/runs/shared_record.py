"""What a run tells its centre, if its owner shares it: what it was made of, and how it ended.

    <centre>/audit/<user id>-<run id>[.<array task>].json

Its owner's job writes it, at submission and whenever an attempt ends; the centre's staff read it
(publishing/audit.py). It contains no person's name, no path and no text of the run. Everybody may
write into the folder but only the centre can list it (mode 1733), so a record is trusted for
nothing but its own line.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fsdpkit.bounded import SHARED_BYTES
from fsdpkit.runs.layout import RunPaths, write_atomically
from fsdpkit.runs.reading import read_bytes, record_in
from fsdpkit.runs.record import Count, Number, RunId, Time

FOLDER = "audit"
MOST_OF_ONE = 2000
"""Records of one user that count; nobody else's line is crowded out."""
_MOST_ENDS = 20

Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,80}\Z")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Used(msgspec.Struct, frozen=True, kw_only=True):
    """The template or the profile of a run."""

    kind: Literal["template", "site"]
    name: Word
    version: Word | None = None
    sha256: Digest | None = None
    """Of the manifest of a published version."""


class AttemptEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended."""

    action: Literal["end", "requeue"]
    cause: Word
    at_s: Time


class SharedRecord(msgspec.Struct, frozen=True, kw_only=True):
    schema: Literal["fsdpkit.shared-run/1"] = "fsdpkit.shared-run/1"
    run: RunId
    task: Number | None = None
    """Of an array."""
    submitted_s: Time
    nodes: Count
    ranks_per_node: Count
    fsdpkit: Word
    used: Annotated[list[Used], Meta(max_length=4)]
    ends: Annotated[list[AttemptEnd], Meta(max_length=_MOST_ENDS)] = []


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """`audit.json` in the run's own directory, for the job to go on from."""

    folders: list[str]
    record: SharedRecord


def share(paths: RunPaths, record: SharedRecord, folders: list[Path]) -> None:
    """Share with these centres, and note it for the job. A failure to write is ignored."""
    with contextlib.suppress(OSError):
        if before := record_in(paths.shared_record, _Kept, own=True):  # of a run that is resumed
            record = msgspec.structs.replace(record, ends=before.record.ends)
        kept = _Kept(folders=[str(folder) for folder in folders], record=record)
        write_atomically(paths.shared_record, msgspec.json.encode(kept), private=True)
        for folder in folders:
            _drop(folder, record)


def add_end(paths: RunPaths, task: int | None, end: AttemptEnd) -> None:
    """Add how an attempt ended, of a run that is shared."""
    with contextlib.suppress(OSError):
        own = task is not None
        kept_path = paths.task(task).dir / paths.shared_record.name if own else paths.shared_record
        path = kept_path if kept_path.exists() else paths.shared_record
        if (kept := record_in(path, _Kept, own=True)) is None:
            return
        ends = [*kept.record.ends, end][-_MOST_ENDS:]
        record = msgspec.structs.replace(kept.record, ends=ends, task=task)
        kept = msgspec.structs.replace(kept, record=record)
        write_atomically(kept_path, msgspec.json.encode(kept), private=True)
        for folder in kept.folders:
            _drop(Path(folder), record)


def _drop(folder: Path, record: SharedRecord) -> None:
    """Replace the record in a folder that others write into, following no link. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    # A folder that may not be listed can still be passed through.
    place = os.open(folder, flags if os.access(folder, os.R_OK) else os.O_PATH | flags)
    whole = _name(os.geteuid(), record)
    temporary = f".{whole}.{os.urandom(8).hex()}.tmp"
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        number = os.open(temporary, new, 0o600, dir_fd=place)
        try:
            with open(number, "wb") as file:
                file.write(msgspec.json.encode(record))
                file.flush()
                os.fchmod(number, 0o644)
                os.fsync(number)
            os.replace(temporary, whole, src_dir_fd=place, dst_dir_fd=place)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=place)
            raise
    finally:
        os.close(place)


def _name(owner: int, record: SharedRecord) -> str:
    task = "" if record.task is None else f".{record.task}"
    return f"{owner}-{record.run}{task}.json"


def read_all(folder: Path) -> Iterator[tuple[int, SharedRecord | str]]:
    """Each record with its owner's id, or why one does not count. Raises OSError for the folder."""
    counts: dict[int, int] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            try:
                owner = entry.stat(follow_symlinks=False).st_uid
            except OSError:
                continue
            counts[owner] = counts.get(owner, 0) + 1
            if counts[owner] > MOST_OF_ONE:
                yield owner, f"one of more than {MOST_OF_ONE} of one user"
            else:
                yield owner, _read(entry, owner)


def _read(entry: os.DirEntry[str], owner: int) -> SharedRecord | str:
    try:
        if not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
            return "no regular file"
        record = msgspec.json.decode(read_bytes(entry.path, SHARED_BYTES), type=SharedRecord)
    except OSError as error:
        return error.strerror or "cannot be read"
    except (ValueError, RecursionError):
        return "no record"
    return record if entry.name == _name(owner, record) else "another one's name"
