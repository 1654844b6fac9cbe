"""What the samples of an attempt's nodes add up to, from a few lines of each file.

Each line has the sums since its sampler began, so the newest is a node's whole account, and what
was used between two moments is the difference of the lines before them, which are found by halving
the file. Nothing here is believed beyond what an attempt can have used.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from fsdpkit.bounded import NODES_READ, NOTE_BYTES, open_regular
from fsdpkit.runs.account import Measured
from fsdpkit.runs.bounds import shift_s
from fsdpkit.runs.history import Attempt
from fsdpkit.runs.samples import GpuSums, Sample, Sums, decoded, newest_sample

_STARTS = 16
"""Of agents in one attempt; more are not looked for."""
_NOTHING = Sums(since_s=0.0, observed_s=0.0)


def sample_before(path: Path, time_s: float) -> Sample | None:
    """The newest that is older, in a file that is in the order of time. Raises OSError."""
    with open_regular(path) as file:
        low, high = 0, os.fstat(file.fileno()).st_size
        while high - low > NOTE_BYTES:
            middle = (low + high) // 2
            found = next(_from(file, middle), None)
            low, high = (low, middle) if found is None or found.time_s >= time_s else (middle, high)
        older = [one for one in _from(file, low) if one.time_s < time_s]
    return older[-1] if older else None


def _from(file: BinaryIO, place: int) -> Iterator[Sample]:
    """Those of the whole lines soon after a place."""
    file.seek(max(0, place - 1))
    data = file.read(2 * NOTE_BYTES)
    return decoded(data if not place else data.partition(b"\n")[2])


class NodeSamples:
    """Of one node in one attempt. by_s: what to add to its clock's times for the head node's."""

    def __init__(self, path: Path, by_s: float) -> None:
        self.path, self._by_s = path, by_s

    @cached_property
    def newest(self) -> Sample | None:
        with contextlib.suppress(OSError):
            return newest_sample(self.path)
        return None

    def before(self, time_s: float) -> Sample | None:
        """The newest older line, by the head node's clock."""
        own_s = time_s - self._by_s
        if self.newest is None or self.newest.time_s < own_s:
            return self.newest
        with contextlib.suppress(OSError):
            return sample_before(self.path, own_s)
        return None

    @cached_property
    def last_lines(self) -> list[Sums]:
        """The last sums of each agent that was started here, the newest first."""
        found: list[Sums] = []
        line = self.newest
        while line is not None and line.sums is not None and len(found) < _STARTS:
            if found and line.sums.since_s >= found[-1].since_s:
                break
            found.append(line.sums)
            line = self.before(line.sums.since_s + self._by_s)
        return found

    def gpus_between(self, begin_s: float, end_s: float) -> tuple[float, float] | None:
        """GPU-seconds that were observed, and those in which a kernel ran; None: not known."""
        late, early = self.before(end_s), self.before(begin_s)
        if late is None or late.sums is None or not late.sums.gpus:
            return None
        before = early.sums if early is not None and early.sums else _NOTHING
        if before.since_s != late.sums.since_s:
            before = _NOTHING
        observed_s = _sum(late.sums, lambda gpu: gpu.observed_s) - _sum(
            before, lambda gpu: gpu.observed_s
        )
        busy_s = _sum(late.sums, lambda gpu: gpu.busy_s) - _sum(before, lambda gpu: gpu.busy_s)
        return (observed_s, min(observed_s, max(0.0, busy_s))) if observed_s > 0 else None


def _sum(sums: Sums, value: Callable[[GpuSums], float | None]) -> float:
    return sum(value(gpu) or 0.0 for gpu in sums.gpus)


class AttemptSamples:
    """Of all nodes of an attempt."""

    def __init__(self, attempt: Attempt) -> None:
        stories = {node.number: node for node in attempt.nodes}
        self.nodes: dict[str, NodeSamples] = {}
        """By name; of a node that has not told its own, by the file's."""
        for path in sorted(attempt.dir.glob("node-*.samples.jsonl"))[:NODES_READ]:
            number = path.name.split(".")[0].removeprefix("node-")
            story = stories.get(int(number)) if number.isdecimal() else None
            by_s = shift_s(attempt, story) if story else 0.0
            self.nodes[story.name if story else path.name] = NodeSamples(path, by_s)

    def loading_s(self, names: Iterable[str], launch: int, end_s: float) -> float | None:
        """Seconds for which each node's first rank waited for data in a launch that ended, or was
        looked at, then; summed over these nodes. None: no node tells."""
        lines = [self.nodes[name].before(end_s) for name in names if name in self.nodes]
        told = [
            line.loading_s
            for line in lines
            if line is not None and line.loading_s is not None and line.launch == launch
        ]
        return sum(told) if told else None

    def idle_share(self, names: Iterable[str], begin_s: float, end_s: float) -> float | None:
        """Of the GPUs' time, in which no kernel ran, 0 to 1. None: not measured."""
        told = [self.nodes[one].gpus_between(begin_s, end_s) for one in names if one in self.nodes]
        known = [one for one in told if one is not None]
        observed_s = sum(one for one, _ in known)
        return 1 - sum(busy_s for _, busy_s in known) / observed_s if observed_s > 0 else None

    def measured(
        self, nodes: int, gpus: int, lasted_s: float
    ) -> tuple[str | None, Measured | None]:
        """The GPU's name, and what was measured of an attempt of so many nodes with so many GPUs
        each. GPUs beyond those are not counted, nor seconds beyond what it lasted."""
        files = [one for one in self.nodes.values() if one.last_lines][:nodes]
        if not files:
            return None, None
        of_gpus = [gpu for one in files for gpu in _gpus(one.last_lines, gpus, lasted_s)]
        seconds_s = [
            min(lasted_s, sum(one.observed_s for one in each.last_lines)) for each in files
        ]
        sums = [each.last_lines for each in files]
        memory = max(
            ((one.memory_peak_bytes, one.memory_total_bytes) for each in sums for one in each),
            key=lambda both: both[0] or 0,
        )
        fullest = max(of_gpus, key=lambda gpu: gpu.memory_peak_bytes or 0, default=GpuSums())
        cores_s = [
            (each[0].cores or 0) * seconds for each, seconds in zip(sums, seconds_s, strict=True)
        ]
        found = Measured(
            gpu_s=sum(gpu.observed_s for gpu in of_gpus),
            busy_s=_whole(gpu.busy_s for gpu in of_gpus),
            active_s=_whole(gpu.active_s for gpu in of_gpus),
            energy_j=_whole(gpu.energy_j for gpu in of_gpus),
            host_energy_j=_whole(_whole(one.host_energy_j for one in each) for each in sums),
            gpu_memory_bytes=fullest.memory_peak_bytes,
            gpu_memory_total_bytes=fullest.memory_total_bytes,
            memory_bytes=memory[0],
            memory_total_bytes=memory[1],
            cpu_s=_whole(_whole(one.cpu_s for one in each) for each in sums),
            core_s=sum(cores_s) if all(cores_s) else None,
            nodes=len(files),
        )
        return next((gpu.name for gpu in of_gpus if gpu.name), None), found


def _gpus(lines: list[Sums], most: int, lasted_s: float) -> list[GpuSums]:
    """Of each of a node's busiest GPUs the sums of all its agents, in the time there was."""
    found = []
    for place, newest in enumerate(lines[0].gpus):
        mine = [one.gpus[place] for one in lines if place < len(one.gpus)]
        observed_s = min(lasted_s, sum(one.observed_s for one in mine))

        def inside(value: float | None, most: float = observed_s) -> float | None:
            return None if value is None else min(value, most)

        found.append(
            GpuSums(
                name=newest.name,
                observed_s=observed_s,
                busy_s=inside(_whole(one.busy_s for one in mine)),
                active_s=inside(_whole(one.active_s for one in mine)),
                energy_j=_whole(one.energy_j for one in mine),
                memory_peak_bytes=max(one.memory_peak_bytes or 0 for one in mine) or None,
                memory_total_bytes=newest.memory_total_bytes,
            )
        )
    return sorted(found, key=lambda gpu: gpu.busy_s or 0.0, reverse=True)[:most]


def _whole(values: Iterable[float | None]) -> float | None:
    """The sum, if each is known and there is one."""
    told = list(values)
    known = [value for value in told if value is not None]
    return sum(known) if known and len(known) == len(told) else None
