"""What the CUDA allocator's snapshot of one step comes to: numbers to calibrate a planner by.

`torch.cuda.memory._snapshot()` is megabytes; kept are the peak of what was alive, replayed from the
trace, by the function of ours or torch's that allocated it, and what the segments waste.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SHOWN = 12


def summary_of_snapshot(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes in bytes: reserved and allocated now, unused inside of segments, and `peak_bytes` over
    the recorded step with what was alive then by place (`alive`), beyond what was held before."""
    segments = snapshot.get("segments", [])
    reserved = sum(segment["total_size"] for segment in segments)
    allocated = sum(segment["allocated_size"] for segment in segments)
    peak, alive = peak_of_trace([e for trace in snapshot.get("device_traces", []) for e in trace])
    return {
        "segments": len(segments),
        "reserved_bytes": reserved,
        "allocated_bytes": allocated,
        "unused_bytes": reserved - allocated,
        "step_peak_bytes": peak,
        "alive": [
            {"place": place, "bytes": size}
            for place, size in sorted(alive.items(), key=lambda each: -each[1])[:SHOWN]
        ],
    }


def peak_of_trace(events: Sequence[Mapping[str, Any]]) -> tuple[int, dict[str, int]]:
    """The most bytes that were alive of those allocated in `events`, and by place at that moment.

    What was allocated before is unknown here, so that freeing it counts nothing.
    """
    alive: dict[int, tuple[int, str]] = {}
    now = peak = 0
    peak_at = 0
    for number, event in enumerate(events):
        change = _replay(alive, event)
        now += change
        if now > peak:
            peak, peak_at = now, number + 1
    alive = {}
    for event in events[:peak_at]:
        _replay(alive, event)
    by_place: dict[str, int] = {}
    for size, place in alive.values():
        by_place[place] = by_place.get(place, 0) + size
    return peak, by_place


def _replay(alive: dict[int, tuple[int, str]], event: Mapping[str, Any]) -> int:
    if event["action"] == "alloc":
        alive[event["addr"]] = (event["size"], place_of(event.get("frames", ())))
        return int(event["size"])
    if event["action"] == "free_completed" and event["addr"] in alive:
        return -alive.pop(event["addr"])[0]
    return 0


def place_of(frames: Iterable[Mapping[str, Any]]) -> str:
    """`model.py:forward`, the innermost frame that is ours; else the innermost there is."""
    named = [frame for frame in frames if frame.get("filename", "").endswith(".py")]
    ours = [f for f in named if "-packages/" not in f["filename"]]
    for frame in ours or named:
        return f"{frame['filename'].rpartition('/')[2]}:{frame['name']}"
    return "unknown"
