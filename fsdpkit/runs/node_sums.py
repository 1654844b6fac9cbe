"""What the samples of an attempt's nodes add up to, from the newest line of each file, which has
the sums since its sampler began. Nothing is believed beyond what an attempt can have used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from itertools import islice

from fsdpkit.bounded import NODES_READ
from fsdpkit.runs.account import Measured
from fsdpkit.runs.history import Attempt
from fsdpkit.runs.samples import GpuSums, Sample, newest_sample


class AttemptSamples:
    """Of all nodes of an attempt, by name; of a node that has not told its own, by its file's."""

    def __init__(self, attempt: Attempt) -> None:
        self.newest: dict[str, Sample] = {}
        for path, node in islice(attempt.sampled(), NODES_READ):
            with contextlib.suppress(OSError):
                if (found := newest_sample(path)) is not None:
                    self.newest[(node and node.name) or path.name] = found

    def loading_s(self, names: Iterable[str]) -> float:
        """Seconds for which these nodes' first ranks have waited for data in all launches together;
        0 where no node tells."""
        sums = [self.newest[name].sums for name in names if name in self.newest]
        return sum(one.loading_s or 0.0 for one in sums if one is not None)

    @property
    def most_gpus(self) -> int:
        """Of a node."""
        return max((len(one.sums.gpus) for one in self.newest.values() if one.sums), default=0)

    def idle_s(self, names: Iterable[str], since_s: float) -> float | None:
        """Node-seconds of these nodes in which no kernel ran, by the mean of a node's GPUs: at
        least so many were after `since_s`. None: no node has GPUs that were sampled."""
        found = []
        for name in names:
            sums = self.newest[name].sums if name in self.newest else None
            if sums is not None and sums.gpus:
                idle_s = sum(max(0.0, gpu.observed_s - (gpu.busy_s or 0.0)) for gpu in sums.gpus)
                before_s = max(0.0, since_s - sums.since_s)
                found.append(max(0.0, idle_s / len(sums.gpus) - before_s))
        return sum(found) if found else None

    def measured(
        self, nodes: int, gpus: int, lasted_s: float
    ) -> tuple[str | None, Measured | None]:
        """The GPU's name, and what was measured of an attempt of so many nodes with so many GPUs
        each. GPUs beyond those are not counted, nor seconds beyond what it lasted."""
        sums = [one.sums for one in self.newest.values() if one.sums is not None][:nodes]
        if not sums:
            return None, None
        of_gpus = [gpu for one in sums for gpu in _busiest(one.gpus, gpus)]
        seen_s = [min(lasted_s, gpu.observed_s) for gpu in of_gpus]
        pairs = list(zip(of_gpus, seen_s, strict=True))
        fullest = max(of_gpus, key=lambda gpu: gpu.memory_peak_bytes or 0, default=GpuSums())
        host = max(sums, key=lambda one: one.memory_peak_bytes or 0)
        return next((gpu.name for gpu in of_gpus if gpu.name), None), Measured(
            gpu_s=sum(seen_s, 0.0),
            busy_s=_whole(gpu.busy_s and min(gpu.busy_s, seen) for gpu, seen in pairs),
            active_s=_whole(gpu.active_s and min(gpu.active_s, seen) for gpu, seen in pairs),
            energy_j=_whole(gpu.energy_j for gpu in of_gpus),
            host_energy_j=_whole(one.host_energy_j for one in sums),
            gpu_memory_bytes=fullest.memory_peak_bytes,
            gpu_memory_total_bytes=fullest.memory_total_bytes,
            memory_bytes=host.memory_peak_bytes,
            memory_total_bytes=host.memory_total_bytes,
            cpu_s=_whole(one.cpu_s for one in sums),
            core_s=_whole(one.cores and one.cores * min(lasted_s, one.observed_s) for one in sums),
            nodes=len(sums),
        )


def _busiest(gpus: Iterable[GpuSums], most: int) -> list[GpuSums]:
    return sorted(gpus, key=lambda gpu: gpu.busy_s or 0.0, reverse=True)[:most]


def _whole(values: Iterable[float | None]) -> float | None:
    """The sum, if each is known and there is one."""
    told = list(values)
    known = [value for value in told if value is not None]
    return sum(known) if known and len(known) == len(told) else None
