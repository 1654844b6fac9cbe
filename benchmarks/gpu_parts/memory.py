"""Peaks of T5 v1.1-base by strategy, beside which the part "plans" puts what was planned.

On one rank a shard is the whole: FULL_SHARD and NO_SHARD hold the same. What differs are
activations, types, and what leaves the GPU. What each of several ranks would hold is in the tables
of training.py.
"""

from __future__ import annotations

import functools

import torch

from benchmarks.gpu_parts.part import Part, Row
from benchmarks.gpu_parts.trial import Plan, Trial, plan, time_steps
from fsdpkit.launching.torch_release import too_old

_ROUNDED = "precision.master=bfloat16"
STRATEGIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("FULL_SHARD", ()),
    ("FULL_SHARD, activation checkpointing", ("sharding.activation_checkpointing=full",)),
    ("FULL_SHARD, selective checkpointing", ("sharding.activation_checkpointing=selective",)),
    ("FULL_SHARD, bfloat16 weights, stochastic", (_ROUNDED, "optimizer.rounding=stochastic")),
    ("FULL_SHARD, bfloat16 weights, compensated", (_ROUNDED, "optimizer.rounding=compensated")),
    ("NO_SHARD", ("sharding.strategy=no_shard",)),
    ("SHARD_GRAD_OP", ("sharding.strategy=shard_grad_op",)),
    ("FULL_SHARD, FSDP1", ("sharding.engine=fsdp1",)),
    ("FULL_SHARD, activations offloaded", ("sharding.activation_checkpointing=offload",)),
    ("FULL_SHARD, CPU offload", ("sharding.cpu_offload=true",)),
)


def run(part: Part) -> None:
    for name, words in STRATEGIES:
        part.measure(
            f"base, {name}",
            functools.partial(peak, part, plan("t5-v1.1-base", *words, dry=part.dry)),
            needs_s=20 if "offload" in name else 8,
            # Older releases drop some of what a block is recomputed from, or mix it up.
            lacks=too_old(torch.__version__) if "selective" in name else None,
        )


def peak(part: Part, task: Plan) -> Row:
    return time_steps(Trial(task, part.ranks), part.device, 2 if part.dry else 32)
