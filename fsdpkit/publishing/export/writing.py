"""An export as a directory, made beside the old one and put in its place at once.

Only what an export made is replaced, and only if nobody changed it since: an app in service may
have been corrected by hand.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

import fsdpkit
from fsdpkit.errors import StorageError, UsageError
from fsdpkit.publishing.replacing import make_anew, present_in

RECORD = ".fsdpkit-export.json"
_LARGEST = 1_000_000  # bytes of a record that is read


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Says that a directory is an export, of what, and what it holds: by path the sha256."""

    schema: str
    made_by: str
    portal: str
    release: str
    template: str
    files: dict[str, str]


def write(
    files: Mapping[str, str],
    output: Path,
    *,
    portal: str,
    release: str,
    template: str,
    force: bool = False,
) -> Path:
    """Make `output` hold `files` and nothing else, and return its whole path.

    force: also in place of an export that was changed by hand. Raises UsageError for a directory
    that holds anything else, StorageError if it cannot be written.
    """
    output = Path(os.path.abspath(output))
    _refuse_others(output, force)
    record = Record(
        schema="fsdpkit.export/1",
        made_by=f"fsdpkit {fsdpkit.__version__}",
        portal=portal,
        release=release,
        template=template,
        files={name: _sha256(text.encode()) for name, text in files.items()},
    )
    encoded = msgspec.json.format(msgspec.json.encode(record, order="deterministic"), indent=1)
    contents = {name: text.encode() for name, text in files.items()}
    make_anew(output, {**contents, RECORD: encoded + b"\n"})
    return output


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _refuse_others(output: Path, force: bool) -> None:
    here = Path.cwd()
    if output == here or output in here.parents:
        raise UsageError(f"--output {output}: holds the directory you are in; name one below it")
    present, own = present_in(output), _made_before(output)
    if strange := sorted(set(present) - set(own) - {RECORD}):
        raise UsageError(
            f"--output {output}: holds {strange[0]!r}, which no export put there, and it would be "
            "lost: choose a directory that is the export's alone"
        )
    try:
        changed = sorted(
            name
            for name, path in present.items()
            if name in own and (path.is_symlink() or _sha256(path.read_bytes()) != own[name])
        )
    except OSError as error:
        raise StorageError(f"{output}: cannot be read: {error.strerror}") from error
    if changed and not force:
        raise UsageError(
            f"--output {output}: {changed[0]} was changed since it was exported, and that would be "
            "lost: make the change in the template, or replace it with --force"
        )


def _made_before(output: Path) -> dict[str, str]:
    record = output / RECORD
    try:
        if record.is_symlink() or record.stat().st_size > _LARGEST:
            return {}
        return msgspec.json.decode(record.read_bytes(), type=Record).files
    except (OSError, ValueError, RecursionError):
        return {}
