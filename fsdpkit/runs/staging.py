"""What an attempt copied to its nodes' own disks, and how far that is.

    stage.json     in the attempt's directory

The head node's stager writes it every few seconds (fsdpkit/staging); nothing is decided by it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fsdpkit.bounded import NODES
from fsdpkit.runs.layout import AttemptPaths
from fsdpkit.runs.reading import record_in
from fsdpkit.runs.record import Time

_Count = Annotated[int, Meta(ge=0, le=1 << 62)]


class StagedNode(msgspec.Struct, frozen=True, kw_only=True):
    """How far one node is."""

    bytes: _Count = 0
    """Of the files' contents, that are on its disk."""
    seconds: Time = 0.0
    """Since it began."""
    state: Literal["copying", "ready", "failed"]
    reused: bool = False
    """Whether all of it was on its disk already."""
    why: str = ""
    """Why it failed."""


class StageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is copied to every node of an attempt."""

    schema: Literal["fsdpkit.stage/1"]
    began_s: Time
    """Unix time by the head node's clock."""
    ended_s: Time | None = None
    """None: it has not come to its end."""
    bytes: _Count
    """For one node."""
    files: _Count
    what: Annotated[tuple[Literal["environment", "data"], ...], Meta(max_length=2)] = ()
    nodes: Annotated[dict[str, StagedNode], Meta(max_length=NODES)] = {}
    """By name, those that have come."""

    @property
    def done(self) -> bool:
        return self.ended_s is not None and all(n.state == "ready" for n in self.nodes.values())

    @property
    def last_s(self) -> float:
        """When it ended, or the last moment that is on record."""
        if self.ended_s is not None:
            return max(self.began_s, self.ended_s)
        return self.began_s + max((node.seconds for node in self.nodes.values()), default=0.0)


def read_stage(attempt: AttemptPaths) -> StageRecord | None:
    """None where nothing was copied, or the file cannot be read."""
    return record_in(attempt.stage, StageRecord)
