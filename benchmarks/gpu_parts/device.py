"""The few calls that differ between a GPU and the CPU of a dry run, behind one name each."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch


class Device:
    """A GPU, or the CPU in its place."""

    def __init__(self, device: torch.device) -> None:
        self.torch = device
        self.on_gpu = device.type == "cuda"

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.torch)

    def free(self) -> None:
        """Forget compiled code, and give back what nothing refers to."""
        torch._dynamo.reset()
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()

    def kernels(self, action: Callable[[], object]) -> list[tuple[str, float, int]]:
        """What ran on the device during `action`, as (name, seconds, calls); on a CPU, the
        operations."""
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self.on_gpu
        self.synchronize()
        with profile(activities=kinds) as recorded:
            action()
            self.synchronize()
        found = []
        for each in recorded.key_averages():
            if self.on_gpu:
                on_device = str(each.device_type).endswith("CUDA")
                spent = each.self_device_time_total if on_device else 0.0
            else:
                spent = each.self_cpu_time_total
            if spent > 0:
                found.append((str(each.key), spent / 1e6, int(each.count)))
        return found
