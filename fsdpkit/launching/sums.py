"""What this node has used since its samples began: running sums, in each line of samples.

The newest line is then a node's whole account, a node that is killed loses one interval, and two
lines' difference is what was used between them (runs/samples.py: `Sums`).

Where NVML has means over time (GPM), busy and active time is theirs, however long ago the last
reading was. Elsewhere it is the utilization of the moment that counts, and for at most three
intervals: what a node did while it was suspended, or its sampler stopped, is not observed. Counters
that go backwards lose what they counted in between.

Each costly reading has a share of a core, and waits until its last one fits into that. On an H100
the energy counter takes 3.9 ms, GPM 1 ms and the rest of a sample 0.06 ms a GPU, and 0.3 ms a node:
with eight GPUs and a sample every 10 s, less than 0.2 % of a core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fsdpkit.launching import machine
from fsdpkit.launching.nvml import NvmlGpu

_GAP = 3
_IDLE = 0.001
"""A kernel ran in less than this share of the time: a context alone shows up to half of it."""


class _Seldom:
    """When a costly reading is due: so that it takes at most `share` of a core."""

    def __init__(self, share: float) -> None:
        self._share, self._due_s = share, 0.0

    def read(self, read: Callable[[], None], now_s: float, *, last: bool) -> None:
        """The last one is always due."""
        if last or now_s >= self._due_s:
            began_s = time.thread_time()
            read()
            self._due_s = now_s + (time.thread_time() - began_s) / self._share


class _OneGpu:
    """The sums of one GPU, as `GpuSums` has them."""

    def __init__(self, gpu: NvmlGpu) -> None:
        self._gpu, self._means, self._energy_mj = gpu, gpu.means(), gpu.energy_mj
        self._name = (gpu.name or "")[:80] or None
        self._observed_s, self._peak = 0.0, 0
        self._busy_s: float | None = None
        self._active_s: float | None = None
        self._energy_j: float | None = None
        self._idle_s: float | None = None
        self._open = (0.0, 0.0, 0.0)
        """Since the means were read: seconds, of them observed, and busy by what was observed."""

    def add(self, reading: Mapping[str, Any], passed_s: float, known_s: float) -> None:
        """Count what has passed; a reading of the moment stands for `known_s` of it."""
        self._peak = max(self._peak, reading.get("memory_used_bytes", 0))
        percent = reading.get("utilization_percent")
        if percent is not None:
            seen, busy = known_s, known_s * min(100, percent) / 100
            self._idle_s = 0.0 if percent else (self._idle_s or 0.0) + known_s
        else:
            seen = busy = 0.0
        open_s, open_seen_s, open_busy_s = self._open
        self._open = (open_s + passed_s, open_seen_s + seen, open_busy_s + busy)

    def add_means(self) -> None:
        """Close what is open, by means where they are known."""
        passed_s, seen_s, busy_s = self._open
        self._open = (0.0, 0.0, 0.0)
        if self._means is not None and (mean := self._means.read()) is not None:
            busy, active = mean
            seen_s, busy_s = passed_s, busy * passed_s
            self._active_s = (self._active_s or 0.0) + active * passed_s
            if busy > _IDLE:
                self._idle_s = 0.0
        if seen_s:
            self._observed_s += seen_s
            self._busy_s = (self._busy_s or 0.0) + busy_s

    def add_energy(self) -> None:
        before, self._energy_mj = self._energy_mj, self._gpu.energy_mj
        if before is not None and self._energy_mj is not None and self._energy_mj >= before:
            self._energy_j = (self._energy_j or 0.0) + (self._energy_mj - before) / 1000

    def known(self, reading: Mapping[str, Any]) -> dict[str, Any]:
        return _known(
            name=self._name,
            observed_s=self._observed_s,
            busy_s=self._busy_s,
            active_s=self._active_s,
            energy_j=self._energy_j,
            memory_peak_bytes=self._peak or None,
            memory_total_bytes=reading.get("memory_total_bytes"),
            idle_s=self._idle_s,
        )


def _known(**values: Any) -> dict[str, Any]:
    """Those that are, with as many digits as anybody needs."""
    return {
        name: round(value, 2) if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None
    }


class RunningSums:
    """Of this node, since now."""

    def __init__(self, gpus: Sequence[NvmlGpu], roots: machine.Roots = machine.HERE) -> None:
        self._gpus = [_OneGpu(gpu) for gpu in gpus]
        self._host, self._work = machine.HostEnergy(roots), machine.JobWork(roots)
        self._means, self._energy, self._processes = map(_Seldom, (0.001, 0.0005, 0.0003))
        self._since_s, self._began_s = time.time(), time.monotonic()
        self._at_s = self._began_s
        self._cpu_before, self._resident = self._work.sample()
        self._cpu_s, self._peak = 0.0, 0

    def sample(self, line: Mapping[str, Any], interval_s: float, *, last: bool) -> dict[str, Any]:
        """The sums now, as `Sums`. line: the rest of this sample, which was to come `interval_s`
        after the one before; last: whether none follows."""
        now_s = time.monotonic()
        passed_s, self._at_s = now_s - self._at_s, now_s
        readings = line.get("gpus", [])
        for gpu, reading in zip(self._gpus, readings, strict=True):
            gpu.add(reading, passed_s, min(passed_s, _GAP * interval_s))
        self._means.read(self._add_means, now_s, last=last)
        self._energy.read(self._add_energy, now_s, last=last)
        self._processes.read(self._add_work, now_s, last=last)
        self._host.add()
        cgroup = line.get("cgroup", {})
        here = cgroup.get("memory_bytes", line["memory_used_bytes"])
        if self._resident is not None:  # without a cgroup: what is shared is in the node's once
            here = min(here, self._resident)
        self._peak = max(self._peak, here)
        return _known(
            since_s=self._since_s,
            observed_s=now_s - self._began_s,
            cpu_s=None if self._cpu_before is None else self._cpu_s,
            cores=machine.cores(),
            memory_peak_bytes=self._peak,
            memory_total_bytes=cgroup.get("memory_max_bytes", line["memory_total_bytes"]),
            host_energy_j=self._host.joules,
            gpus=[gpu.known(reading) for gpu, reading in zip(self._gpus, readings, strict=True)],
        )

    def _add_means(self) -> None:
        for gpu in self._gpus:
            gpu.add_means()

    def _add_energy(self) -> None:
        for gpu in self._gpus:
            gpu.add_energy()

    def _add_work(self) -> None:
        before, (self._cpu_before, self._resident) = self._cpu_before, self._work.sample()
        if before is not None and self._cpu_before is not None:
            self._cpu_s += max(0.0, self._cpu_before - before)
