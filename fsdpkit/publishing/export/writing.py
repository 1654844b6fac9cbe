"""An export as a directory, made beside the old one and put in its place at once.

Only what an export made is replaced, and only if nobody changed it since: an app in service may
have been corrected by hand.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

import fsdpkit
from fsdpkit.errors import StorageError, UsageError
from fsdpkit.publishing.replacing import put_in_place

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
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
        try:
            _fill(fresh, {**files, RECORD: encoded.decode() + "\n"})
            put_in_place(fresh, output)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise StorageError(f"{output}: cannot be written: {error.strerror}") from error
    return output


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _fill(directory: Path, files: Mapping[str, str]) -> None:
    umask = os.umask(0)
    os.umask(umask)
    for name, text in sorted(files.items()):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if text.startswith("#!"):
            path.chmod(0o777 & ~umask)
    directory.chmod(0o777 & ~umask)  # mkdtemp makes it its owner's alone


def _refuse_others(output: Path, force: bool) -> None:
    if output.is_symlink():
        raise UsageError(f"--output {output}: is a symbolic link; name the directory itself")
    here = Path.cwd()
    if output == here or output in here.parents:
        raise UsageError(f"--output {output}: holds the directory you are in; name one below it")
    if not output.exists():
        return
    if not output.is_dir():
        raise UsageError(f"--output {output}: is no directory")
    try:
        present = {
            path.relative_to(output).as_posix(): path
            for path in output.rglob("*")
            if path.is_symlink() or not path.is_dir()
        }
        own = _made_before(output)
        strange = sorted(set(present) - set(own) - {RECORD})
        if strange:
            raise UsageError(
                f"--output {output}: holds {strange[0]!r}, which no export put there, and it "
                "would be lost: choose a directory that is the export's alone"
            )
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
    except (OSError, msgspec.MsgspecError):
        return {}
