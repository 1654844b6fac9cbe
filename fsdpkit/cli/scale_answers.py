"""What `scale` prints with `--json`; json_answers.py says what holds for all answers."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from fsdpkit.sweeps.scaling import Size


class ScaleStarted(Struct, frozen=True, kw_only=True):
    """Sizes of a scaling study that were submitted."""

    schema: Literal["fsdpkit.scale-start/2"] = "fsdpkit.scale-start/2"
    name: str
    runs: dict[str, str]
    """By mode and nodes (`weak 2`)."""


class ScaleStatus(Struct, frozen=True, kw_only=True):
    """A scaling study as it was measured so far; with --dry-run, as it would be."""

    schema: Literal["fsdpkit.scale-status/3"] = "fsdpkit.scale-status/3"
    name: str
    sizes: list[Size]
    knee: dict[str, int | None]
    """By mode, the last number of nodes before a step up that does not pay; null: none so far."""


class ScaleWritten(Struct, frozen=True, kw_only=True):
    """Files that `scale write` made."""

    schema: Literal["fsdpkit.scale-write/1"] = "fsdpkit.scale-write/1"
    name: str
    files: list[str]
