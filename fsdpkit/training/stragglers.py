"""Which rank is slow: each rank's own computing time, without the time it waits for the others.

In sharded training every rank ends each step at the same moment, because it waits for the slowest
in each gather; step times tell nothing. What is measured here is the forward pass of each sharded
unit, from the moment its weights have arrived to the moment its output exists: no message falls
into it. Backward runs on the same device with the same shapes and is not measured again. On a GPU
the marks are events on its stream, read when the host waits anyway; on a CPU they are wall clock.

Seen: a slow device, a busy processor, samples that are longer than the others'. Not seen: slow
loading of data, a slow network. With torch.compile nothing is measured: a hook would split the
compiled block.
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from fsdpkit.training.distributed import gather

SLOW = 1.2
"""A rank this many times slower than the median is worth a line to the person."""

Mark = float | torch.cuda.Event


@dataclass(frozen=True)
class Slowest:
    """The rank with the most computing time, and how many times the median that is."""

    rank: int
    host: str
    ratio: float
    compute_s: tuple[float, ...]
    """Each rank's computing time since the metrics line before, in seconds."""

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "slowest_rank": self.rank,
            "slowest_host": self.host,
            "slowest_ratio": round(self.ratio, 4),
            "rank_compute_s": [float(f"{seconds:.4g}") for seconds in self.compute_s],
        }

    def __str__(self) -> str:
        return (
            f"rank {self.rank} on {self.host} computes {self.ratio:.2f} times as long as the "
            "median rank, and all wait for it"
        )


class Stopwatch:
    """Adds up this rank's forward computing of `model`'s units while `running` is true."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        self._open: dict[nn.Module, Mark] = {}
        self._spans: list[tuple[Mark, Mark]] = []
        self.running = False
        self.units = _units(model)
        for unit in self.units:
            # After the engine's own hook, which waits for the weights, and before its other one.
            unit.register_forward_pre_hook(self._begin)
            unit.register_forward_hook(self._end, prepend=True)

    def _begin(self, module: nn.Module, inputs: Any) -> None:
        if self.running and torch.is_grad_enabled():
            self._open[module] = self._mark()

    def _end(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if (began := self._open.pop(module, None)) is not None:
            self._spans.append((began, self._mark()))

    def _mark(self) -> Mark:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def take_s(self) -> float:
        """Seconds since the last call; on a GPU its work must be done, or the host waits for it."""
        spans, self._spans = self._spans, []
        return sum((_seconds(began, ended) for began, ended in spans), 0.0)


def slowest(own_s: float) -> Slowest | None:
    """Compare all ranks' computing times in seconds; a collective. None if a rank has none."""
    found = gather((own_s, platform.node()))
    times = [seconds for seconds, _ in found]
    if min(times) <= 0:
        return None
    rank = max(range(len(times)), key=times.__getitem__)
    return Slowest(rank, found[rank][1], times[rank] / median_low(times), tuple(times))


def _seconds(began: Mark, ended: Mark) -> float:
    if isinstance(began, float) or isinstance(ended, float):
        assert isinstance(began, float)
        assert isinstance(ended, float)
        return ended - began
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1e3


def _units(model: nn.Module) -> list[nn.Module]:
    """Modules whose forward pass contains no message; none if some are compiled or nested."""
    if isinstance(model, DistributedDataParallel):
        units: list[nn.Module] = [model.module]
    elif isinstance(model, FullyShardedDataParallel):
        units = [m.module for m in FullyShardedDataParallel.fsdp_modules(model) if m is not model]
    else:
        units = [m for m in model.modules() if isinstance(m, FSDPModule) and m is not model]
    inside = [m for unit in units for m in unit.modules()]
    compiled = any(m._compiled_call_impl is not None for m in inside)
    nested = len(set(inside)) < len(inside)
    return [] if compiled or nested else units
