"""What this node has used since its samples began: running sums, in each line of samples.

The newest line is then a node's whole account, a node that is killed loses one interval, and two
lines' difference is what was used between them (runs/samples.py: `Sums`).

Where NVML has means over time (GPM), busy and active time is theirs, however long ago the last
reading was. Elsewhere it is the utilization of the moment that counts, and for at most three
intervals: what a node did while it was suspended, or its sampler stopped, is not observed. Counters
that go backwards lose what they counted in between.

Each costly reading has a share of a core, and waits until its last one fits into that. On an H100
the energy counter takes 3.9 ms, GPM 1 ms and the rest of a sample 0.06 ms a GPU, and 0.3 ms a node:
with eight GPUs and a sample every 10 s, 0.16 % of a core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fsdpkit.launching import machine
from fsdpkit.launching.nvml import NvmlGpu

_GAP = 3
_IDLE = 0.001
"""A kernel ran in less than this share of the time: a context alone shows up to half of it."""


class _Seldom:
    """When costly readings are due: so that they take at most `share` of a core."""

    def __init__(self, share: float) -> None:
        self._share, self._due_s = share, 0.0

    def read(self, readings: Iterable[Callable[[], None]], now_s: float, *, last: bool) -> None:
        """The last ones are always due."""
        if last or now_s >= self._due_s:
            began_s = time.thread_time()
            for read in readings:
                read()
            self._due_s = now_s + (time.thread_time() - began_s) / self._share


class _Totals(dict[str, Any]):
    """By name, what was counted; of what never was, nothing."""

    def count(self, name: str, amount: float) -> None:
        self[name] = self.get(name, 0) + amount

    def grow(self, name: str, amount: float) -> None:
        self[name] = max(self.get(name, 0), amount)

    @property
    def rounded(self) -> dict[str, Any]:
        return {
            name: round(value, 2) if isinstance(value, float) else value
            for name, value in self.items()
        }


class _OneGpu:
    """The sums of one GPU, as `GpuSums` has them."""

    def __init__(self, gpu: NvmlGpu) -> None:
        self._gpu, self._means = gpu, gpu.means()
        self._energy_mj = gpu.ask("TotalEnergyConsumption")
        self.sums = _Totals({"name": gpu.name[:80]} if gpu.name else {})
        self._passed_s = 0.0
        """Since the means were read; with what is known of it by moments:"""
        self._seen_s, self._busy_s = 0.0, 0.0

    def add(self, reading: Mapping[str, Any], passed_s: float, known_s: float) -> None:
        """Count what has passed; a reading of the moment stands for `known_s` of it."""
        self._passed_s += passed_s
        if (used := reading.get("memory_used_bytes")) is not None:
            self.sums.grow("memory_peak_bytes", used)
            self.sums["memory_total_bytes"] = reading["memory_total_bytes"]
        if (percent := reading.get("utilization_percent")) is not None:
            self._seen_s += known_s
            self._busy_s += known_s * min(100, percent) / 100
            self.sums.count("idle_s", known_s)
            if percent:
                self.sums["idle_s"] = 0.0

    def add_means(self) -> None:
        """Count busy seconds, by means where they are known."""
        if self._means is not None and (mean := self._means.read()) is not None:
            busy, active = mean
            self._seen_s, self._busy_s = self._passed_s, busy * self._passed_s
            self.sums.count("active_s", active * self._passed_s)
            if busy > _IDLE:
                self.sums["idle_s"] = 0.0
        if self._seen_s:
            self.sums.count("observed_s", self._seen_s)
            self.sums.count("busy_s", self._busy_s)
        self._passed_s = self._seen_s = self._busy_s = 0.0

    def add_energy(self) -> None:
        before, now = self._energy_mj, self._gpu.ask("TotalEnergyConsumption")
        self._energy_mj = now
        if before is not None and now is not None and now >= before:
            self.sums.count("energy_j", (now - before) / 1000)


class RunningSums:
    """Of this node, since now."""

    def __init__(self, gpus: Sequence[NvmlGpu], roots: machine.Roots = machine.HERE) -> None:
        self._gpus = [_OneGpu(gpu) for gpu in gpus]
        self._host, self._work = machine.HostEnergy(roots), machine.JobWork(roots)
        self._means, self._energy, self._processes = map(_Seldom, (0.001, 0.0005, 0.0003))
        self._began_s = self._at_s = time.monotonic()
        self._sums = _Totals(since_s=time.time(), cores=machine.cores())
        self._cpu_s, self._resident = self._work.sample()
        self._launch_loading_s = 0.0

    def sample(self, line: Mapping[str, Any], interval_s: float, *, last: bool) -> dict[str, Any]:
        """The sums now, as `Sums`. line: the rest of this sample, which was to come `interval_s`
        after the one before; last: whether none follows."""
        now_s, sums = time.monotonic(), self._sums
        passed_s, self._at_s = now_s - self._at_s, now_s
        for gpu, reading in zip(self._gpus, line.get("gpus", []), strict=True):
            gpu.add(reading, passed_s, min(passed_s, _GAP * interval_s))
        self._means.read([gpu.add_means for gpu in self._gpus], now_s, last=last)
        self._energy.read([gpu.add_energy for gpu in self._gpus], now_s, last=last)
        self._processes.read([self._add_work], now_s, last=last)
        for joules in self._host.since_last(passed_s):
            sums.count("host_energy_j", joules)
        # Each launch begins at 0.
        if (before_s := self._launch_loading_s) > (loading_s := line.get("loading_s", 0.0)):
            before_s = 0.0
        self._launch_loading_s = loading_s
        if "loading_s" in line:
            sums.count("loading_s", loading_s - before_s)
        cgroup = line.get("cgroup", {})
        used = cgroup.get("memory_bytes", line["memory_used_bytes"])
        # Without the job's cgroup; what processes share is in the node's use once.
        sums.grow(
            "memory_peak_bytes", used if self._resident is None else min(used, self._resident)
        )
        sums["memory_total_bytes"] = cgroup.get("memory_max_bytes", line["memory_total_bytes"])
        sums["observed_s"] = now_s - self._began_s
        return {**sums.rounded, "gpus": [gpu.sums.rounded for gpu in self._gpus]}

    def _add_work(self) -> None:
        before, (self._cpu_s, self._resident) = self._cpu_s, self._work.sample()
        self._sums.count("cpu_s", max(0.0, self._cpu_s - before))
