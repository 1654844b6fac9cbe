"""A step's work from layers alone: FSDP's order of messages around any stack of layers.

For what cannot be recorded: published runs of other people's models, and a plan that may not import
torch. What comes out is called an estimate. `speed_models.py` makes the layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from fsdpkit.config.training.sharding import ShardingSettings, Strategy
from fsdpkit.planning.work import (
    Collective,
    CollectiveKind,
    Computation,
    ComputationKind,
    Copy,
    Operation,
    Phase,
    StepWork,
)

Recompute = Literal["none", "full", "selective"]


class UnitPart(msgspec.Struct, frozen=True):
    """Kernels of one kind in a layer's forward."""

    kind: ComputationKind
    flops: int = 0
    bytes: int = 0
    kernels: int = 1


class UnitWork(msgspec.Struct, frozen=True, kw_only=True):
    """One FSDP unit: what it gathers, and what it does in forward. Backward does twice that, a
    fused attention two and a half times its products, since it makes the scores again."""

    unit: str
    parameters: int
    forward: tuple[UnitPart, ...]
    block: bool = True
    """Whether activation checkpointing applies."""
    kept: tuple[int, ...] | None = None
    """Numbers of the parts of `forward` that selective checkpointing keeps; None: not recorded, and
    taken to be half of each product, and the attention."""
    stays: bool = False
    """Whether its weights stay gathered to backward: the root, and what forward ends with."""


class Sharded(msgspec.Struct, frozen=True, kw_only=True):
    """How layers are spread and their gradients exchanged."""

    ranks: int
    ranks_per_node: int
    strategy: Strategy = "full_shard"
    shard_size: int | None = None
    """Of a hybrid; None: a node."""
    reshard_to: int | None = None
    recompute: Recompute = "none"
    accumulation: int = 1
    reduces_each: bool = False
    """Whether gradients cross ranks in each micro-batch, not only in the last."""
    weight_bytes: int = 2
    """Of a gathered parameter."""
    reduce_bytes: int = 4
    """Of a gradient on its way."""
    master_bytes: int = 4
    state_bytes: int = 8
    """Of the optimizer, a parameter."""
    dtype: str = "bfloat16"
    optimizer_kernels: int = 40
    gathers_ahead: int | None = 2
    offload: bool = False
    """Whether shards, gradients and the optimizer are the host's."""

    @property
    def group(self) -> int:
        """Ranks that one copy of the weights is spread over."""
        return min(self.ranks, self._sharding.shard_ranks(self.ranks, self.ranks_per_node))

    @property
    def frees(self) -> bool:
        return self._sharding.frees_after_forward and self.reshard_to != 1

    @property
    def _sharding(self) -> ShardingSettings:
        return ShardingSettings(strategy=self.strategy, shard_size=self.shard_size)


def work_of(
    layers: Sequence[UnitWork], sharded: Sharded, *, tokens: int, samples: int, model_flops: int
) -> StepWork:
    """One optimizer step of one rank. `layers` in order of forward; `tokens`, `samples` and
    `model_flops` of all its micro-batches."""
    operations: list[Operation] = []
    for micro in range(sharded.accumulation):
        last = micro == sharded.accumulation - 1
        operations += _forward(layers, sharded, first=micro == 0)
        operations += _backward(layers, sharded, reduces=last or sharded.reduces_each)
    operations += _optimizer(layers, sharded)
    return StepWork(
        operations=tuple(operations),
        tokens=tokens,
        samples=samples,
        model_flops=model_flops,
        ranks=sharded.ranks,
        ranks_per_node=min(sharded.ranks, sharded.ranks_per_node),
        parameters=sum(layer.parameters for layer in layers),
        gathers_ahead=sharded.gathers_ahead,
        source="closed form",
    )


def _forward(layers: Sequence[UnitWork], sharded: Sharded, first: bool) -> Iterator[Operation]:
    for layer in layers:
        if first or sharded.frees:
            yield from _gather(layer, sharded, "forward")
        yield from _compute(layer, sharded, "forward", 1.0)


def _backward(layers: Sequence[UnitWork], sharded: Sharded, reduces: bool) -> Iterator[Operation]:
    backwards = list(reversed(layers))
    gathered_ahead = False
    for layer, before in zip(backwards, [*backwards[1:], None], strict=True):
        if not gathered_ahead and sharded.frees and not layer.stays:
            yield from _gather(layer, sharded, "backward")
        elif gathered_ahead:
            yield _copy_out(layer, sharded, "backward")
        gathered_ahead = before is not None and sharded.frees and not before.stays
        if before is not None and gathered_ahead:
            yield from _messages(before, sharded, "backward")
            gathered_ahead = sharded.group > 1
        if layer.block and sharded.recompute != "none":
            share = 0.5 if sharded.recompute == "selective" and layer.kept is None else 1.0
            yield from _compute(layer, sharded, "recompute", share)
        yield from _compute(layer, sharded, "backward", 2.0)
        if reduces and layer.parameters:
            yield from _reduce(layer, sharded)


def _compute(layer: UnitWork, sharded: Sharded, phase: Phase, times: float) -> Iterator[Operation]:
    products = [n for n, part in enumerate(layer.forward) if part.kind == "matmul"]
    for number, part in enumerate(layer.forward):
        if phase == "recompute" and sharded.recompute == "full" and number == products[-1]:
            continue  # torch stops when what backward needs is there, and its output is not
        kept = part.kind == "attention" if layer.kept is None else number in layer.kept
        if phase == "recompute" and sharded.recompute == "selective" and kept:
            continue
        # What is not a product is made again whole, whichever products were kept.
        factor = 1.0 if phase == "recompute" and part.kind == "other" else times
        if phase == "backward" and part.kind == "attention":
            factor = 2.5
        yield Computation(
            unit=layer.unit,
            phase=phase,
            kind=part.kind,
            flops=round(part.flops * factor),
            bytes=round(part.bytes * factor),
            dtype=sharded.dtype,
            kernels=max(1, round(part.kernels * factor)),
        )


def _gather(layer: UnitWork, sharded: Sharded, phase: Phase) -> Iterator[Operation]:
    if layer.parameters:
        yield from _messages(layer, sharded, phase)
        yield _copy_out(layer, sharded, phase)


def _messages(layer: UnitWork, sharded: Sharded, phase: Phase) -> Iterator[Operation]:
    group = sharded.group
    if phase == "backward" and sharded.reshard_to is not None:
        group = min(group, sharded.reshard_to)
    if sharded.offload:
        shard = layer.parameters * sharded.master_bytes // sharded.group
        yield Copy(to="gpu", bytes=shard, unit=layer.unit, phase=phase)
    if group > 1:
        size = layer.parameters * sharded.weight_bytes
        yield _collective("all_gather", size, group, sharded, layer.unit, phase)


def _copy_out(layer: UnitWork, sharded: Sharded, phase: Phase) -> Operation:
    """Shards cast to what is sent, and what came copied to where it is computed with."""
    cast = layer.parameters * (sharded.master_bytes + sharded.weight_bytes) // sharded.group
    size = cast + (2 * layer.parameters * sharded.weight_bytes if sharded.group > 1 else 0)
    return Computation(
        unit=layer.unit, phase=phase, kind="other", bytes=size, kernels=2, dtype=sharded.dtype
    )


def _reduce(layer: UnitWork, sharded: Sharded) -> Iterator[Operation]:
    size = layer.parameters * sharded.reduce_bytes
    yield Computation(
        unit=layer.unit,
        phase="backward",
        kind="other",
        bytes=layer.parameters * sharded.weight_bytes + size,
        kernels=2,
        dtype=sharded.dtype,
    )
    if sharded.group > 1:
        yield _collective("reduce_scatter", size, sharded.group, sharded, layer.unit, "backward")
    if sharded.group < sharded.ranks:
        yield Collective(
            kind="all_reduce",
            bytes=size // sharded.group,
            group_size=sharded.ranks // sharded.group,
            group_per_node=max(1, min(sharded.ranks, sharded.ranks_per_node) // sharded.group),
            unit=layer.unit,
            phase="backward",
        )
    if sharded.offload:
        yield Copy(to="host", bytes=size // sharded.group, unit=layer.unit, phase="backward")


def _optimizer(layers: Sequence[UnitWork], sharded: Sharded) -> Iterator[Operation]:
    """The gradients' norm over all ranks, clipping, the update of this rank's shards."""
    shard = sum(layer.parameters for layer in layers) // sharded.group
    state = sharded.master_bytes + 2 * sharded.master_bytes + 2 * sharded.state_bytes
    yield _update(3 * shard * sharded.master_bytes, sharded)
    if sharded.group > 1:
        yield _collective("all_reduce", 4, sharded.group, sharded, None, "optimizer")
    yield _update(shard * state, sharded)


def _update(size: int, sharded: Sharded) -> Computation:
    return Computation(
        unit="",
        phase="optimizer",
        kind="other",
        bytes=size,
        kernels=sharded.optimizer_kernels,
        dtype="float32",
        on_host=sharded.offload,
    )


def _collective(
    kind: CollectiveKind, size: int, group: int, sharded: Sharded, unit: str | None, phase: Phase
) -> Collective:
    return Collective(
        kind=kind,
        bytes=size,
        group_size=group,
        group_per_node=min(group, sharded.ranks_per_node),
        unit=unit,
        phase=phase,
    )
