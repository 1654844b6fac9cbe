"""A directory that is made beside an older one and takes its place at once: readers see either.

Only what was made before is replaced, and what somebody changed since only if asked to: an app in
service may have been corrected by hand.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fsdpkit.bounded import DETAILS_BYTES, read_bytes
from fsdpkit.config.published.index import sha256
from fsdpkit.errors import UsageError, storage_errors

_EXCHANGE = 2  # RENAME_EXCHANGE, renameat2(2)
_AT_FDCWD = -100


@dataclass(frozen=True)
class MadeDirectory:
    """A kind of directory. record: the file in it that says what was made; of schema `schema`."""

    noun: str
    record: str
    schema: str


EXPORT = MadeDirectory("export", ".fsdpkit-export.json", "fsdpkit.export/1")
CATALOGUE = MadeDirectory("catalogue", "catalogue.json", "fsdpkit.catalogue/1")


class _Record(msgspec.Struct, frozen=True):
    """What it holds, by path the sha256."""

    files: dict[str, str]


def write(
    kind: MadeDirectory,
    files: Mapping[str, bytes],
    output: Path,
    *,
    about: Mapping[str, str] | None = None,
    force: bool = False,
) -> Path:
    """Make `output` hold `files` and a record of them and nothing else, and return its whole path.

    about: what else the record says. force: also in place of files that were changed by hand.
    Raises UsageError for a directory that holds anything else, StorageError if it cannot be
    written.
    """
    output = Path(os.path.abspath(output))
    _refuse_others(kind, output, force)
    digests = {name: sha256(content) for name, content in sorted(files.items())}
    record = {"schema": kind.schema, **(about or {}), "files": digests}
    encoded = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    _make_anew(output, {**files, kind.record: encoded})
    return output


def _refuse_others(kind: MadeDirectory, output: Path, force: bool) -> None:
    here = Path.cwd()
    if output == here or output in here.parents:
        raise UsageError(f"--output {output}: holds the directory you are in; name one below it")
    present, own = _present_in(output), _made_before(output / kind.record)
    if strange := sorted(set(present) - set(own) - {kind.record}):
        raise UsageError(
            f"--output {output}: holds {strange[0]!r}, which no {kind.noun} put there, and it "
            f"would be lost: choose a directory that is the {kind.noun}'s alone"
        )
    with storage_errors(output, "read"):
        changed = sorted(
            name
            for name, path in present.items()
            if name in own and (path.is_symlink() or sha256(path.read_bytes()) != own[name])
        )
    if changed and not force:
        raise UsageError(
            f"--output {output}: {changed[0]} was changed since it was exported, and that would be "
            "lost: make the change in the template, or replace it with --force"
        )


def _made_before(record: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(read_bytes(record, DETAILS_BYTES), type=_Record).files
    except (OSError, ValueError, RecursionError):
        return {}


def _present_in(output: Path) -> dict[str, Path]:
    """All files and links in a directory, by path in it; none if it is not there. Raises UsageError
    for what is no directory, StorageError if it cannot be read."""
    if output.is_symlink():
        raise UsageError(f"--output {output}: is a symbolic link; name the directory itself")
    if not output.exists():
        return {}
    if not output.is_dir():
        raise UsageError(f"--output {output}: is no directory")
    with storage_errors(output, "read"):
        return {
            path.relative_to(output).as_posix(): path
            for path in output.rglob("*")
            if path.is_symlink() or not path.is_dir()
        }


def _make_anew(output: Path, files: Mapping[str, bytes]) -> None:
    """Make a directory hold just these files. Raises StorageError; it is then as it was."""
    with storage_errors(output, "written"):
        output.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
        try:
            _fill(fresh, files)
            _put_in_place(fresh, output)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def _fill(directory: Path, files: Mapping[str, bytes]) -> None:
    umask = os.umask(0)
    os.umask(umask)
    for name, content in sorted(files.items()):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if content.startswith(b"#!"):
            path.chmod(0o777 & ~umask)
    directory.chmod(0o777 & ~umask)  # mkdtemp makes it its owner's alone


def _put_in_place(fresh: Path, output: Path) -> None:
    """Exchange the two; where a file system cannot, move the old one away first."""
    if not output.exists():
        os.rename(fresh, output)
        return
    if _exchange(fresh, output):
        return
    old = Path(tempfile.mkdtemp(prefix=f".{output.name}.old.", dir=output.parent))
    os.rename(output, old)
    try:
        os.rename(fresh, output)
    except OSError:
        os.rename(old, output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except AttributeError:  # glibc before 2.28
        return False
    names = os.fsencode(one), os.fsencode(other)
    return bool(renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE) == 0)
