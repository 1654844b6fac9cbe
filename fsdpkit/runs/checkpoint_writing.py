"""How a checkpoint gets its name: one writer, nothing overwritten, only complete ones are named.

A trainer claims the directory when it starts (`claim`), writes into a draft that no reader looks
at, and publishes it: everything is synced, then renamed once. If two jobs write to the same run,
for whatever reason, the claim decides: the one started last may write, and the other finds out
before it names anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from fsdpkit.errors import StorageError
from fsdpkit.runs.checkpoints import (
    CHECKSUMS,
    DESCRIPTION,
    Best,
    Description,
    best_of,
    checkpoints_in,
    checksum_lines,
    step_of,
)
from fsdpkit.runs.layout import write_atomically
from fsdpkit.runs.reading import read_json

CLAIM = "writer.json"


class WrittenFile(NamedTuple):
    """A file, as its writer had it."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Claim:
    """The right of one process to write to `directory`, until another claims it."""

    directory: Path
    writer: str

    def draft(self, step: int) -> Path:
        """Where the checkpoint of `step` is written before it gets its name."""
        return self.directory / f".step-{step}.{self.writer}"

    def require(self) -> None:
        """Raise StorageError when another process has claimed the directory since."""
        file = self.directory / CLAIM
        try:
            found = read_json(file)
            writer, who = found["writer"], f"{found['who']} since {found['since']}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{file} cannot be read any more: {error}.") from None
        if writer != self.writer:
            raise StorageError(
                f"{self.directory} belongs to another job of the same run ({who}, says {CLAIM}); "
                "this one stops writing, and has overwritten nothing."
            )


def claim(directory: Path) -> Claim:
    """Make `directory` if needed, become its writer, remove drafts left by earlier writers. Raises
    StorageError when it cannot be written."""
    mine = Claim(directory, uuid.uuid4().hex[:12])
    job = os.environ.get("SLURM_JOB_ID")
    who = f"{f'Slurm job {job}, ' if job else ''}process {os.getpid()} on {socket.gethostname()}"
    attempt = Path(os.environ.get("FSDPKIT_ATTEMPT_DIR", "")).name
    table = {"writer": mine.writer, "who": who, "since": now(), "attempt": attempt}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / CLAIM, json.dumps(table) + "\n")
        leftovers = [*directory.glob(".step-*")]
    except OSError as error:
        raise StorageError(
            f"{directory} cannot be written ({error.strerror}): no checkpoint could be saved there."
        ) from None
    for leftover in leftovers:
        shutil.rmtree(leftover, ignore_errors=True)
    return mine


def publish(
    mine: Claim,
    description: Description,
    written: Mapping[str, WrittenFile],
    texts: Mapping[str, str | bytes],
    *,
    keep_last: int | None,
    refused: Collection[Path] = (),
) -> Path:
    """Describe the draft, sync it, and give it its name; then `prune`, unless `keep_last` is None.

    `written` is what lies in the draft, synced by its writers; `texts` are small files to add. A
    checkpoint of the same step must not exist, unless it is among the `refused`, which count for
    nothing. Raises OSError, and StorageError when another process has claimed the directory or made
    this checkpoint, or a file that a rank wrote is not here.
    """
    draft = mine.draft(description.step)
    final = mine.directory / f"step-{description.step}"
    try:
        _complete(draft, description, written, texts)
    except FileNotFoundError as error:
        mine.require()  # a later claimant of the directory has removed the draft
        raise StorageError(
            f"{error.filename} is not there: do all nodes see the same {mine.directory}?"
        ) from None
    mine.require()
    replaced = None
    if final.exists():
        if final not in refused:
            raise StorageError(f"{final} exists already; it was not overwritten.")
        replaced = _hide(final)
    os.rename(draft, final)
    _sync(mine.directory)
    if replaced:
        shutil.rmtree(replaced, ignore_errors=True)
    if keep_last is not None:
        prune(mine, keep_last, [path for path in refused if path != final], description.best_by)
    return final


def prune(mine: Claim, keep_last: int, refused: Collection[Path], by: Best | None) -> None:
    """Remove checkpoints older than the newest `keep_last`, except the best by `by`. The `refused`
    do not count. What cannot be removed stays; everything stays if another process has claimed the
    directory."""
    with contextlib.suppress(OSError, StorageError):
        mine.require()
        counted = [path for path in checkpoints_in(mine.directory) if path not in refused]
        oldest_kept = step_of(counted[-keep_last:][0]) or 0
        best = best_of(counted, by) if by else None
        for path in checkpoints_in(mine.directory):
            if (step_of(path) or 0) < oldest_kept and not (best and path == best[0]):
                with contextlib.suppress(OSError):
                    shutil.rmtree(_hide(path), ignore_errors=True)


def abandon(mine: Claim, step: int) -> None:
    """Remove the failed draft of `step`: a full disk needs the space."""
    shutil.rmtree(mine.draft(step), ignore_errors=True)


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _complete(
    draft: Path,
    description: Description,
    written: Mapping[str, WrittenFile],
    texts: Mapping[str, str | bytes],
) -> None:
    """Add to the draft what no rank writes, and sync all of it."""
    written = {**written, **{name: _write(draft / name, text) for name, text in texts.items()}}
    sizes = {name: file.bytes for name, file in sorted(written.items())}
    itself = _write(draft / DESCRIPTION, replace(description, files=sizes).to_json())
    for name, size in sizes.items():
        if (draft / name).stat().st_size != size:
            raise StorageError(f"{draft / name} is not what its rank wrote.")
    sums = {name: file.sha256 for name, file in {**written, DESCRIPTION: itself}.items()}
    _write(draft / CHECKSUMS, checksum_lines(sums))
    _sync(draft)


def _hide(path: Path) -> Path:
    """Rename a checkpoint away, so that no reader takes a half-removed one for complete."""
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    os.rename(path, hidden)
    return hidden


def _write(path: Path, content: str | bytes) -> WrittenFile:
    data = content.encode() if isinstance(content, str) else content
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return WrittenFile(len(data), hashlib.sha256(data).hexdigest())


def _sync(directory: Path) -> None:
    """Make the names in `directory` last."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
