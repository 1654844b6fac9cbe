"""What NVIDIA's management library (NVML) says about the GPUs allocated to this job.

Read-only: no call changes a GPU or creates a CUDA context on it. A value that a GPU, the driver or
a missing package does not provide is None; not every GPU supports every query.
Source: NVML API reference; `pynvml` is the package nvidia-ml-py, the extra `fsdpkit[gpu]`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from fsdpkit.runs.node_report import GpuState

Answer = TypeVar("Answer")

_MIB = 2**20


def handles(environ: Mapping[str, str]) -> list[Any]:
    """NVML's handles of the GPUs in CUDA_VISIBLE_DEVICES, of all where it is not set; [] without
    the package, a driver or a GPU.

    Numbers are taken as NVML's own: Slurm counts in the same order, that of the PCI bus.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return [
                pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())
            ]
        words = [word.strip() for word in visible.split(",")]
        return [_handle(word) for word in words if word not in ("", "NoDevFiles")]
    except Exception:  # ImportError, NVMLError, or whatever a broken driver raises
        return []


def _handle(word: str) -> Any:
    import pynvml

    if word.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(word))
    return pynvml.nvmlDeviceGetHandleByUUID(word)  # GPU-… or MIG-…


def gpu_states(environ: Mapping[str, str]) -> list[GpuState]:
    """One reading of each GPU of this job, in the order of CUDA_VISIBLE_DEVICES."""
    return [_state(index, handle) for index, handle in enumerate(handles(environ))]


def capabilities(environ: Mapping[str, str]) -> list[tuple[str | None, tuple[int, int]]]:
    """Name and compute capability of each GPU of this job that answers."""
    found = []
    for handle in handles(environ):
        name, capability = _name(handle), _capability(handle)
        if capability is not None:
            found.append((name, capability))
    return found


def _name(handle: Any) -> str | None:
    import pynvml

    return _asked(lambda: _text(pynvml.nvmlDeviceGetName(handle)))


def _capability(handle: Any) -> tuple[int, int] | None:
    import pynvml

    found = _asked(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    return found and (int(found[0]), int(found[1]))


def _state(index: int, handle: Any) -> GpuState:
    import pynvml

    memory = _memory(handle)
    rows = _asked(lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
    return GpuState(
        index=index,
        name=_name(handle),
        memory_total_mib=memory and memory.total // _MIB,
        memory_used_mib=memory and memory.used // _MIB,
        clock_mhz=_asked(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        clock_max_mhz=_asked(
            lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
        ),
        temperature_c=_asked(
            lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        ),
        uncorrected_ecc_errors=_asked(
            lambda: pynvml.nvmlDeviceGetTotalEccErrors(
                handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            )
        ),
        remap_pending=None if rows is None else bool(rows[2]),
        remap_failed=None if rows is None else bool(rows[3]),
        processes=_processes(handle),
    )


def _memory(handle: Any) -> Any:
    """NVML's second version, whose `used` excludes memory reserved by the driver; else the
    first."""
    import pynvml

    with contextlib.suppress(Exception):  # a package or driver older than the second version
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return _asked(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))


def _processes(handle: Any) -> list[str]:
    """Each process with a CUDA context here, as `1234 python (512 MiB)`."""
    import pynvml

    return [
        f"{process.pid} {_process_name(process.pid)} ({_mib(process.usedGpuMemory)})"
        for process in _asked(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
    ]


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


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _asked(question: Callable[[], Answer]) -> Answer | None:
    import pynvml

    try:
        return question()
    except (pynvml.NVMLError, AttributeError):  # not supported by this GPU, or by this package
        return None


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
        self._handles = handles(environ)
        self._events = [_events_of(handle) for handle in self._handles]

    def sample(self) -> list[dict[str, Any]]:
        """One entry a GPU, in the order of CUDA_VISIBLE_DEVICES, without what it does not answer.

        `xids`: the XID errors since the sample before.
        """
        return [
            {name: value for name, value in _readings(handle, events).items() if value is not None}
            for handle, events in zip(self._handles, self._events, strict=True)
        ]


def _readings(handle: Any, events: Any) -> dict[str, Any]:
    import pynvml

    rates = _asked(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    memory = _asked(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    power_mw = _asked(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
    reasons = _asked(lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    if reasons is None:  # its name before driver 535
        reasons = _asked(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    throttled = [name for bit, name in _THROTTLING.items() if (reasons or 0) & bit]
    return {
        "utilization_percent": rates and rates.gpu,
        "memory_used_bytes": memory and memory.used,
        "memory_total_bytes": memory and memory.total,
        "temperature_c": _asked(
            lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        ),
        "power_w": None if power_mw is None else power_mw / 1000,
        "clock_mhz": _asked(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        "throttled": throttled or None,
        "ecc_corrected": _ecc_errors(handle, "CORRECTED"),
        "ecc_uncorrected": _ecc_errors(handle, "UNCORRECTED"),
        "xids": (_pending(events) or None) if events is not None else None,
    }


def _ecc_errors(handle: Any, kind: str) -> int | None:
    """Since the driver was loaded."""
    import pynvml

    return _asked(
        lambda: int(
            pynvml.nvmlDeviceGetTotalEccErrors(
                handle,
                getattr(pynvml, f"NVML_MEMORY_ERROR_TYPE_{kind}"),
                pynvml.NVML_VOLATILE_ECC,
            )
        )
    )


@contextlib.contextmanager
def xid_errors(environ: Mapping[str, str]) -> Iterator[list[int]]:
    """A list that after the block contains the XID errors that occurred during it.

    NVML reports an XID only as it happens; earlier ones are in the kernel's log, which jobs may not
    read.
    """
    found: list[int] = []
    watched = [_events_of(handle) for handle in handles(environ)]
    try:
        yield found
    finally:
        for events in watched:
            if events is not None:
                found += _pending(events)
                _free(events)


def _events_of(handle: Any) -> Any:
    """An event set that collects the GPU's critical XIDs; None where it has none."""
    import pynvml

    with contextlib.suppress(pynvml.NVMLError, AttributeError):
        events = pynvml.nvmlEventSetCreate()
        try:
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        except pynvml.NVMLError:
            _free(events)
            return None
        return events
    return None


def _pending(events: Any) -> list[int]:
    """Those that have come; does not wait."""
    import pynvml

    found: list[int] = []
    with contextlib.suppress(pynvml.NVMLError):  # timed out: there are no more
        while len(found) < _MOST_XIDS:
            found.append(int(pynvml.nvmlEventSetWait_v2(events, 0).eventData))
    return found


def _free(events: Any) -> None:
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlEventSetFree(events)


_MOST_XIDS = 64
"""At once: a GPU that reports without end has been heard by then."""
