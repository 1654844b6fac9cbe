"""What `publish`, `audit` and `--check` print with `--json`.

What holds for all answers says json_answers.py.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from fsdpkit.config.checking import BrokenFile
from fsdpkit.publishing.audit import UsedVersion
from fsdpkit.publishing.changes import PublishingStep


class PublishChange(Struct, frozen=True, kw_only=True):
    """A change to what a centre publishes."""

    schema: Literal["fsdpkit.publish/1"] = "fsdpkit.publish/1"
    centre: str
    serial: int
    signer: str
    written: bool
    """False with --dry-run."""
    steps: list[PublishingStep]


class ListedVersion(Struct, frozen=True, kw_only=True):
    """A version that is, or was, published."""

    kind: Literal["template", "site", "job"]
    name: str
    version: str
    sha256: str
    channels: list[str]
    """Those that point to it now."""
    published_s: float
    by: str
    withdrawn: str | None
    """Why, if it was."""


class PublishedVersions(Struct, frozen=True, kw_only=True):
    """All versions that a centre has published, as its signed index has them."""

    schema: Literal["fsdpkit.publish-list/1"] = "fsdpkit.publish-list/1"
    centre: str
    serial: int
    signer: str
    signed_s: float
    key_ends_s: float | None
    """When the signer's key stops counting; null: not within the next sixty days."""
    versions: list[ListedVersion]


class FilesChecked(Struct, frozen=True, kw_only=True):
    """Whether every template, profile or job that can be found can be used."""

    schema: Literal["fsdpkit.files-check/1"] = "fsdpkit.files-check/1"
    kind: Literal["template", "site", "job"]
    checked: int
    problems: list[BrokenFile]


class Audited(Struct, frozen=True, kw_only=True):
    """What shared runs used, and why some failed, by week."""

    schema: Literal["fsdpkit.audit/1"] = "fsdpkit.audit/1"
    centre: str
    weeks: int
    lines: list[UsedVersion]
    left_out: dict[str, int]
    """Records that do not count, by the reason."""
