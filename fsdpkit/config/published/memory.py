"""What this user has seen of each centre: a signature alone cannot tell an old index from a new.

A small file a centre, in the user's state directory. Nothing in it can make a centre believed that
is not, but for the note that a signature was verified; so a file that others can write to counts
for nothing.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fsdpkit.bounded import NOTE_BYTES, read_bytes
from fsdpkit.config.ownership import only_owner_writes
from fsdpkit.config.private_files import replace_private
from fsdpkit.config.published.index import PublishedIndex, decode, sha256


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The newest index that was believed."""

    path: str
    """The centre's folder as it was named."""
    centre: str
    serial: int
    index: str
    """SHA-256 of the index's file."""
    verified: str = ""
    """SHA-256 of index and signers whose signature was verified, if that holds for ever."""
    shown: list[str] = []
    """Ids of the announcements that this user was shown."""


def state_dir() -> Path:
    """`$FSDPKIT_STATE_DIR`, else `fsdpkit` in the user's XDG state directory."""
    if explicit := os.environ.get("FSDPKIT_STATE_DIR"):
        return Path(explicit)
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "fsdpkit"


def memory_file(centre: Path) -> Path:
    name = hashlib.sha256(os.fsencode(centre)).hexdigest()[:32]
    return state_dir() / "centres" / f"{name}.json"


def _named(centre: Path) -> str:
    return os.fsencode(centre).decode("utf-8", "replace")


def recall(centre: Path) -> Seen | None:
    """None for a centre that was never seen, and where somebody else could have written it."""
    path = memory_file(centre)
    try:
        seen = decode(read_bytes(path, NOTE_BYTES), Seen)
    except (OSError, ValueError):
        return None
    return seen if seen.path == _named(centre) and only_owner_writes(path) else None


def remember(
    centre: Path, index: PublishedIndex, text: bytes, verified: str, before: Seen | None
) -> None:
    """Raises OSError."""
    seen = Seen(
        path=_named(centre),
        centre=index.centre,
        serial=index.serial,
        index=sha256(text),
        verified=verified,
        shown=before.shown if before else [],
    )
    if seen == before:
        return
    replace_private(memory_file(centre), msgspec.json.encode(seen))


def remember_shown(centre: Path, shown: list[str]) -> None:
    """Raises OSError."""
    if (seen := recall(centre)) is not None:
        replace_private(memory_file(centre), msgspec.json.encode(replace(seen, shown=shown)))
