"""The catalogue as a directory, which is built beside the old one and put in its place at once."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fsdpkit.errors import StorageError, UsageError
from fsdpkit.publishing.replacing import put_in_place

MANIFEST = "catalogue.json"


class Manifest(msgspec.Struct, frozen=True):
    """Says that a directory is a catalogue, and what it holds: by path the sha256."""

    schema: str
    files: dict[str, str]


def write(files: Mapping[str, bytes], output: Path) -> None:
    """Make `output` hold `files` and nothing else. Raises UsageError for a directory that holds
    what no catalogue put there, StorageError if it cannot be written."""
    output = Path(os.path.abspath(output))
    _refuse_others(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
        try:
            _fill(fresh, files)
            put_in_place(fresh, output)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise StorageError(f"{output}: cannot be written: {error.strerror}") from error


def _fill(directory: Path, files: Mapping[str, bytes]) -> None:
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    manifest = msgspec.json.encode(Manifest("fsdpkit.catalogue/1", digests), order="deterministic")
    manifest = msgspec.json.format(manifest, indent=1) + b"\n"
    for name, content in sorted({**files, MANIFEST: manifest}.items()):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    umask = os.umask(0)
    os.umask(umask)
    directory.chmod(0o777 & ~umask)  # mkdtemp makes it its owner's alone


def _refuse_others(output: Path) -> None:
    if output.is_symlink():
        raise UsageError(f"--output {output}: is a symbolic link; name the directory itself")
    if not output.exists():
        return
    if not output.is_dir():
        raise UsageError(f"--output {output}: is no directory")
    try:
        present = {
            path.relative_to(output).as_posix()
            for path in output.rglob("*")
            if path.is_symlink() or not path.is_dir()
        }
    except OSError as error:
        raise StorageError(f"{output}: cannot be read: {error.strerror}") from error
    strange = sorted(present - _made_before(output) - {MANIFEST})
    if strange:
        raise UsageError(
            f"--output {output}: holds {strange[0]!r}, which no catalogue put there, and it would "
            "be lost: choose a directory that is the catalogue's alone"
        )


def _made_before(output: Path) -> set[str]:
    try:
        return {*msgspec.json.decode((output / MANIFEST).read_bytes(), type=Manifest).files}
    except (OSError, msgspec.MsgspecError):
        return set()
