"""A change to what a centre publishes, written so that nobody ever reads half of it.

In this order, each step on disk before the next: the files of a new version under a name that
nobody reads, that name made the version's, the new index in `history`, and the index itself
replaced by a rename. Whatever ends in between, readers have the old index or the new one, and every
version that either names is whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from fsdpkit.config.published import memory
from fsdpkit.config.published.centre import believed, read_file, read_signers
from fsdpkit.config.published.index import (
    MOST_INDEX_BYTES,
    PublishedIndex,
    body_of,
    decode,
    index_path,
    manifest_bytes,
    published_dir,
    sha256,
    split,
    version_dir,
)
from fsdpkit.config.published.signature import SignatureError, verify
from fsdpkit.errors import ConfigError, StorageError
from fsdpkit.publishing.changes import Change, PublishingStep, changed
from fsdpkit.publishing.drafts import VersionDraft
from fsdpkit.publishing.signing import Signer, principal, sign
from fsdpkit.runs.layout import write_atomically
from fsdpkit.runs.lock import locked

_PATIENCE_S = 30.0


def change(
    centre: Path,
    signer: Signer,
    changes: Sequence[Change],
    drafts: Sequence[VersionDraft] = (),
    *,
    renew: bool = False,
) -> tuple[PublishedIndex, list[PublishingStep]]:
    """Make the changes, sign and write it; the new index, and what happened. renew: the present
    index may have a signature that counts no more. Raises ConfigError, NotFoundError, UsageError,
    and StorageError where the folder cannot be written or somebody else publishes."""
    signers = _signers(centre)
    try:
        with _locked(centre):
            before, known = _present(centre), _history(centre)
            old = _believed(centre, before, signers, renew=renew)
            by, at_s = principal(signer, signers), round(time.time(), 3)
            made, steps = changed(changes, old, by, at_s)
            written = _write_versions(centre, drafts, made)
            steps = [_as_written(step, written) for step in steps]
            if before is not None and made == old and not renew:
                return old, steps
            last = max([0, *(int(name.partition("-")[0]) for name in known)])
            serial = max(old.serial + 1, last + 1, int(at_s))
            digest = None if before is None else sha256(before)
            made = replace(made, serial=serial, before=digest, by=by, at_s=at_s)
            text = _signed(made, signer, signers)
            _replace_index(centre, before, known, text, made)
    except OSError as error:
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        raise StorageError(f"{centre} cannot be published to: {where}{error.strerror}") from error
    believed(centre, text, signers)  # so that this account, too, remembers it
    return made, steps


def load(centre: Path) -> PublishedIndex:
    """The index as it is. Raises ConfigError."""
    return _believed(centre, _present(centre), _signers(centre), renew=False)


def _signers(centre: Path) -> bytes:
    if not centre.is_dir():
        raise ConfigError(f"{centre} is no directory: make it, with the file allowed_signers in it")
    path = centre / "allowed_signers"
    if not os.path.lexists(path) and not os.environ.get("FSDPKIT_ALLOWED_SIGNERS"):
        raise ConfigError(
            f"{centre} says nowhere whose signatures count. Write {path}, a line for each person "
            'who may publish: NAME@CENTRE namespaces="fsdpkit" KEY-TYPE PUBLIC-KEY (the last two '
            "as in ~/.ssh/id_ed25519.pub)"
        )
    return read_signers(centre)


@contextlib.contextmanager
def _locked(centre: Path) -> Iterator[None]:
    top = published_dir(centre)
    _directory(top)
    with locked(top / "lock", _PATIENCE_S):
        yield


def _present(centre: Path) -> bytes | None:
    try:
        return read_file(index_path(centre), MOST_INDEX_BYTES)
    except FileNotFoundError:
        return None


def _believed(centre: Path, text: bytes | None, signers: bytes, *, renew: bool) -> PublishedIndex:
    """The index that a change goes from: one that is signed, or for the first time an empty one.
    What is signed anew is vouched for anew, so nothing may slip in by the old one's signature."""
    seen = memory.recall(centre)
    if text is None:
        if renew or (seen is not None and _history(centre)):
            raise ConfigError(
                f"{index_path(centre)} is gone. The newest that was published lies in "
                f"{published_dir(centre) / 'history'}: copy it back"
            )
        own = os.urandom(16).hex() if seen is None else seen.centre
        serial = seen.serial if seen else 1
        schema: Literal["fsdpkit.published/1"] = "fsdpkit.published/1"
        return PublishedIndex(schema=schema, centre=own, serial=serial, at_s=0, by="nobody")
    if not renew:
        return believed(centre, text, signers).index
    try:
        index = decode(split(text)[0], PublishedIndex)
    except ValueError as error:
        raise ConfigError(f"{index_path(centre)} was changed or cut: {error}") from error
    if seen is not None and (index.centre != seen.centre or index.serial < seen.serial):
        raise ConfigError(
            f"{index_path(centre)} is an old one, or another centre's (serial {index.serial}; you "
            f"have seen {seen.serial}): copy the newest from {published_dir(centre) / 'history'}"
        )
    return index


def _history(centre: Path) -> set[str]:
    """Names of all indexes there were, written by this module."""
    try:
        names = os.listdir(published_dir(centre) / "history")
    except FileNotFoundError:
        return set()
    return {name for name in names if re.fullmatch(r"\d{1,12}-[0-9a-f]{12}", name)}


def _signed(index: PublishedIndex, signer: Signer, signers: bytes) -> bytes:
    """The index's file, which users will believe. Raises ConfigError where they would not."""
    body = body_of(index)
    signature = sign(body, signer.key)
    try:
        verify(body, signature, signers, index.by)
    except SignatureError as error:
        raise ConfigError(
            f"users would not believe a signature of {index.by} with {signer.key}: {error}"
        ) from error
    text = body + signature
    if len(text) > MOST_INDEX_BYTES:
        raise ConfigError(f"the index would have more than {MOST_INDEX_BYTES} bytes")
    decode(split(text)[0], PublishedIndex)
    return text


def _replace_index(
    centre: Path, before: bytes | None, known: set[str], text: bytes, index: PublishedIndex
) -> None:
    """Raises StorageError where somebody published meanwhile, whatever became of the lock."""
    history, own = published_dir(centre) / "history", f"{index.serial}-{sha256(text)[:12]}"
    _directory(history)
    write_atomically(history / own, text)
    _sync(history)
    if _present(centre) != before:
        raise _overtaken(centre)
    write_atomically(index_path(centre), text)
    _sync(published_dir(centre))
    if _present(centre) != text or _history(centre) - known - {own}:
        raise _overtaken(centre)


def _overtaken(centre: Path) -> StorageError:
    return StorageError(
        f"somebody else published to {centre} at the same moment: see what is published now "
        f"(fsdpkit publish list --to {centre}), then do it again; both are in its history"
    )


# ---- Versions


Names = tuple[str, str, str]
"""Kind, name and version."""


def _as_written(step: PublishingStep, written: set[Names]) -> PublishingStep:
    """An old version whose files had to be written again was damaged."""
    again = step.what == "as before" and (step.kind, step.name, step.version) in written
    return dataclasses.replace(step, what="restored") if again else step


def _write_versions(
    centre: Path, drafts: Sequence[VersionDraft], index: PublishedIndex
) -> set[Names]:
    """Write those whose folders do not hold their very files; which ones."""
    written: set[Names] = set()
    for draft in drafts:
        entry = index.entry(draft.kind, draft.name)
        version = draft.version_in(entry)
        assert entry is not None
        directory = version_dir(centre, draft.kind, draft.name, version)
        manifest = manifest_bytes(draft.manifest(version))
        files = {**draft.files, "manifest.json": manifest}
        if not _is_there(directory, files):
            _write_version(directory, files)
            written.add((draft.kind, draft.name, version))
    return written


def _is_there(directory: Path, files: dict[str, bytes]) -> bool:
    """Whether the version's folder holds these files, as a change cut short has left them."""
    try:
        same = all(read_file(directory / n, len(c)) == c for n, c in files.items())
        names = {
            Path(top, name).relative_to(directory).as_posix()
            for top, _, inner in os.walk(directory)
            for name in inner
        }
    except OSError:
        return False
    return same and names == files.keys()


def _write_version(directory: Path, files: dict[str, bytes]) -> None:
    parent = directory.parent
    for place in (parent.parent, parent):
        _directory(place)
    open_to = os.stat(parent).st_mode & 0o055
    draft = parent / f".{directory.name}.{os.urandom(8).hex()}.tmp"
    draft.mkdir(mode=0o700)
    try:
        for name, content in files.items():
            _write_file(draft / name, content, 0o400 | open_to & 0o044)
        for top, _, _ in os.walk(draft, topdown=False):
            os.chmod(top, 0o700 | open_to)
            _sync(Path(top))
        if os.path.lexists(directory):  # a change that was cut short, or a version that was damaged
            os.rename(directory, parent / f".{directory.name}.{os.urandom(8).hex()}.tmp")
        os.rename(draft, directory)
        _sync(parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    _tidy(parent)


def _write_file(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(number, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(number, mode)
        os.fsync(number)


def _tidy(parent: Path) -> None:
    """Remove what changes that were cut short have left; the lock says that none is under way."""
    for name in os.listdir(parent):
        if name.startswith(".") and name.endswith(".tmp"):
            shutil.rmtree(parent / name, ignore_errors=True)


def _directory(path: Path) -> None:
    """Make it, as open as the one it lies in, to those who may write there, too."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return
    above = os.stat(path.parent).st_mode
    path.chmod(0o700 | above & 0o2075)
    _sync(path.parent)


def _sync(directory: Path) -> None:
    """Have the directory's names on disk. Raises OSError."""
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
