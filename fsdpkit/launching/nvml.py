"""What NVIDIA's management library (NVML) says about the GPUs allocated to this job.

Read-only: no call changes a GPU or creates a CUDA context on it. A value that a GPU, the driver or
a missing package does not provide is None; not every GPU supports every query.
Source: NVML API reference; `pynvml` is the package nvidia-ml-py, the extra `fsdpkit[gpu]`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from fsdpkit.runs.node_report import GpuState

_MIB = 2**20
_MOST_XIDS = 64
"""At once: a GPU that reports without end has been heard by then."""
_MOST_PERCENT = 101
"""Slightly more than 100 is rounding; anything else is no measurement, and neither is NaN."""


class NvmlGpu:
    """A GPU of this job, and NVML to ask about it."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def ask(self, what: str, *words: Any, **named: Any) -> Any:
        """The answer of `nvmlDeviceGet…`; words: NVML's constants' names. None: not supported."""
        with contextlib.suppress(self._nvml.NVMLError, AttributeError):
            known = [getattr(self._nvml, word) for word in words]
            return getattr(self._nvml, f"nvmlDeviceGet{what}")(self._handle, *known, **named)
        return None

    @property
    def name(self) -> str | None:
        found = self.ask("Name")
        return found.decode() if isinstance(found, bytes) else found

    @property
    def memory(self) -> Any:
        """By NVML's second version, whose `used` excludes memory reserved by the driver, where the
        package and the driver have it."""
        with contextlib.suppress(Exception):
            version = self._nvml.nvmlMemory_v2
            return self._nvml.nvmlDeviceGetMemoryInfo(self._handle, version=version)
        return self.ask("MemoryInfo")

    @property
    def ecc_errors(self) -> int | None:
        """That could not be corrected, since the driver was loaded."""
        words = "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC"
        found = self.ask("TotalEccErrors", *words)
        return None if found is None else int(found)

    @property
    def processes(self) -> list[str]:
        """Each process with a CUDA context here, as `1234 python (512 MiB)`."""
        return [
            f"{process.pid} {_process_name(process.pid)} ({_mib(process.usedGpuMemory)})"
            for process in self.ask("ComputeRunningProcesses") or []
        ]

    def events(self) -> Any:
        """An event set that collects its critical XIDs; None where it has none."""
        with contextlib.suppress(self._nvml.NVMLError, AttributeError):
            events = self._nvml.nvmlEventSetCreate()
            try:
                kind = self._nvml.nvmlEventTypeXidCriticalError
                self._nvml.nvmlDeviceRegisterEvents(self._handle, kind, events)
            except self._nvml.NVMLError:
                self.free(events)
                return None
            return events
        return None

    def means(self) -> Means | None:
        """None before Hopper, for a MIG device, and for drivers that do not allow it."""
        with contextlib.suppress(self._nvml.NVMLError, AttributeError):
            if self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                return Means(self._nvml, self._handle)
        return None

    def pending(self, events: Any) -> list[int]:
        """XIDs that have come; does not wait."""
        found: list[int] = []
        with contextlib.suppress(self._nvml.NVMLError):  # timed out: there are no more
            while events is not None and len(found) < _MOST_XIDS:
                found.append(int(self._nvml.nvmlEventSetWait_v2(events, 0).eventData))
        return found

    def free(self, events: Any) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlEventSetFree(events)


class Means:
    """A GPU's mean utilization between two readings, by NVML's GPU performance monitoring (GPM)."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._before, self._now = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(handle, self._before)
        self._begun = True

    def read(self) -> tuple[float, float] | None:
        """Since the reading before: the share of the time in which a kernel ran, and the mean share
        of multiprocessors that worked. None: unknown, and the next one begins here."""
        nvml, begun, self._begun = self._nvml, self._begun, False
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            nvml.nvmlGpmSampleGet(self._handle, self._now)
            asked = nvml.c_nvmlGpmMetricsGet_t()
            asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 2
            asked.sample1, asked.sample2 = self._before, self._now
            asked.metrics[0].metricId = nvml.NVML_GPM_METRIC_GRAPHICS_UTIL
            asked.metrics[1].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
            self._before, self._now, self._begun = self._now, self._before, True
            if not begun:
                return None
            nvml.nvmlGpmMetricsGet(asked)
            found = [asked.metrics[place] for place in range(2)]
            if all(not one.nvmlReturn and 0 <= one.value <= _MOST_PERCENT for one in found):
                busy, active = (min(1.0, one.value / 100) for one in found)
                return busy, active
        return None


def _gpus(environ: Mapping[str, str]) -> list[NvmlGpu]:
    """Those in CUDA_VISIBLE_DEVICES, all where it is not set; [] without the package, a driver or a
    GPU. Numbers are taken as NVML's own: Slurm counts in the same order, that of the PCI bus."""
    try:
        import pynvml

        pynvml.nvmlInit()
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            words = [str(number) for number in range(pynvml.nvmlDeviceGetCount())]
        else:
            words = [word.strip() for word in visible.split(",")]
        found = [word for word in words if word not in ("", "NoDevFiles")]
        return [NvmlGpu(pynvml, _handle(pynvml, word)) for word in found]
    except Exception:  # ImportError, NVMLError, or whatever a broken driver raises
        return []


def _handle(nvml: Any, word: str) -> Any:
    if word.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(word))
    return nvml.nvmlDeviceGetHandleByUUID(word)  # GPU-… or MIG-…


def gpu_states(environ: Mapping[str, str]) -> list[GpuState]:
    """One reading of each GPU of this job, in the order of CUDA_VISIBLE_DEVICES."""
    return [_state(index, gpu) for index, gpu in enumerate(_gpus(environ))]


def capabilities(environ: Mapping[str, str]) -> list[tuple[str | None, tuple[int, int]]]:
    """Name and compute capability of each GPU of this job that answers."""
    known = [(gpu.name, gpu.ask("CudaComputeCapability")) for gpu in _gpus(environ)]
    return [(name, (int(found[0]), int(found[1]))) for name, found in known if found]


def _state(index: int, gpu: NvmlGpu) -> GpuState:
    memory, rows = gpu.memory, gpu.ask("RemappedRows")
    return GpuState(
        index=index,
        name=gpu.name,
        memory_total_mib=memory and memory.total // _MIB,
        memory_used_mib=memory and memory.used // _MIB,
        clock_mhz=gpu.ask("ClockInfo", "NVML_CLOCK_SM"),
        clock_max_mhz=gpu.ask("MaxClockInfo", "NVML_CLOCK_SM"),
        temperature_c=gpu.ask("Temperature", "NVML_TEMPERATURE_GPU"),
        uncorrected_ecc_errors=gpu.ecc_errors,
        remap_pending=None if rows is None else bool(rows[2]),
        remap_failed=None if rows is None else bool(rows[3]),
        processes=gpu.processes,
    )


def _mib(size_bytes: int | None) -> str:
    return "size unknown" if size_bytes is None else f"{size_bytes // _MIB} MiB"


def _process_name(pid: int) -> str:
    """Its name by /proc; another user's or another container's may be hidden."""
    import psutil

    try:
        name: str = psutil.Process(pid).name()
    except psutil.Error:
        return "(not visible here)"
    return name


_THROTTLING = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
"""Reasons for a lower clock that somebody should know; source: nvmlClocksEventReasons."""


class GpuWatch:
    """Readings of this job's GPUs during the training, and what their driver reports of them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._watched = [(gpu, gpu.events()) for gpu in _gpus(environ)]
        self.gpus = [gpu for gpu, _ in self._watched]

    def sample(self) -> list[dict[str, Any]]:
        """One entry a GPU, in the order of CUDA_VISIBLE_DEVICES, without what it does not answer.
        `xids`: the XID errors since the sample before."""
        return [
            {name: value for name, value in _readings(gpu, events).items() if value is not None}
            for gpu, events in self._watched
        ]


def _readings(gpu: NvmlGpu, events: Any) -> dict[str, Any]:
    rates, memory, power_mw = (
        gpu.ask("UtilizationRates"),
        gpu.ask("MemoryInfo"),
        gpu.ask("PowerUsage"),
    )
    reasons = gpu.ask("CurrentClocksEventReasons")
    if reasons is None:  # its name before driver 535
        reasons = gpu.ask("CurrentClocksThrottleReasons")
    throttled = [name for bit, name in _THROTTLING.items() if (reasons or 0) & bit]
    return {
        "utilization_percent": rates and rates.gpu,
        "memory_used_bytes": memory and memory.used,
        "memory_total_bytes": memory and memory.total,
        "temperature_c": gpu.ask("Temperature", "NVML_TEMPERATURE_GPU"),
        "power_w": None if power_mw is None else power_mw / 1000,
        "clock_mhz": gpu.ask("ClockInfo", "NVML_CLOCK_SM"),
        "throttled": throttled or None,
        "ecc_uncorrected": gpu.ecc_errors,
        "xids": gpu.pending(events) or None,
    }


@contextlib.contextmanager
def xid_errors(environ: Mapping[str, str]) -> Iterator[list[int]]:
    """A list that after the block contains the XID errors that occurred during it. NVML reports an
    XID only as it happens; earlier ones are in the kernel's log, which jobs may not read."""
    found: list[int] = []
    watched = [(gpu, gpu.events()) for gpu in _gpus(environ)]
    try:
        yield found
    finally:
        for gpu, events in watched:
            if events is not None:
                found += gpu.pending(events)
                gpu.free(events)
