"""The catalogue as a directory, which takes the place of the old one at once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fsdpkit.errors import UsageError
from fsdpkit.publishing.replacing import make_anew, present_in

MANIFEST = "catalogue.json"


class CatalogueManifest(msgspec.Struct, frozen=True):
    """Says that a directory is a catalogue, and what it holds: by path the sha256."""

    schema: str
    files: dict[str, str]


def write(files: Mapping[str, bytes], output: Path) -> None:
    """Make `output` hold `files` and nothing else. Raises UsageError for a directory that holds
    what no catalogue put there, StorageError if it cannot be written."""
    output = Path(os.path.abspath(output))
    if strange := sorted(set(present_in(output)) - _made_before(output) - {MANIFEST}):
        raise UsageError(
            f"--output {output}: holds {strange[0]!r}, which no catalogue put there, and it would "
            "be lost: choose a directory that is the catalogue's alone"
        )
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    manifest = msgspec.json.encode(
        CatalogueManifest("fsdpkit.catalogue/1", digests), order="deterministic"
    )
    make_anew(output, {**files, MANIFEST: msgspec.json.format(manifest, indent=1) + b"\n"})


def _made_before(output: Path) -> set[str]:
    try:
        return {
            *msgspec.json.decode((output / MANIFEST).read_bytes(), type=CatalogueManifest).files
        }
    except (OSError, ValueError, RecursionError):
        return set()
