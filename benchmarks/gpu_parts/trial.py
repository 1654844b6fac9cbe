"""A T5 that trains as the reference trainer trains it, on made-up token ids.

World size 1 on a GPU shards nothing, and goes through all that sharding brings along: float32
shards, gathered copies in bfloat16, reduction in float32, the norm of DTensors. What is measured
is what a rank of a larger run does, less its messages.
"""

from __future__ import annotations

import functools
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "T5-fsdp"))

from attention import (
    ATTEND,
    FlexBias,
    TokenBias,
    attention_in_use,
    guard_kernels,
    masked,
    relative_buckets,
    visible_blocks,
)
from flops import flops_per_sequence
from loss import IGNORE
from model import T5, Block, T5Config, init_parameter, last_of

from benchmarks.gpu_parts.device import Device
from fsdpkit.config.training import TrainingSettings, for_device, load_settings
from fsdpkit.config.training.automatic import CPU
from fsdpkit.training.distributed import Ranks, seed_step, sum_over_ranks
from fsdpkit.training.gradients import clip_gradients, loss_scaler, update
from fsdpkit.training.hardware import peak_tflops
from fsdpkit.training.optimizers import make_optimizer
from fsdpkit.training.out_of_memory import is_out_of_memory
from fsdpkit.training.precision import compute_dtype
from fsdpkit.training.sharding import Fill, shard

__all__ = [
    "ATTEND",
    "IGNORE",
    "T5",
    "Batch",
    "Block",
    "FlexBias",
    "Lengths",
    "Plan",
    "TokenBias",
    "Trial",
    "attention_of",
    "build",
    "fastest",
    "guard_kernels",
    "init_parameter",
    "made_up",
    "masked",
    "plan",
    "relative_buckets",
    "report",
    "seed_step",
    "time_steps",
    "visible_blocks",
    "whole",
]

TINY = (
    "model.d_model=32",
    "model.d_ff=64",
    "model.d_kv=16",
    "model.num_heads=2",
    "model.num_layers=1",
    "model.num_decoder_layers=1",
    "model.vocab_size=64",
)
"""Settings of a dry run's model."""

PLAIN = ("compile=false", "model.attention=sdpa")


class Lengths(NamedTuple):
    """Tokens in each row of a batch."""

    source: int
    target: int


class Batch(NamedTuple):
    """`source` int64 [B, S], `mask` bool [B, S], `labels` int64 [B, T]."""

    source: Tensor
    mask: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Plan:
    """What to train: settings of `[training]` as KEY=VALUE, and the lengths of its rows."""

    words: tuple[str, ...]
    lengths: Lengths

    def and_(self, *words: str) -> Plan:
        """Later words go before earlier ones."""
        return Plan((*self.words, *words), self.lengths)

    @property
    def settings(self) -> TrainingSettings:
        return for_device(load_settings({}, self.words), CPU)  # each step is named, not chosen

    @property
    def config(self) -> T5Config:
        """With a head whose first loss is near ln(vocabulary)."""
        dimensions = self.settings.model.dimensions()
        return T5Config(**{**dimensions, "head_init_std": dimensions["d_model"] ** -0.5})

    def flops(self) -> int:
        """Of one sequence, forward and backward."""
        flops: int = flops_per_sequence(self.config, *self.lengths)
        return flops


def plan(preset: str, *words: str, dry: bool) -> Plan:
    """Of a published size with rows of 512 and 128 tokens, or of a tiny one.

    Nothing is left to what a device makes of `auto`: each row says what it is.
    """
    if dry:
        return Plan((*TINY, *PLAIN, *words), Lengths(24, 12))
    return Plan((f"model.preset={preset}", *PLAIN, *words), Lengths(512, 128))


def build(plan: Plan, ranks: Ranks, fill: Fill | None = None) -> nn.Module:
    """Our model, sharded as the trainer shards it, with T5's initial values or those of `fill`."""
    settings, config = plan.settings, plan.config
    guard_kernels(ranks.device)
    with torch.device("meta"):
        model = T5(config, settings.model.attention)
    return shard(
        model,
        settings.sharding,
        settings.precision,
        ranks,
        blocks=[Block],
        fill=fill or functools.partial(init_parameter, config),
        compile=settings.compile,
        last=last_of(config),
    )


def made_up(plan: Plan, rows: int, device: torch.device, seed: int = 0) -> Batch:
    """Full rows, as in pre-training: no padding anywhere."""
    generator = torch.Generator().manual_seed(seed)
    high = plan.config.vocab_size
    source, labels = (
        torch.randint(2, high, (rows, length), generator=generator).to(device)
        for length in plan.lengths
    )
    return Batch(source, torch.ones_like(source, dtype=torch.bool), labels)


Loss = Callable[[nn.Module, Batch], Tensor]
"""The mean over a batch's target tokens, all of which count."""


class Trial:
    """A model in training: `step` is one step of the trainer's loop."""

    def __init__(
        self, plan: Plan, ranks: Ranks, model: nn.Module | None = None, loss: Loss | None = None
    ) -> None:
        self.plan, self.ranks, self.settings = plan, ranks, plan.settings
        self.model = build(plan, ranks) if model is None else model
        self.model.train()
        self.optimizer = make_optimizer(self.model, self.settings.optimizer)
        self.scaler = loss_scaler(self.settings.precision, self.model, ranks)
        self._loss = loss
        self.done = 0

    def step(self, batch: Batch) -> Tensor:
        """Returns the mean loss of this rank's tokens, detached, on the device."""
        seed_step(self.settings.seed, self.done, self.ranks.rank)
        loss = self._loss(self.model, batch) if self._loss else self._our_loss(batch)
        torch.autograd.backward(self.scaler.scale(loss))
        norm = clip_gradients(self.model, self.settings.grad_clip)
        self.done += 1
        update(self.optimizer, self.scaler, norm, "stop", self.ranks, self.done)
        self.optimizer.zero_grad()
        return loss.detach()

    def _our_loss(self, batch: Batch) -> Tensor:
        tokens = sum_over_ranks((batch.labels != IGNORE).sum(), device=self.ranks.device)
        weight = (self.ranks.world_size / tokens).float()
        loss: Tensor = self.model(*batch, loss=self.settings.loss)
        return (loss * weight).squeeze()


@dataclass(frozen=True)
class Speed:
    """What the timed steps of one batch size found; bytes are those of the whole process."""

    rows: int
    seconds: list[float]  # a step, in each of several blocks of steps
    peak_bytes: int
    reserved_bytes: int
    losses: list[float]
    ready_s: float  # of the steps before, in which everything is compiled

    @property
    def sequences_per_s(self) -> float:
        return self.rows / statistics.median(self.seconds)


def time_steps(trial: Trial, device: Device, rows: int) -> Speed:
    """Blocks of steps, between which alone the host waits for the device."""
    batch, pace = made_up(trial.plan, rows, device.torch), device.pace
    began = time.perf_counter()
    losses = [trial.step(batch) for _ in range(pace.warmup)]
    device.synchronize()
    ready_s = time.perf_counter() - began
    device.restart_peak()
    seconds = []
    for _ in range(pace.blocks):
        began = time.perf_counter()
        losses += [trial.step(batch) for _ in range(pace.steps)]
        device.synchronize()
        seconds.append((time.perf_counter() - began) / pace.steps)
    return Speed(
        rows,
        seconds,
        device.peak_bytes(),
        device.reserved_bytes(),
        [loss.item() for loss in losses],
        ready_s,
    )


Make = Callable[[Plan], Trial]


def fastest(
    make: Make,
    plan: Plan,
    device: Device,
    rows: int,
    *,
    most: int = 1024,
    until: float = math.inf,
) -> tuple[Speed, dict[int, float | None]]:
    """The fastest of the batches that were tried: `rows`, and what is foreseen to fill the memory.

    Also sequences a second of all that was tried, None for what did not fit. Nothing more is tried
    when it would not be over by `until`, a time of `time.time()`. Raises RuntimeError when not even
    one row fits.
    """
    fits: dict[int, Speed] = {}
    peaks: dict[int, int | None] = {}
    trial: Trial | None = None
    idle_bytes, longest_s = 0, 0.0
    wanted: int | None = rows
    while wanted and (not fits or time.time() + longest_s < until):
        device.free()
        began = time.time()
        try:
            if trial is None:
                trial = make(plan)
                idle_bytes = device.held_bytes() + state_bytes(trial)
            fits[wanted] = time_steps(trial, device, wanted)
            peaks[wanted] = fits[wanted].peak_bytes
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            trial = peaks[wanted] = None  # in the middle of a step: built anew
        longest_s = max(longest_s, time.time() - began)
        wanted = next_rows(peaks, idle_bytes, device.total_bytes, most)
    del trial
    device.free()
    if not fits:
        raise RuntimeError("out of memory with one row")
    best = max(fits.values(), key=lambda speed: speed.sequences_per_s)
    return best, {n: fits[n].sequences_per_s if n in fits else None for n in peaks}


FULL = 0.93
"""The share of a device's memory up to which steps are foreseen to fit."""


def next_rows(
    peaks: Mapping[int, int | None], idle_bytes: int, total_bytes: int, most: int
) -> int | None:
    """Which number of rows to try next; None when there is nothing left to learn.

    `peaks` are the peaks of those that were tried, None for what did not fit; `idle_bytes`
    (weights, gradients, optimizer state) is held whatever the batch, and the rest of a peak is in
    proportion to it. Above 8 rows in steps of 8.
    """
    fits = {rows: peak for rows, peak in peaks.items() if peak is not None}
    failed = [rows for rows, peak in peaks.items() if peak is None]
    if not fits:
        return _round(min(peaks) // 2) or None
    largest = max(fits)
    each = max(1.0, (fits[largest] - idle_bytes) / largest)
    foreseen = min(most, int((FULL * total_bytes - idle_bytes) / each))
    if failed:
        foreseen = min(foreseen, min(failed) - (8 if min(failed) > 8 else 1))
    foreseen = _round(foreseen)
    return foreseen if foreseen > largest and len(peaks) < 4 else None


def _round(rows: int) -> int:
    return rows - rows % 8 if rows > 8 else rows


def state_bytes(trial: Trial) -> int:
    """Gradients and AdamW's two moments, which come with the first step; float32."""
    return sum(12 * p.numel() for p in trial.model.parameters()) // trial.ranks.world_size


def report(plan: Plan, speed: Speed, device: Device) -> dict[str, object]:
    """The row of one speed. `mfu` is None where the device's peak is not known."""
    tflops = speed.sequences_per_s * plan.flops() / 1e12
    peak = peak_tflops(device.torch, compute_dtype(plan.settings.precision, device.torch))
    return {
        "rows": speed.rows,
        "sequences_per_s": speed.sequences_per_s,
        "tokens_per_s": speed.sequences_per_s * sum(plan.lengths),
        "tflops": tflops,
        "mfu": tflops / peak if peak else None,
        "peak_bytes": speed.peak_bytes,
        "reserved_bytes": speed.reserved_bytes,
        "samples": [speed.rows / s for s in speed.seconds],
        "last_loss": speed.losses[-1],
        "ready_s": speed.ready_s,
        "words": list(plan.words),
        "attention": attention_of(plan, device),
    }


def attention_of(plan: Plan, device: Device) -> str:
    """Which kernel our model's attention reaches."""
    settings = plan.settings
    dtype = compute_dtype(settings.precision, device.torch)
    return str(attention_in_use(plan.config, settings.model.attention, device.torch, dtype))


def whole(tensor: Tensor) -> Tensor:
    """All of a parameter or gradient, of which this rank may hold a shard."""
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()
