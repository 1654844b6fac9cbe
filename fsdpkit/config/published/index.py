"""The signed index of a centre's folder, and the manifest of each version.

    <centre>/
        allowed_signers                     whose signatures count, as ssh-keygen reads it
        published/
            index                           the JSON of `PublishedIndex`, then its SSH signature
            history/<serial>-<digest>       every index there was
            lock                            while somebody publishes
            <kind>/<name>/<version>/
                manifest.json               the SHA-256 of every file of this version
                <name>/… or <name>.toml …   the files

The index is the only file that changes, by a rename. It holds the SHA-256 of each manifest, so its
signature covers every byte of every version. Keys that this release does not know are left out.
"""

from __future__ import annotations

import hashlib
import time
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

MOST_INDEX_BYTES = 8 << 20
MOST_MANIFEST_BYTES = 1 << 20
MOST_RELEASE_BYTES = 8 << 20
"""All files of one version together; each submission reads them."""
MOST_ANNOUNCEMENTS = 100
_BEGIN, _END = b"-----BEGIN SSH SIGNATURE-----\n", b"-----END SSH SIGNATURE-----\n"

Kind = Literal["template", "site", "job"]
KINDS: tuple[Kind, ...] = ("template", "site", "job")
Channel = Literal["stable", "testing"]
CHANNELS: tuple[Channel, ...] = ("stable", "testing")
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,80}\Z")]
Version = Annotated[str, Meta(pattern=r"^\d{1,9}(\.\d{1,9}\.\d{1,9})?\Z")]
Principal = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._%+@-]{0,254}\Z")]
"""It becomes a word of ssh-keygen's command line."""
Words = Annotated[str, Meta(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z")]
Struct = TypeVar("Struct", bound=msgspec.Struct)
Time = Annotated[float, Meta(ge=0, le=1e11)]


class Withdrawn(msgspec.Struct, frozen=True, kw_only=True):
    """Why a version is not to be used."""

    reason: Words
    by: Principal
    at_s: Time
    instead: Words | None = None
    """What to use, in the administrator's words."""


class Deprecated(msgspec.Struct, frozen=True, kw_only=True):
    """That a version is to be replaced; it works until it is withdrawn."""

    until: date
    """The last day on which it should be used."""
    successor: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,80}@[0-9.]{1,29}\Z")]
    by: Principal


class PublishedVersion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of something."""

    sha256: Digest
    """Of its manifest."""
    by: Principal
    """Who published it; the index's signer vouches for that."""
    at_s: Time
    withdrawn: Withdrawn | None = None
    deprecated: Deprecated | None = None


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """All versions of one template, profile or job."""

    kind: Kind
    name: Name
    versions: dict[Version, PublishedVersion]
    stable: list[Version] = []
    """What the channel has pointed to, the present one last."""
    testing: list[Version] = []

    def __post_init__(self) -> None:
        if not {*self.stable, *self.testing} <= self.versions.keys():
            raise ValueError(f"{self.name}: a channel points to a version that is not there")

    def history(self, channel: Channel) -> list[str]:
        return self.stable if channel == "stable" else self.testing


class Announcement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line that users are shown. Days are those of the machine on which a command is typed."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{8}\Z")]
    text: Words
    by: Principal
    since: date
    until: date | None = None
    """The last day."""
    partition: Name | None = None
    """For its jobs alone."""

    def __post_init__(self) -> None:
        if not self.text.isprintable():
            raise ValueError("text: a character that is not printable")
        if self.until is not None and self.until < self.since:
            raise ValueError("its last day is before its first")

    def holds(self) -> bool:
        return self.since <= today() and (self.until is None or today() <= self.until)

    @property
    def told(self) -> str:
        """The line, behind whom it is for."""
        return f"partition {self.partition}: {self.text}" if self.partition else self.text

    @property
    def days(self) -> str:
        return f"from {self.since}" + (f" to {self.until}" if self.until else "")


class PublishedIndex(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a centre publishes."""

    schema: Literal["fsdpkit.published/1"]
    centre: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    """Made once, at random: another centre's index, signed by the same key, has another."""
    serial: Annotated[int, Meta(ge=1, le=10**12)]
    """Grows with each change, also with one that goes back to an older version."""
    before: Digest | None = None
    """SHA-256 of the index that this one replaced, signature included."""
    at_s: Time
    by: Principal
    entries: list[IndexEntry] = []
    announcements: Annotated[list[Announcement], Meta(max_length=MOST_ANNOUNCEMENTS)] = []

    def entry(self, kind: str, name: str) -> IndexEntry | None:
        return next((e for e in self.entries if (e.kind, e.name) == (kind, name)), None)


class File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sha256: Digest
    bytes: Annotated[int, Meta(ge=0, le=MOST_RELEASE_BYTES)]


class VersionManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of one version, by their path in its folder."""

    schema: Literal["fsdpkit.release/1"] = "fsdpkit.release/1"
    kind: Kind
    name: Name
    version: Version
    files: dict[str, File]

    def __post_init__(self) -> None:
        for name in self.files:
            if not is_inside(name):
                raise ValueError(f"files: {name[:80]!r} is no path inside a folder")
        if sum(file.bytes for file in self.files.values()) > MOST_RELEASE_BYTES:
            raise ValueError(f"files: more than {MOST_RELEASE_BYTES} bytes together")


def today() -> date:
    """By the clock and the time zone of this machine."""
    return date.fromtimestamp(time.time())


def is_inside(name: str) -> bool:
    """Whether it is a plain relative path of printable characters that leads nowhere else."""
    path = PurePosixPath(name)
    plain = name.isprintable() and "\\" not in name and str(path) == name and name != "."
    return plain and not path.is_absolute() and ".." not in path.parts


def published_dir(centre: Path) -> Path:
    return centre / "published"


def index_path(centre: Path) -> Path:
    return published_dir(centre) / "index"


def version_dir(centre: Path, kind: Kind, name: str, version: str) -> Path:
    return published_dir(centre) / kind / name / version


def main_file(kind: Kind, name: str) -> str:
    """Of a template its folder, else its one file: what the rest of fsdpkit knows it by."""
    return name if kind == "template" else f"{name}.toml"


def body_of(index: PublishedIndex) -> bytes:
    """The bytes that are signed."""
    return msgspec.json.format(msgspec.json.encode(index), indent=1) + b"\n"


def manifest_bytes(manifest: VersionManifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def split(text: bytes) -> tuple[bytes, bytes]:
    """Body and signature of an index. Raises ValueError for what is not both, and nothing else."""
    body, begin, rest = text.partition(b"\n" + _BEGIN)
    armour = rest.removesuffix(_END)
    if not begin or armour == rest or b"-" in armour:
        raise ValueError("it has no whole SSH signature behind its text")
    return body + b"\n", _BEGIN + rest


def decode(content: bytes, kind: type[Struct]) -> Struct:
    """A `PublishedIndex` or a `VersionManifest`. Raises ValueError for anything else."""
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
