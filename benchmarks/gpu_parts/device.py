"""The few calls that differ between a GPU and the CPU of a dry run, behind one name each."""

from __future__ import annotations

import gc

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
