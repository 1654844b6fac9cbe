"""What a hold's nodes were used for: the runs on it, and their share of its GPU-hours."""

from __future__ import annotations

import time

from fsdpkit.errors import FsdpkitError
from fsdpkit.listing import first_of
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.reading import table_in
from fsdpkit.runs.record import RunRecord, load
from fsdpkit.runs.store import all_runs
from fsdpkit.scheduling.asking import Asking
from fsdpkit.scheduling.run_states import Standing

_LOOKED_AT = 1000
_NAMED = 3


def held_runs(paths: RunPaths, hold: RunRecord, held_s: float, asking: Asking) -> list[str]:
    """A sentence or two; of runs in another directory of runs nothing is known. held_s: how long
    the hold has had its nodes."""
    found = []
    for path in all_runs(paths.dir.parent)[:_LOOKED_AT]:
        try:
            record = load(path)
        except FsdpkitError:
            continue
        if record.on == hold.id:
            found.append((RunPaths(path), record))
    standings = asking.standings(found)
    used_h = sum(_gpu_s(standing) for standing in standings) / 3600
    held_h = held_s * hold.nodes * gpus_of(paths) / 3600
    now = [one.record.id for one in standings if _runs(one)]
    told = [f"{used_h:.2f} of {held_h:.2f} GPU-hours used, {_runs_in_words(len(found))}"]
    if now:
        told.append(f"on it now: {first_of(now, _NAMED)}")
    return told


def gpus_of(paths: RunPaths) -> int:
    """GPUs of each node, where one process a node holds them."""
    return int(table_in(paths.job).get("resources", {}).get("gpus", 1))


def _gpu_s(standing: Standing) -> float:
    record = standing.record
    spans = [
        max(0.0, (state.end_s if state.over and state.end_s else time.time()) - state.start_s)
        for state in standing.states.values()
        if state is not None and state.start_s
    ]
    return sum(spans) * record.nodes * record.ranks_per_node


def _runs(standing: Standing) -> bool:
    return any(state and state.phase == "running" for state in standing.states.values())


def _runs_in_words(count: int) -> str:
    return "by 1 run" if count == 1 else f"by {count} runs" if count else "no run yet"
