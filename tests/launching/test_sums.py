"""Running sums against an account kept by hand: a clock that is moved, a made /proc and /sys, and a
stand-in for NVML whose counters are known."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fsdpkit.launching import nvml, sums
from fsdpkit.launching.machine import Roots
from fsdpkit.runs.samples import GpuSums, Sums, newest_sample
from tests.launching.test_preflight_gpus import Gpu, fake_pynvml
from tests.launching.test_sampling import JOB, write

GIB = 2**30


@dataclass
class Known(Gpu):
    """What the GPU says next; None: that it is not supported."""

    percent: int | None = 0
    energy_mj: int | None = 5_000_000
    graphics: float | None = None
    """Percent, since the GPM sample before; None: without GPM."""
    sm: float = 0.0
    allowed: bool = True


class Clock:
    """In place of the module `time`."""

    def __init__(self) -> None:
        self.now_s = self.cpu_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return 1.7e9 + self.now_s

    def thread_time(self) -> float:
        return self.cpu_s


class Node:
    """A node with these GPUs, and its sampler."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, roots: Roots, *gpus: Known) -> None:
        self.clock, self.line = Clock(), {"memory_used_bytes": GIB, "memory_total_bytes": 8 * GIB}
        monkeypatch.setattr(sums, "time", self.clock)
        module = with_counters(self.clock, gpus)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        self.watch = nvml.GpuWatch({})
        self.sums = sums.RunningSums(self.watch.gpus, roots)

    def after(self, passed_s: float, *, last: bool = False, **more: Any) -> Sums:
        """What the line says that comes `passed_s` later, where samples come every 10 s."""
        self.clock.now_s += passed_s
        line = {**self.line, "gpus": self.watch.sample(), **more}
        return msgspec.convert(self.sums.sample(line, 10, last=last), Sums)

    def gpu_after(self, passed_s: float, **more: Any) -> GpuSums:
        return self.after(passed_s, **more).gpus[0]


def with_counters(clock: Clock, gpus: tuple[Known, ...]) -> Any:
    module = fake_pynvml(*gpus)
    error = module.NVMLError

    def known(handle: int, value: Any, cost_s: float = 0.0) -> Any:
        clock.cpu_s += cost_s
        if value is None:
            raise error("Not Supported")
        return value

    def sample_get(handle: int, sample: dict[str, int]) -> None:
        if not gpus[handle].allowed:
            raise error("Insufficient Permissions")
        sample["gpu"] = handle
        sample["at"] = int(clock.now_s)

    def metrics_get(asked: Any) -> None:
        clock.cpu_s += 0.001
        assert asked.sample1["gpu"] == asked.sample2["gpu"]
        assert asked.sample1["at"] < asked.sample2["at"]
        gpu = gpus[asked.sample2["gpu"]]
        for metric in asked.metrics:
            metric.value = {1: gpu.graphics, 2: gpu.sm}[metric.metricId]

    vars(module).update(
        nvmlDeviceGetUtilizationRates=lambda handle: known(
            handle,
            None if gpus[handle].percent is None else SimpleNamespace(gpu=gpus[handle].percent),
        ),
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: known(
            handle, gpus[handle].energy_mj, 0.0039
        ),
        nvmlGpmQueryDeviceSupport=lambda handle: SimpleNamespace(
            isSupportedDevice=int(gpus[handle].graphics is not None)
        ),
        nvmlGpmSampleAlloc=dict,
        nvmlGpmSampleGet=sample_get,
        nvmlGpmMetricsGet=metrics_get,
        c_nvmlGpmMetricsGet_t=lambda: SimpleNamespace(
            metrics=[SimpleNamespace(nvmlReturn=0) for _ in range(2)]
        ),
        NVML_GPM_METRICS_GET_VERSION=1,
        NVML_GPM_METRIC_GRAPHICS_UTIL=1,
        NVML_GPM_METRIC_SM_UTIL=2,
    )
    return module


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    names = ("proc", "cgroup", "infiniband", "powercap")
    return Roots(*(tmp_path / name for name in names))


def test_means_over_the_interval_count_whatever_the_moment_shows(
    monkeypatch: pytest.MonkeyPatch, roots: Roots
) -> None:
    gpu = Known(percent=100, graphics=25.0, sm=5.0)
    node = Node(monkeypatch, roots, gpu)
    assert node.gpu_after(10) == GpuSums(
        name="NVIDIA H100",
        observed_s=10,
        busy_s=2.5,
        active_s=0.5,
        energy_j=0,
        memory_peak_bytes=4 << 20,
        memory_total_bytes=80 * GIB,
        idle_s=0,
    )
    gpu.percent, gpu.graphics, gpu.sm = 0, 80.0, 40.0
    found = node.gpu_after(3600)  # suspended: the counters know of that, too
    assert (found.observed_s, found.busy_s, found.active_s) == (3610, 2882.5, 1440.5)
    assert found.idle_s == 0
    gpu.graphics = gpu.sm = 0.05  # a context that does nothing
    assert [node.gpu_after(10).idle_s for _ in range(3)] == [10, 20, 30]


def test_the_moment_stands_for_three_intervals_at_most(
    monkeypatch: pytest.MonkeyPatch, roots: Roots
) -> None:
    gpu = Known(percent=50)
    node = Node(monkeypatch, roots, gpu)
    for expected in ((10, 5), (20, 10)):
        found = node.gpu_after(10)
        assert (found.observed_s, found.busy_s, found.active_s) == (*expected, None)
    found = node.gpu_after(7200)
    assert (found.observed_s, found.busy_s) == (50, 25), "nobody saw what was in between"
    gpu.percent = 0
    assert [node.gpu_after(passed_s).idle_s for passed_s in (10, 7200)] == [10, 40]
    assert node.after(0, last=True).observed_s == 14430


def test_a_driver_that_refuses_means_now_and_then_is_taken_by_the_moment(
    monkeypatch: pytest.MonkeyPatch, roots: Roots
) -> None:
    gpu = Known(percent=100, graphics=50.0)
    node = Node(monkeypatch, roots, gpu)
    assert node.gpu_after(10).busy_s == 5
    gpu.allowed = False
    assert node.gpu_after(10).busy_s == 15
    gpu.allowed = True
    assert node.gpu_after(10).busy_s == 25, "the interval that began without a reading"
    assert node.gpu_after(10).busy_s == 30
    for place, wrong in enumerate((float("nan"), -1.0, 1e9)):
        gpu.graphics = wrong
        assert node.gpu_after(10).busy_s == 40 + 10 * place
    monkeypatch.delattr(sys.modules["pynvml"], "nvmlGpmQueryDeviceSupport")
    assert nvml.GpuWatch({}).gpus[0].means() is None, "an older package"


def test_energy_is_what_the_counter_grew_by_and_never_less_than_nothing(
    monkeypatch: pytest.MonkeyPatch, roots: Roots
) -> None:
    gpu = Known()
    node = Node(monkeypatch, roots, gpu)
    seen = []
    for counter in (5_000_000, 5_070_000, 1_000, 31_000, None, 40_000, 41_000):
        gpu.energy_mj = counter
        seen.append(node.gpu_after(60).energy_j)
    # The driver was loaded again; a reading failed: what was in between is lost.
    assert seen == [0, 70, 70, 100, 100, 100, 101]


def test_costly_readings_wait_until_they_take_their_share_of_a_core(
    monkeypatch: pytest.MonkeyPatch, roots: Roots
) -> None:
    """Eight GPUs as the H100 was measured: 8 ms of means, 31 ms of energy."""
    gpus = [Known(graphics=50.0, sm=10.0, percent=100) for _ in range(8)]
    node = Node(monkeypatch, roots, *gpus)
    began_s = node.clock.cpu_s
    for passed in range(360):
        for gpu in gpus:
            gpu.energy_mj = 5_000_000 + passed * 7_000
        found = node.after(10)
    share = (node.clock.cpu_s - began_s) / 3600
    assert 0.0005 < share < 0.0016, "of a core; the rest of a sample takes less than 0.0001"
    assert found.gpus[0].energy_j is not None
    last = node.after(10, last=True)
    assert [gpu.busy_s for gpu in last.gpus] == [3610 / 2] * 8
    assert last.gpus[7].energy_j == 359 * 7


def test_a_mig_device_says_only_its_memory(monkeypatch: pytest.MonkeyPatch, roots: Roots) -> None:
    node = Node(monkeypatch, roots, Known(percent=None, energy_mj=None))
    node.after(10)
    assert node.gpu_after(10) == GpuSums(
        name="NVIDIA H100", memory_peak_bytes=4 << 20, memory_total_bytes=80 * GIB
    )


def test_peaks_remain(monkeypatch: pytest.MonkeyPatch, roots: Roots) -> None:
    gpu = Known(used_mib=700)
    node = Node(monkeypatch, roots, gpu)
    cgroup = {"memory_bytes": 3 * GIB, "memory_max_bytes": 4 * GIB}
    monkeypatch.setattr(node.sums, "_resident", None)  # as with the job's cgroup
    node.sums._work.sample = lambda: (1.0, None)  # type: ignore[method-assign]
    assert node.after(10, cgroup=cgroup).memory_peak_bytes == 3 * GIB
    gpu.used_mib = 3
    found = node.after(10, cgroup={**cgroup, "memory_bytes": GIB})
    assert (found.memory_peak_bytes, found.memory_total_bytes) == (3 * GIB, 4 * GIB)
    assert found.gpus[0].memory_peak_bytes == 700 << 20
    assert found.cores == len(os.sched_getaffinity(0))


def test_core_seconds_are_those_of_the_cgroup_that_slurm_made(
    monkeypatch: pytest.MonkeyPatch, roots: Roots
) -> None:
    write(roots.proc / "self" / "cgroup", f"0::/{JOB}")
    file = roots.cgroup / "system.slice/slurmstepd.scope/job_17/cpu.stat"
    write(file, "user_usec 1\nusage_usec 500000000")
    node = Node(monkeypatch, roots)
    write(file, "user_usec 1\nusage_usec 580000000")
    assert node.after(10).cpu_s == 80
    write(file, "user_usec 1\nusage_usec 3")
    assert node.after(10).cpu_s == 80


def test_without_one_they_are_those_of_the_agent_s_descendants_dead_ones_included(
    monkeypatch: pytest.MonkeyPatch, roots: Roots
) -> None:
    write(roots.proc / "self" / "cgroup", "0::/user.slice/session-3.scope")
    write(roots.cgroup / "user.slice/session-3.scope/cpu.stat", "usage_usec 77000000000")
    node = Node(monkeypatch, roots)
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    found = node.after(10, last=True)
    assert 0.4 < (found.cpu_s or 0) < 30
    assert 0 < (found.memory_peak_bytes or 0) <= GIB, "no more than the node's"


def test_rapl_counters_wrap_once_and_what_may_have_wrapped_twice_is_left_out(
    monkeypatch: pytest.MonkeyPatch, roots: Roots
) -> None:
    zones = {"intel-rapl:0": "package-0", "intel-rapl:0:1": "dram", "intel-rapl:0:0": "core"}
    for zone, name in zones.items():
        write(roots.powercap / zone / "name", name)
        write(roots.powercap / zone / "energy_uj", 60_000_000_000)
        write(roots.powercap / zone / "max_energy_range_uj", 65_000_000_000)
    node = Node(monkeypatch, roots)
    write(roots.powercap / "intel-rapl:0" / "energy_uj", 1_000_000_000)
    assert node.after(10).host_energy_j == 6000
    write(roots.powercap / "intel-rapl:0:1" / "energy_uj", 60_500_000_000)
    assert node.after(10).host_energy_j == 6500
    write(roots.powercap / "intel-rapl:0" / "energy_uj", 2_000_000_000)
    assert node.after(100).host_energy_j == 6500
    (roots.powercap / "intel-rapl:0:1" / "energy_uj").unlink()
    write(roots.powercap / "intel-rapl:0" / "energy_uj", 2_100_000_000)
    assert node.after(10).host_energy_j == 6600


def test_waits_for_data_add_up_over_launches(monkeypatch: pytest.MonkeyPatch, roots: Roots) -> None:
    node = Node(monkeypatch, roots)
    lines: list[dict[str, Any]] = [{}, *({"loading_s": each} for each in (3.0, 5.0, 1.0)), {}]
    assert [node.after(10, **line).loading_s for line in lines] == [None, 3, 5, 6, 6]


def test_the_newest_line_is_found_past_what_is_cut_short_or_hostile(tmp_path: Path) -> None:
    path = tmp_path / "node-0.samples.jsonl"
    assert newest_sample(path) is None
    good = b'{"time_s":7,"sums":{"since_s":1,"observed_s":6,"gpus":[{"busy_s":5}]}}\n'
    hostile = (
        b'{"time_s":8,"sums":{"since_s":1,"observed_s":-6}}',
        b'{"time_s":8,"sums":{"since_s":1,"observed_s":1e999}}',
        b'{"time_s":8,"sums":{"since_s":1,"observed_s":6,"gpus":[{"energy_j":1e300}]}}',
        b'{"time_s":8,"sums":{"since_s":1,"observed_s":6,"gpus":[{"name":"%s"}]}}' % (b"x" * 99),
        b'{"time_s":8,"sums":{"since_s":1,"observed_s":6,"gpus":[%s{}]}}' % (b"{}," * 1024),
        b'{"time_s":8,"loading_s":-1}',
        b'{"time_s":8,',
    )
    path.write_bytes(b"x" * 200_000 + b"\n" + good + b"\n".join(hostile))
    found = newest_sample(path)
    assert found is not None
    assert (found.time_s, found.sums and found.sums.gpus[0].busy_s) == (7, 5)
