"""What `scale` prints with `--json`; json_answers.py says what holds for all answers."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from fsdpkit.sweeps.scaling import Size


class ScaleStarted(Struct, frozen=True, kw_only=True):
    """A scaling study that was started."""

    schema: Literal["fsdpkit.scale-start/1"] = "fsdpkit.scale-start/1"
    name: str
    dir: str
    runs: dict[str, str]
    """By mode and nodes (`weak 2`)."""


class ScaleStatus(Struct, frozen=True, kw_only=True):
    """A scaling study as it was measured so far; with --dry-run, as it would be."""

    schema: Literal["fsdpkit.scale-status/2"] = "fsdpkit.scale-status/2"
    name: str
    dir: str
    sizes: list[Size]
    knee: dict[str, int | None]
    """By mode, the last number of nodes before a step up that does not pay; null: none so far."""


class ScaleExtended(Struct, frozen=True, kw_only=True):
    """Sizes that were added to a study."""

    schema: Literal["fsdpkit.scale-extend/1"] = "fsdpkit.scale-extend/1"
    name: str
    dir: str
    runs: dict[str, str]
    """By mode and nodes (`weak 8`), all that were submitted so far."""


class ScaleWritten(Struct, frozen=True, kw_only=True):
    """Files that `scale write` made."""

    schema: Literal["fsdpkit.scale-write/1"] = "fsdpkit.scale-write/1"
    name: str
    files: list[str]


class ScaleCancelled(Struct, frozen=True, kw_only=True):
    """A study that was asked to end."""

    schema: Literal["fsdpkit.scale-cancel/1"] = "fsdpkit.scale-cancel/1"
    name: str
    runs: list[str]
