"""A centre's folder that publishes: its index, believed or refused, and the files of a version.

A folder with `allowed_signers` or `published` is one whose every template, profile and job must be
in an index that somebody of allowed_signers signed. Others stay what they are: plain folders.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path

import msgspec

from fsdpkit.bounded import read_bytes
from fsdpkit.config.ownership import first_unsafe, only_owner_writes
from fsdpkit.config.published import memory
from fsdpkit.config.published.choosing import chosen, passed_over, why_deprecated
from fsdpkit.config.published.index import (
    MOST_INDEX_BYTES,
    MOST_MANIFEST_BYTES,
    IndexEntry,
    Kind,
    PublishedIndex,
    VersionManifest,
    decode,
    index_path,
    published_dir,
    sha256,
    split,
    version_dir,
)
from fsdpkit.config.published.signature import SignatureError, has_dates, verify
from fsdpkit.config.surroundings import verified_before
from fsdpkit.errors import ConfigError

_MOST_SIGNERS_BYTES = 1 << 20
_TRIES, _PAUSE_S = 4, 0.1
"""A file that is replaced while NFS reads it is stale once (ESTALE); the next look is right."""
_SILLY = ".nfs"
"""How NFS names a file that was removed while somebody had it open."""
ASK = "ask the centre's administrators"


class Release(msgspec.Struct, frozen=True):
    """A version of something, as a believed index names it."""

    kind: Kind
    name: str
    version: str
    sha256: str
    """Of its manifest, and so of all its files."""
    channel: str
    """`stable` or `testing`: what it was reached by; `pinned` where a job names it whole."""
    signer: str
    """Who signed the index."""
    serial: int
    centre: Path
    note: str | None = None
    """What users are told of it: why the channel no longer points to the version after it."""
    deprecated: str | None = None
    """What users are told of its end."""

    @property
    def dir(self) -> Path:
        return version_dir(self.centre, self.kind, self.name, self.version)

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.version}"


class Centre(msgspec.Struct, frozen=True):
    """A centre whose index is believed."""

    dir: Path
    index: PublishedIndex
    digest: str
    """SHA-256 of the index's file."""

    def release(self, entry: IndexEntry, version: str, channel: str) -> Release:
        digest = entry.versions[version].sha256
        made_by, serial = self.index.by, self.index.serial
        note = None if channel == "pinned" else passed_over(entry, version)
        about = (digest, channel, made_by, serial, self.dir, note)
        return Release(entry.kind, entry.name, version, *about, why_deprecated(entry, version))


_RECENT_S = 60.0
_verified: dict[str, float] = {}
"""When this process verified an index, by its SHA-256 and its signers'; commands look often."""
_view: ContextVar[dict[Path, Centre | None] | None] = ContextVar("view", default=None)


@contextlib.contextmanager
def one_view() -> Iterator[None]:
    """Inside, each centre's index is read once: whatever is published meanwhile, job, profile and
    template of one submission are of the same index."""
    if _view.get() is not None:
        yield
        return
    token = _view.set({})
    try:
        yield
    finally:
        _view.reset(token)


def open_centre(directory: Path) -> Centre | None:
    """None for a plain folder. Raises ConfigError for one that is not to be believed."""
    seen = _view.get()
    if seen is not None and directory in seen:
        return seen[directory]
    centre = _open(directory)
    if seen is not None:
        seen[directory] = centre
    return centre


def signers_file(directory: Path) -> Path:
    """`$FSDPKIT_ALLOWED_SIGNERS`, else the centre's own."""
    named = os.environ.get("FSDPKIT_ALLOWED_SIGNERS")
    return Path(os.path.expanduser(named)).absolute() if named else directory / "allowed_signers"


def publishes(directory: Path) -> bool:
    """Whether a folder publishes, or has published to this user before."""
    marks = (directory / "allowed_signers", published_dir(directory), index_path(directory))
    return (
        bool(os.environ.get("FSDPKIT_ALLOWED_SIGNERS"))
        or any(map(os.path.lexists, marks))
        or memory.recall(directory) is not None
    )


def _open(directory: Path) -> Centre | None:
    if not publishes(directory):
        return None
    signers = b"" if verified_before() else read_signers(directory)
    path = index_path(directory)
    try:
        text = read_file(path, MOST_INDEX_BYTES)
    except OSError as error:
        raise ConfigError(
            f"the centre's {path} cannot be read ({error.strerror}), so nothing in {directory} can "
            f"be verified: it is incomplete, or still being copied; {ASK}"
        ) from error
    return believed(directory, text, signers)


def believed(directory: Path, text: bytes, signers: bytes) -> Centre:
    """The centre by this index. Raises ConfigError unless it is signed, and no older than known."""
    path = index_path(directory)
    try:
        body, signature = split(text)
        index = decode(body, PublishedIndex)
    except ValueError as error:
        raise ConfigError(f"the centre's {path} was changed or cut: {error}; {ASK}") from error
    if verified_before():
        return Centre(directory, index, sha256(text))
    seen, key = memory.recall(directory), sha256(sha256(signers).encode() + text)
    known = _verified.get(key, -_RECENT_S) + _RECENT_S > time.monotonic()
    # What holds until a date is not remembered from one command to the next.
    verified = "" if has_dates(signers) else key
    if not known and (seen is None or not verified or seen.verified != verified):
        try:
            verify(body, signature, signers, index.by)
            _verified[key] = time.monotonic()
        except SignatureError as error:
            raise ConfigError(
                f"the centre's {path}, signed as {index.by}, is not to be believed: {error}. "
                f"{ASK.capitalize()}; somebody who may sign renews it: fsdpkit publish sign"
            ) from error
    _refuse_older(directory, index, text, seen)
    with contextlib.suppress(OSError):  # a home that cannot be written has no memory
        memory.remember(directory, index, text, verified, seen)
    return Centre(directory, index, sha256(text))


def _refuse_older(
    directory: Path, index: PublishedIndex, text: bytes, seen: memory.Seen | None
) -> None:
    if seen is None:
        return
    what = None
    if index.centre != seen.centre:
        what = "belongs to another centre than before"
    elif index.serial < seen.serial:
        what = f"is an old one (serial {index.serial}; you have seen {seen.serial})"
    elif index.serial == seen.serial and sha256(text) != seen.index:
        what = f"is not the one you have seen with the same serial {index.serial}"
    if what:
        raise ConfigError(
            f"the centre's {index_path(directory)} {what}: somebody may have put it back to have "
            f"you use what was replaced. {ASK.capitalize()}; if it is theirs, remove "
            f"{memory.memory_file(directory)}"
        )


def read_signers(directory: Path) -> bytes:
    """Whose signatures count. Raises ConfigError if it is gone, or others can change it."""
    path = signers_file(directory)
    refuse_exposed(directory, path)
    try:
        return read_file(path, _MOST_SIGNERS_BYTES)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; {ASK}") from error


def refuse_exposed(directory: Path, path: Path) -> None:
    """Raise ConfigError unless root and the centre's owner alone can change the file at `path`."""
    try:
        owners = {os.stat(directory).st_uid}
        if not path.is_relative_to(directory):
            owners.add(os.geteuid())
        os.stat(path)
    except OSError as error:
        raise ConfigError(
            f"{directory} publishes what is signed, but {path} cannot be read ({error.strerror}): "
            f"nothing in it can be verified; {ASK}"
        ) from error
    if (unsafe := first_unsafe(path, owners)) is not None:
        raise ConfigError(
            f"{path} is not to be believed: others than root and the centre's owner can change "
            f"{unsafe}. {ASK.capitalize()}: chmod go-w, or a file elsewhere that "
            "FSDPKIT_ALLOWED_SIGNERS names"
        )


def is_vouched_for(directory: Path, path: Path) -> bool:
    """Whether a file at the folder's top, which no index covers, can be changed by root, by who
    lists the signers and by this user alone. A list elsewhere is for a folder whose owner need not
    be trusted: then only what is signed is taken from it."""
    signers = signers_file(directory)
    if signers.is_relative_to(directory):
        return True  # whose owner's it is then is for `refuse_exposed`
    return only_owner_writes(path, {os.geteuid(), os.stat(signers).st_uid})


def content_of(release: Release) -> Mapping[str, bytes]:
    """Every file of the version by its path in it, each as it was signed. Raises ConfigError."""
    try:
        text = read_file(release.dir / "manifest.json", MOST_MANIFEST_BYTES)
        if sha256(text) != release.sha256:
            raise ValueError("manifest.json was changed")
        manifest = decode(text, VersionManifest)
        own = (manifest.kind, manifest.name, manifest.version)
        if own != (release.kind, release.name, release.version):
            raise ValueError(f"manifest.json is that of {' '.join(own)}")
        content = {}
        for name, file in manifest.files.items():
            content[name] = read_file(release.dir / name, file.bytes)
            if sha256(content[name]) != file.sha256:
                raise ValueError(f"{name} was changed")
        if stray := sorted(_names(release.dir) - {*manifest.files, "manifest.json"}):
            raise ValueError(f"{stray[0]!r} was added")
    except OSError as error:
        where = os.fsdecode(error.filename or "")
        if error.errno == errno.EFBIG:
            raise _not_as_signed(release, f"{where} was changed: it is longer") from error
        raise _not_as_signed(release, f"{where} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _not_as_signed(release, str(error)) from error
    return content


def check_path(centre: Centre, path: Path) -> None:
    """Raise ConfigError unless the file at this path in the centre's folder belongs to a version
    that is published, not withdrawn, and as it was signed."""
    kind, name, version, *_ = (*path.relative_to(centre.dir).parts[1:], *("", "", ""))
    entry = centre.index.entry(kind, name)
    if entry is None or version not in entry.versions:
        raise ConfigError(f"{path} belongs to nothing that {centre.dir} publishes; {ASK}")
    chosen(entry, version, "stable")
    content_of(centre.release(entry, version, "pinned"))


def _not_as_signed(release: Release, why: str) -> ConfigError:
    return ConfigError(
        f"{release} in {release.dir} is not what {release.signer} signed: {why}. Nothing of it was "
        f"used. {ASK.capitalize()} to restore it; until then pin another version (fsdpkit publish "
        f"list --to {release.centre})"
    )


def _names(directory: Path) -> set[str]:
    """All that is no directory below it. Raises OSError."""
    found: set[str] = set()

    def fail(error: OSError) -> None:
        raise error

    for top, inner, files in os.walk(directory, onerror=fail):
        links = [name for name in inner if os.path.islink(os.path.join(top, name))]
        for name in (*files, *links):
            if not name.startswith(_SILLY):
                found.add(Path(top, name).relative_to(directory).as_posix())
    return found


def read_file(path: Path, most: int) -> bytes:
    """All of a regular file that is no link. Raises OSError, also for more than `most` bytes."""
    for left in reversed(range(_TRIES)):
        try:
            return read_bytes(path, most)
        except OSError as error:
            if error.errno != errno.ESTALE or not left:
                raise
            time.sleep(_PAUSE_S)
    raise AssertionError
