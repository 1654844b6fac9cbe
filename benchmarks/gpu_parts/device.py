"""The few calls that differ between a GPU and the CPU of a dry run, behind one name each."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics

from benchmarks.peers.workload import held_bytes, peak_bytes, restart_peak


@dataclass(frozen=True)
class Pace:
    """How a speed is taken: steps that are not timed, then blocks of timed ones."""

    warmup: int
    blocks: int
    steps: int


class Device:
    """A GPU, or the CPU in its place: bytes are allocated ones there, resident ones here."""

    def __init__(self, device: torch.device) -> None:
        self.torch = device
        self.on_gpu = device.type == "cuda"
        self.pace = Pace(3, 3, 4) if self.on_gpu else Pace(1, 1, 1)

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.torch) if self.on_gpu else "CPU"

    @property
    def total_bytes(self) -> int:
        """All of its memory; on a CPU what the machine has."""
        if self.on_gpu:
            return torch.cuda.get_device_properties(self.torch).total_memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.torch)

    def held_bytes(self) -> int:
        return held_bytes(self.torch)

    def restart_peak(self) -> None:
        restart_peak(self.torch)

    def peak_bytes(self) -> int:
        return peak_bytes(self.torch)

    def reserved_bytes(self) -> int:
        """The most that the caching allocator took from the device since `restart_peak`."""
        return torch.cuda.max_memory_reserved(self.torch) if self.on_gpu else self.peak_bytes()

    def counts(self) -> Callable[[], dict[str, int]]:
        """Count from now on what makes steps slow; the call of what is returned ends it."""
        counters.clear()
        clear_compilation_metrics()
        retries = self._alloc_retries()
        return lambda: {
            "graph_breaks": sum(counters["graph_break"].values()),
            "recompiles": sum(bool(each.recompile_reason) for each in get_compilation_metrics()),
            "alloc_retries": self._alloc_retries() - retries,
        }

    def _alloc_retries(self) -> int:
        """How often the caching allocator emptied itself to find memory."""
        if not self.on_gpu:
            return 0
        return int(torch.cuda.memory_stats(self.torch).get("num_alloc_retries", 0))

    def seconds(self, action: Callable[[], object], least_s: float = 0.2) -> float:
        """The median of several calls, each between two waits for the device; on a GPU its own
        clock. The first calls compile and warm up, and do not count."""
        if not self.on_gpu:
            action()
            began = time.perf_counter()
            action()
            return time.perf_counter() - began
        for _ in range(3):
            action()
        event: Any = torch.cuda.Event
        took: list[float] = []
        spent = 0.0
        while len(took) < 5 or (spent < least_s and len(took) < 100):
            start, end = (event(enable_timing=True) for _ in range(2))
            start.record()
            action()
            end.record()
            end.synchronize()
            took.append(start.elapsed_time(end) / 1e3)
            spent += took[-1]
        return statistics.median(took)

    def kernels(self, action: Callable[[], object]) -> tuple[list[tuple[str, float, int]], float]:
        """What ran on the device during `action`, as (name, seconds, calls), the longest first; and
        the seconds that the host took to launch it and wait for its end. On a CPU, operations."""
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self.on_gpu
        self.synchronize()
        with profile(activities=kinds) as recorded:
            began = time.perf_counter()
            action()
            self.synchronize()
            wall_s = time.perf_counter() - began
        found = []
        for each in recorded.key_averages():
            if self.on_gpu:
                on_device = str(each.device_type).endswith("CUDA")
                spent = each.self_device_time_total if on_device else 0.0
            else:
                spent = each.self_cpu_time_total
            if spent > 0:
                found.append((str(each.key), spent / 1e6, int(each.count)))
        return sorted(found, key=lambda each: -each[1]), wall_s

    @contextlib.contextmanager
    def allocations(self) -> Iterator[Callable[[], dict[str, Any]]]:
        """Inside, allocations are recorded; what is yielded takes the allocator's snapshot."""
        if not self.on_gpu:
            yield lambda: {"segments": [], "device_traces": []}
            return
        memory: Any = torch.cuda.memory
        memory._record_memory_history(max_entries=200_000, stacks="python")
        try:
            yield memory._snapshot
        finally:
            memory._record_memory_history(enabled=None)

    def recompile(self) -> None:
        """Forget compiled code: new shapes are then compiled as fixed ones again."""
        torch._dynamo.reset()

    def free(self) -> None:
        """Give back what nobody refers to."""
        self.recompile()
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()

    def lacks(self, attention: str, dtype: str = "bfloat16") -> str | None:
        """Why this kind of attention cannot be trained here in `dtype`; None if it can."""
        if attention == "flex" and not self.on_gpu:
            return "FlexAttention has no backward on a CPU"
        if attention == "triton" and importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        if attention == "triton" and not self.on_gpu and dtype != "float32":
            return "Triton's interpreter has no bfloat16"
        return None

    @contextlib.contextmanager
    def compiler(self) -> Iterator[None]:
        """Inside, torch.compile takes no minutes on a CPU: it traces, but generates no code."""
        if self.on_gpu:
            yield
            return
        compile_ = torch.compile
        torch.compile = functools.partial(compile_, backend="eager")
        try:
            yield
        finally:
            torch.compile = compile_
