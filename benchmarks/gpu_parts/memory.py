"""The founding guide's table, as far as one GPU can show it: T5 v1.1-base, peaks and steps.

On one rank a shard is the whole: FULL_SHARD and NO_SHARD hold the same weights, gradients and
optimizer state. What differs, and is measured, are gathered copies, activations, and what leaves
the GPU. What each of several ranks would hold is in the tables of training.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu_parts.part import Part, Row
from benchmarks.gpu_parts.snapshot import summary_of_snapshot
from benchmarks.gpu_parts.trial import (
    T5,
    Batch,
    Plan,
    Trial,
    attention_of,
    guard_kernels,
    init_parameter,
    made_up,
    plan,
    time_steps,
)
from fsdpkit.launching.torch_release import too_old

STRATEGIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("NO_SHARD", ("sharding.strategy=no_shard",)),
    ("SHARD_GRAD_OP", ("sharding.strategy=shard_grad_op",)),
    ("FULL_SHARD", ()),
    ("FULL_SHARD, selective checkpointing", ("sharding.activation_checkpointing=selective",)),
    ("FULL_SHARD, activation checkpointing", ("sharding.activation_checkpointing=full",)),
    ("FULL_SHARD, activations offloaded", ("sharding.activation_checkpointing=offload",)),
    *(
        (
            f"FULL_SHARD, bfloat16 weights, {rounding}",
            ("precision.master=bfloat16", f"optimizer.rounding={rounding}"),
        )
        for rounding in ("stochastic", "compensated")
    ),
    ("FULL_SHARD, FSDP1", ("sharding.engine=fsdp1",)),
    ("FULL_SHARD, CPU offload", ("sharding.cpu_offload=true",)),
)


def run(part: Part) -> None:
    task = plan("t5-v1.1-base", "precision.param=bfloat16", "model.dropout_rate=0", dry=part.dry)
    part.measure("DDP (torch), autocast", functools.partial(ddp, part, task), needs_s=8)
    for name, words in STRATEGIES:
        tried = task.and_(*words)
        # Older releases of torch drop some of what a block is recomputed from, or mix it up.
        selective = tried.settings.sharding.activation_checkpointing == "selective"
        part.measure(
            name,
            functools.partial(ours, part, tried),
            needs_s=20 if "offload" in name else 8,
            lacks=too_old(torch.__version__) if selective else None,
        )


def ours(part: Part, task: Plan) -> Row:
    part.device.free()
    return peaks(part, Trial(task, part.ranks))


def ddp(part: Part, task: Plan) -> Row:
    """The same model in DistributedDataParallel: float32 weights, cast where they are used."""
    part.device.free()
    config, device = task.config, part.device.torch
    guard_kernels(device)
    with device:
        model = T5(config)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            init_parameter(config, name, parameter, generator)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            found: Tensor = model(*batch, loss="whole")
        return found / batch.labels.numel()

    return peaks(part, Trial(task, part.ranks, DistributedDataParallel(model), loss))


def peaks(part: Part, trial: Trial) -> Row:
    found = time_steps(trial, part.device, 2 if part.dry else 32)
    with part.device.allocations() as snapshot:
        trial.step(made_up(trial.plan, found.rows, part.device.torch))
        part.device.synchronize()
        taken = snapshot()
    row = {
        "rows": found.rows,
        "steps_per_s": found.sequences_per_s / found.rows,
        "peak_bytes": found.peak_bytes,
        "reserved_bytes": found.reserved_bytes,
        "parameter_bytes": on_device(part, trial.model.parameters()),
        "optimizer_bytes": on_device(
            part, (v for s in trial.optimizer.state.values() for v in s.values())
        ),
        "samples": [1 / s for s in found.seconds],
        "allocator": summary_of_snapshot(taken),
        "attention": attention_of(trial.plan, part.device),
    }
    del trial
    part.device.free()
    return row


def on_device(part: Part, tensors: Iterable[object]) -> int:
    """Bytes that the device holds of them: none of what is offloaded."""
    local = (t.to_local() if isinstance(t, DTensor) else t for t in tensors)
    return sum(
        t.nbytes for t in local if isinstance(t, Tensor) and t.device.type == part.device.torch.type
    )
