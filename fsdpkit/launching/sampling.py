"""Samples of the machine while ranks train: CPU, memory, our processes, network, GPUs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from fsdpkit.runs.events import JsonLines

_SAMPLES_AN_AGE = 360  # every 10 s in the first hour, every 100 s after ten


@contextlib.contextmanager
def sampling(path: Path, interval_s: float) -> Iterator[None]:
    """Write a sample to `path` now and every `interval_s` seconds (less often after 360 of
    them) until the block ends.

    A sample that cannot be taken or written is left out: watching must never end a training.
    """
    stop = threading.Event()
    started = time.monotonic()

    def watch() -> None:
        with contextlib.suppress(OSError):
            sampler, lines = Sampler(), JsonLines(path)
            while True:
                with contextlib.suppress(psutil.Error, OSError):
                    lines.write(**sampler.sample())
                # A week of samples shall not weigh more than a few hours': they thin out.
                elapsed_s = time.monotonic() - started
                if stop.wait(max(interval_s, elapsed_s / _SAMPLES_AN_AGE)):
                    break
            lines.close()

    thread = threading.Thread(target=watch, name="fsdpkit-sampling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5)


class Sampler:
    """Takes samples of this node and of the process tree below this process."""

    def __init__(self) -> None:
        self._me = psutil.Process()
        self._gpus = _nvml_handles()
        psutil.cpu_percent()  # the first call only sets the mark that the next one measures from

    def sample(self) -> dict[str, Any]:
        """CPU in percent of all cores, memory and network in bytes, GPUs one entry each.

        Memory of our processes is proportional (PSS): forked ranks share most of their pages.
        """
        memory = psutil.virtual_memory()
        network = psutil.net_io_counters()
        processes = [self._me, *self._me.children(recursive=True)]
        pss_bytes = 0
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                pss_bytes += process.memory_full_info().pss
        sample: dict[str, Any] = {
            "cpu_percent": psutil.cpu_percent(),
            "load_1min": psutil.getloadavg()[0],
            "memory_used_bytes": memory.total - memory.available,
            "memory_total_bytes": memory.total,
            "processes": len(processes),
            "processes_pss_bytes": pss_bytes,
        }
        if network is not None:
            sample["network_sent_bytes"] = network.bytes_sent
            sample["network_received_bytes"] = network.bytes_recv
        if self._gpus:
            sample["gpus"] = [_gpu_sample(handle) for handle in self._gpus]
        return sample


def _nvml_handles() -> list[Any]:
    try:
        import pynvml

        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    except Exception:  # the extra is not installed, or there is no driver
        return []


def _gpu_sample(handle: Any) -> dict[str, Any]:
    import pynvml

    readings: dict[str, Any] = {}
    # Not every GPU answers every question; what it does not answer is left out.
    with contextlib.suppress(pynvml.NVMLError):
        readings["utilization_percent"] = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
    with contextlib.suppress(pynvml.NVMLError):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        readings |= {"memory_used_bytes": memory.used, "memory_total_bytes": memory.total}
    with contextlib.suppress(pynvml.NVMLError):
        readings["temperature_c"] = pynvml.nvmlDeviceGetTemperature(
            handle, pynvml.NVML_TEMPERATURE_GPU
        )
    with contextlib.suppress(pynvml.NVMLError):
        readings["power_w"] = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
    return readings
