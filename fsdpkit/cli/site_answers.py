"""What the verbs of `fsdpkit site` print with `--json`; the rules are those of json_answers.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from fsdpkit.publishing.drift import ProfileDifference


class SiteDraft(Struct, frozen=True, kw_only=True):
    """A profile that was drafted from the live cluster."""

    schema: Literal["fsdpkit.site-draft/1"] = "fsdpkit.site-draft/1"
    cluster: str
    """As Slurm calls it."""
    file: str | None
    """Where it was written; null: nowhere, `text` is all there is."""
    text: str
    """The profile, as TOML with comments."""
    unknown: list[str]
    """What remains to be found out, in words."""


class SiteDiff(Struct, frozen=True, kw_only=True):
    """A profile held against the live cluster."""

    schema: Literal["fsdpkit.site-diff/1"] = "fsdpkit.site-diff/1"
    name: str
    same: bool
    """Whether nothing differs."""
    differ: Sequence[ProfileDifference]
    missing: Sequence[ProfileDifference]
    """What the profile does not say and the cluster does."""
    not_compared: Sequence[str]
    unread: list[str]
    """What of Slurm gave no answer, and why."""
