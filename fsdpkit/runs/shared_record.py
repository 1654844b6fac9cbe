"""What a run tells its centre, or its project: what it was made of and used, and how it ended.

    <centre>/audit/<user id>-<run id>[.<array task>].json    likewise in a project's own folder

Its owner's job writes it, at submission and whenever an attempt ends; where Slurm ended the job
without asking, the owner's next look does (scheduling/sharing.py). The centre's staff read it
(publishing/audit.py). It contains no person's name, no path and no text of the run. Everybody may
write into the folder but only the centre can list it (mode 1733), so a record is trusted for
nothing but its own line.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fsdpkit.bounded import SHARED_BYTES
from fsdpkit.config.ownership import name_of
from fsdpkit.runs.account import Account
from fsdpkit.runs.layout import RunPaths, write_atomically
from fsdpkit.runs.reading import read_bytes, record_in
from fsdpkit.runs.record import Count, NodeName, Number, RunId, Time
from fsdpkit.runs.tally import Spent, wrong_in

FOLDER = "audit"
MOST_OF_ONE = 5000
"""Records of one user that count; nobody else's line is crowded out."""
_MOST_ENDS = 40
_MOST_NODES = 8

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

    attempt: Number
    action: Literal["end", "requeue"]
    cause: Word
    at_s: Time
    nodes: Annotated[list[NodeName], Meta(max_length=_MOST_NODES)] = []
    """Those that failed."""
    account: Account | None = None
    """None: the attempt never began, or its files are gone."""


class SharedRecord(msgspec.Struct, frozen=True, kw_only=True):
    schema: Literal["fsdpkit.shared-run/1"] = "fsdpkit.shared-run/1"
    run: RunId
    task: Number | None = None
    """Of an array."""
    tasks: Annotated[str, Meta(pattern=r"^[0-9,-]{1,2000}\Z")] | None = None
    """Of an array, those that it has: each that ends leaves a record of its own."""
    submitted_s: Time
    nodes: Count
    ranks_per_node: Count
    on: RunId | None = None
    """The hold whose nodes it was on."""
    holds: bool = False
    partition: Word | None = None
    project: Word | None = None
    """The account that Slurm charges: in a project's own folder, and where the profile says so."""
    fsdpkit: Word
    used: Annotated[list[Used], Meta(max_length=4)]
    ends: Annotated[list[AttemptEnd], Meta(max_length=_MOST_ENDS)] = []


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """Where a record goes."""

    path: str
    project: bool
    """Whether with the account that is charged."""


class KeptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`audit.json` in the run's own directory, for the job to go on from."""

    folders: list[Folder]
    record: SharedRecord


def share(paths: RunPaths, record: SharedRecord, folders: list[Folder]) -> None:
    """Put the record into these folders, and note it for the job; without a folder, the job is to
    write none from now on. A failure to write is ignored."""
    with contextlib.suppress(OSError):
        if not folders:
            paths.shared_record.unlink(missing_ok=True)
            return
        if before := record_in(
            paths.shared_record, KeptRecord, own=True
        ):  # of a run that is resumed
            record = msgspec.structs.replace(record, ends=before.record.ends)
        _write(paths.shared_record, KeptRecord(folders=folders, record=record))


def kept(paths: RunPaths, task: int | None = None) -> KeptRecord | None:
    """What was put down of the run, or of the array's task; None: nothing, for it is not shared."""
    found = record_in(paths.shared_record, KeptRecord, own=True)
    if found is None or task is None:
        return found
    own = record_in(paths.task(task).dir / paths.shared_record.name, KeptRecord, own=True)
    ends = own.record.ends if own else []
    record = msgspec.structs.replace(found.record, task=task, tasks=None, ends=ends)
    return msgspec.structs.replace(found, record=record)


def add_end(
    paths: RunPaths, task: int | None, end: AttemptEnd, accounts: Iterable[Account] = ()
) -> None:
    """Add how an attempt ended, of a run that is shared. Attempts before it that left no end were
    queued again by Slurm, with nobody there to write it. accounts: of all attempts of the task;
    what an earlier one used is known better once a later one has repeated its steps."""
    if (found := kept(paths, task)) is None:
        return
    with contextlib.suppress(OSError):
        ends = {one.attempt: one for one in found.record.ends} | {end.attempt: end}
        of_task, of_attempt = paths.task(task), {one.attempt: one for one in accounts}
        for number in of_task.attempts():
            if number < end.attempt and number not in ends:
                at_s = of_task.attempt(number).dir.stat().st_mtime
                ends[number] = AttemptEnd(
                    attempt=number, action="requeue", cause="killed", at_s=at_s
                )
        newest = [
            msgspec.structs.replace(
                ends[number],
                nodes=ends[number].nodes[:_MOST_NODES],
                account=of_attempt.get(number, ends[number].account),
            )
            for number in sorted(ends)[-_MOST_ENDS:]
        ]
        record = msgspec.structs.replace(found.record, ends=newest)
        path = of_task.dir / paths.shared_record.name
        _write(path, msgspec.structs.replace(found, record=record))


def _write(path: Path, found: KeptRecord) -> None:
    write_atomically(path, msgspec.json.encode(found), private=True)
    for folder in found.folders:
        without = {} if folder.project else {"project": None}
        with contextlib.suppress(OSError):
            _drop(Path(folder.path), msgspec.structs.replace(found.record, **without))


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


def record_files(folder: Path, record: SharedRecord, tasks: Iterable[int]) -> Iterator[Path]:
    """Where this user's record of the run lies in a folder, and those of its array's tasks."""
    for task in (None, *tasks):
        yield folder / _name(os.geteuid(), msgspec.structs.replace(record, task=task))


def read_all(folder: Path, since_s: float = 0.0) -> Iterator[tuple[int, SharedRecord | str]]:
    """Each record with its owner's id, or why one does not count, of those that were written since
    then. Raises OSError for the folder."""
    counts: dict[int, int] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if found.st_mtime < since_s:
                continue
            owner = found.st_uid
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


def spent_of(owner: int, record: SharedRecord, now_s: float) -> Iterator[Spent | str]:
    """Its attempts of which an account is known, or why one does not count."""
    used = {one.kind: " ".join(filter(None, (one.name, one.version))) for one in record.used}
    words = {
        "project": record.project,
        "name": record.run.rsplit("-", 3)[0],  # what follows is the moment and a random word
        "run": record.run,
        "user": name_of(owner),
        "partition": record.partition,
        "fsdpkit": record.fsdpkit,
        "version": used.get("template"),
        "site": used.get("site"),
    }
    held = (record.on, record.holds)
    for end in record.ends:
        if (account := end.account) is None:
            continue
        if (why := wrong_in(account, now_s)) is not None:
            yield f"an attempt: {why}"
        else:
            gpu = "".join(c if c.isprintable() else "?" for c in account.gpu or "") or None
            account = msgspec.structs.replace(account, gpu=gpu, attempt=end.attempt)
            yield Spent(account, record.run, owner, record.task, words, end.cause, *held)
