"""How each rank's process of a launch ended, as seen by its node's agent.

The agent writes one line per unsuccessful launch into `node-<i>.events.jsonl`:

    {"event": "ranks-ended", "launch": 0, "ranks": {"3": {"status": 1, "time_s": …}, …}}

torchelastic keeps only failures, and only one of them. Here all ranks of the node are listed, and
which of them the agent ended because another one had failed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.listing import first_of
from fsdpkit.runs.events import read_json_lines

EVENT = "ranks-ended"
_MOST_RANKS = 1 << 16


class RankEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of one rank's process."""

    status: int | None
    """Exit status; 128 + signal if a signal ended it; None: it could not be ended."""
    time_s: float
    """Unix time, by the node's clock, when the agent noticed: up to 0.1 s late."""
    killed: bool = False
    """The agent ended it. Otherwise it ended by itself, or somebody else killed it."""


def event_of(launch: int, ends: Mapping[int, RankEnd]) -> dict[str, Any]:
    """The line's fields. ends: by global rank."""
    ranks = {str(rank): msgspec.to_builtins(end) for rank, end in sorted(ends.items())}
    return {"event": EVENT, "launch": launch, "ranks": ranks}


def read_rank_ends(events: Path, launch: int) -> dict[int, RankEnd]:
    """By global rank, from one node's events; empty where nothing was written. Raises OSError."""
    return rank_ends(read_json_lines(events), launch)


def rank_ends(records: Iterable[Mapping[str, Any]], launch: int) -> dict[int, RankEnd]:
    """The same from the file's records; malformed ones are skipped. A node may say: all well."""
    found: dict[int, RankEnd] = {}
    started: list[int] = []
    for record in records:
        if record.get("launch") == launch and record.get("event") == "ranks-started":
            pids = record.get("pids")
            started = [int(r) for r in pids if r.isdecimal()] if isinstance(pids, dict) else []
        if record.get("launch") == launch and record.get("event") == "ranks-done":
            with contextlib.suppress(msgspec.ValidationError):
                well = msgspec.convert({"status": 0, "time_s": record.get("time_s")}, RankEnd)
                found.update(dict.fromkeys(started[:_MOST_RANKS], well))
        ranks = record.get("ranks")
        if record.get("event") != EVENT or record.get("launch") != launch:
            continue
        if not isinstance(ranks, dict) or len(ranks) > _MOST_RANKS:
            continue
        for rank, end in ranks.items():
            try:
                found[int(rank)] = msgspec.convert(end, RankEnd)
            except (ValueError, msgspec.ValidationError):
                continue
    return found


def in_words(ends: Mapping[int, RankEnd]) -> str | None:
    """Which rank ended first, which later, and which the agents ended; None: none failed. ends: by
    global rank, of any number of nodes."""
    own = sorted((e.time_s, rank, e) for rank, e in ends.items() if e.status and not e.killed)
    if not own:
        return None
    began_s, first, end = own[0]
    said = [f"rank {first} ended first, by itself ({_status(end)})"]
    if len(own) > 1:
        others = first_of((f"{rank} after {at_s - began_s:.1f} s" for at_s, rank, _ in own[1:]), 4)
        said.append(f"then ranks {others}" if len(own) > 2 else f"then rank {others}")
    if killed := sum(end.killed for end in ends.values()):
        said.append(f"the agents then ended {killed} other{'s' * (killed > 1)}")
    return "; ".join(said)


def _status(end: RankEnd) -> str:
    status = end.status or 0
    return f"signal {status - 128}" if status > 128 else f"exit status {status}"
