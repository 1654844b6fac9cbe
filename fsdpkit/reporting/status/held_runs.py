"""What a hold's nodes were used for: the runs on it, and their share of its GPU-hours."""

from __future__ import annotations

import time

import msgspec

from fsdpkit.errors import FsdpkitError
from fsdpkit.listing import first_of
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.reading import table_in
from fsdpkit.runs.record import RunRecord, load
from fsdpkit.runs.store import all_runs
from fsdpkit.scheduling.asking import Asking
from fsdpkit.scheduling.run_states import Standing, decisive

_LOOKED_AT = 1000
_NAMED = 3


class HeldRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run on a hold."""

    run: str
    state: str
    """In a word."""
    nodes: int
    elapsed_s: float
    """Of all its jobs and array tasks together."""
    gpu_hours: float


class HoldUse(msgspec.Struct, frozen=True, kw_only=True):
    """The runs on a hold, the newest first, and its GPU-hours so far: `used_h` by them, `idle_h` by
    nobody. Of runs in another directory of runs nothing is known."""

    runs: list[HeldRun]
    used_h: float
    idle_h: float

    @property
    def sentences(self) -> list[str]:
        """One or two."""
        held_h, count = self.used_h + self.idle_h, len(self.runs)
        by = "by 1 run" if count == 1 else f"by {count} runs" if count else "no run yet"
        told = [f"{self.used_h:.2f} of {held_h:.2f} GPU-hours used, {by}"]
        if now := [one.run for one in self.runs if one.state == "RUNNING"]:
            told.append(f"on it now: {first_of(now, _NAMED)}")
        return told


def use_of_hold(paths: RunPaths, hold: RunRecord, held_s: float, asking: Asking) -> HoldUse:
    """held_s: how long the hold has had its nodes."""
    found = []
    for path in all_runs(paths.dir.parent)[:_LOOKED_AT]:
        try:
            record = load(path)
        except FsdpkitError:
            continue
        if record.on == hold.id:
            found.append((RunPaths(path), record))
    runs = [_held(standing) for standing in asking.standings(found)]
    used_h = sum(one.gpu_hours for one in runs)
    held_h = held_s * hold.nodes * gpus_of(paths) / 3600
    return HoldUse(runs=runs, used_h=used_h, idle_h=max(0.0, held_h - used_h))


def gpus_of(paths: RunPaths) -> int:
    """GPUs of each node, where one process a node holds them."""
    return int(table_in(paths.job).get("resources", {}).get("gpus", 1))


def _held(standing: Standing) -> HeldRun:
    record, now_s = standing.record, time.time()
    states = [state for state in standing.states.values() if state is not None]
    elapsed_s = sum(
        max(0.0, (state.end_s if state.over and state.end_s else now_s) - state.start_s)
        for state in states
        if state.start_s
    )
    words = {state.word for state in decisive(record, standing.states).values() if state}
    running = any(state.phase == "running" for state in states)
    return HeldRun(
        run=record.id,
        state="RUNNING" if running else " ".join(sorted(words)) or "UNKNOWN",
        nodes=record.nodes,
        elapsed_s=elapsed_s,
        gpu_hours=elapsed_s * record.nodes * record.ranks_per_node / 3600,
    )
