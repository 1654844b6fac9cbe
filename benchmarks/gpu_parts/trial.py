"""A T5 that trains as the reference trainer trains it, on made-up token ids.

World size 1 on a GPU shards nothing, and goes through all that sharding brings along: float32
shards, gathered copies in bfloat16, reduction in float32, the norm of DTensors. What is measured
is what a rank of a larger run does, less its messages.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from attention import attention_in_use, guard_kernels
from flops import flops_per_sequence
from loss import IGNORE
from model import T5, Block, T5Config, init_parameter, last_of
from torch import Tensor, nn

from benchmarks.gpu_parts.device import Device
from benchmarks.peers.workload import peak_bytes, restart_peak
from fsdpkit.config.training import TrainingSettings, for_device, load_settings
from fsdpkit.config.training.automatic import CPU
from fsdpkit.training.distributed import Ranks, seed_step, sum_over_ranks
from fsdpkit.training.gradients import clip_gradients, loss_scaler, update
from fsdpkit.training.hardware import peak_tflops
from fsdpkit.training.optimizers import make_optimizer
from fsdpkit.training.precision import compute_dtype
from fsdpkit.training.sharding import shard

TINY = (
    "model.d_model=32",
    "model.d_ff=64",
    "model.d_kv=16",
    "model.num_heads=2",
    "model.num_layers=1",
    "model.num_decoder_layers=1",
    "model.vocab_size=384",  # an id for each byte
)
"""Settings of a dry run's model."""

COMMON = (
    "model.attention=sdpa",
    "model.dropout_rate=0",
    "precision.param=bfloat16",
    "optimizer.lr=1e-4",
    "optimizer.implementation=fused",
    "compile=false",
)
"""Nothing is left to what a device makes of `auto`: each row says what it is."""

PHASES = ("forward", "backward", "clipping", "update", "clearing")
"""Of a step, in its order; each ends with a call of `mark`."""


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

    @property
    def settings(self) -> TrainingSettings:
        return for_device(load_settings({}, self.words), CPU)  # each step is named, not chosen

    @property
    def config(self) -> T5Config:
        """With a head whose first loss is near ln(vocabulary)."""
        dimensions = self.settings.model.dimensions()
        return T5Config(**{**dimensions, "head_init_std": dimensions["d_model"] ** -0.5})


def plan(preset: str, *words: str, dry: bool) -> Plan:
    """Of a published size with rows of 512 and 128 tokens; later words win.

    Or of a tiny one, uncompiled: a compiler takes minutes, and is not what a dry run is about.
    """
    words = (
        (*TINY, *COMMON, *words, "compile=false")
        if dry
        else (f"model.preset={preset}", *COMMON, *words)
    )
    named = dict(word.split("=", 1) for word in words)
    lengths = Lengths(24, 12) if dry else Lengths(512, 128)
    return Plan(tuple(f"{key}={value}" for key, value in named.items()), lengths)


def build(plan: Plan, ranks: Ranks) -> nn.Module:
    """Our model, sharded as the trainer shards it, with T5's initial values."""
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
        fill=functools.partial(init_parameter, config),
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


def unmarked() -> None:
    """What `mark` is where nobody looks at the phases of a step."""


class Trial:
    """A model in training: `step` is one step of the trainer's loop."""

    def __init__(self, plan: Plan, ranks: Ranks) -> None:
        self.plan, self.ranks, self.settings = plan, ranks, plan.settings
        self.model = build(plan, ranks)
        self.model.train()
        self.optimizer = make_optimizer(self.model, self.settings.optimizer)
        self.scaler = loss_scaler(self.settings.precision, self.model, ranks)
        self.done = 0

    def step(self, batch: Batch, mark: Callable[[], None] = unmarked) -> Tensor:
        """Returns the mean loss of this rank's tokens, detached, on the device."""
        seed_step(self.settings.seed, self.done, self.ranks.rank)
        tokens = sum_over_ranks((batch.labels != IGNORE).sum(), device=self.ranks.device)
        weight = (self.ranks.world_size / tokens).float()
        loss: Tensor = (self.model(*batch, loss=self.settings.loss) * weight).squeeze()
        mark()
        torch.autograd.backward(self.scaler.scale(loss))
        mark()
        norm = clip_gradients(self.model, self.settings.grad_clip)
        mark()
        self.done += 1
        update(self.optimizer, self.scaler, norm, "stop", self.ranks, self.done)
        mark()
        self.optimizer.zero_grad()
        mark()
        return loss.detach()


def time_steps(trial: Trial, device: Device, rows: int) -> dict[str, Any]:
    """Blocks of steps, between which alone the host waits for the device; `samples` has each
    block's sequences a second, and `mfu` is None where the device's peak is not known."""
    batch, dry = made_up(trial.plan, rows, device.torch), not device.on_gpu
    began = time.perf_counter()
    for _ in range(1 if dry else 3):
        trial.step(batch)
    device.synchronize()
    ready_s = time.perf_counter() - began
    restart_peak(device.torch)
    seconds, steps = [], 1 if dry else 4
    for _ in range(1 if dry else 3):
        began = time.perf_counter()
        for _ in range(steps):
            loss = trial.step(batch)
        device.synchronize()
        seconds.append((time.perf_counter() - began) / steps)
    sequences_per_s = rows / statistics.median(seconds)
    tflops = sequences_per_s * flops_per_sequence(trial.plan.config, *trial.plan.lengths) / 1e12
    peak = peak_tflops(device.torch, compute_dtype(trial.settings.precision, device.torch))
    return {
        "rows": rows,
        "lengths": list(trial.plan.lengths),
        "sequences_per_s": sequences_per_s,
        "samples": [rows / each for each in seconds],
        "mfu": tflops / peak if peak else None,
        "peak_bytes": peak_bytes(device.torch),
        "reserved_bytes": 0 if dry else torch.cuda.max_memory_reserved(device.torch),
        "ready_s": ready_s,
        "last_loss": loss.item(),
        "words": list(trial.plan.words),
    }


def attention_of(plan: Plan, device: Device) -> str:
    """Which kernel our model's attention reaches."""
    settings = plan.settings
    dtype = compute_dtype(settings.precision, device.torch)
    return str(attention_in_use(plan.config, settings.model.attention, device.torch, dtype))
