"""A step put together by hand: FSDP's order of messages around alike layers, without torch."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpkit.planning.work import Collective, Computation, Operation, StepWork

WIDTH, PARAMETERS = 1024, 12 * 1024**2
"""Of one layer."""


def made_work(
    *,
    layers: int = 12,
    rows: int = 8,
    length: int = 512,
    nodes: int = 1,
    gpus: int = 8,
    strategy: str = "full_shard",
) -> StepWork:
    """One optimizer step of one rank, `rows` samples of `length` tokens."""
    tokens, ranks = rows * length, nodes * gpus
    names = [f"layers.{n}" for n in range(layers)]
    operations = [one for name in names for one in _forward(name, tokens, ranks, gpus, strategy)]
    for name in reversed(names):
        operations += _backward(name, tokens, ranks, gpus, strategy)
    shard = layers * PARAMETERS // _group(ranks, gpus, strategy)
    operations.append(_other("", "optimizer", 28 * shard, kernels=40))
    return StepWork(
        operations=tuple(operations),
        tokens=tokens,
        samples=rows,
        model_flops=3 * layers * 2 * tokens * PARAMETERS,
        ranks=ranks,
        ranks_per_node=gpus,
    )


def _group(ranks: int, gpus: int, strategy: str) -> int:
    return {"no_shard": 1, "hybrid_shard": gpus}.get(strategy, ranks)


def _forward(name: str, tokens: int, ranks: int, gpus: int, strategy: str) -> Iterator[Operation]:
    yield from _gather(name, "forward", ranks, gpus, strategy)
    yield _product(name, "forward", 2 * tokens * PARAMETERS)
    yield _other(name, "forward", 60 * tokens * WIDTH, kernels=12)


def _backward(name: str, tokens: int, ranks: int, gpus: int, strategy: str) -> Iterator[Operation]:
    yield from _gather(name, "backward", ranks, gpus, strategy)
    yield _product(name, "backward", 4 * tokens * PARAMETERS)
    yield _other(name, "backward", 120 * tokens * WIDTH, kernels=24)
    group = _group(ranks, gpus, strategy)
    if group > 1:
        yield _message("reduce_scatter", 4 * PARAMETERS, group, min(group, gpus), name, "backward")
    if group < ranks:
        inside = max(1, gpus // group)
        size = 4 * PARAMETERS // group
        yield _message("all_reduce", size, ranks // group, inside, name, "backward")


def _gather(name: str, phase, ranks: int, gpus: int, strategy: str) -> Iterator[Operation]:
    group = _group(ranks, gpus, strategy)
    if group > 1:
        yield _message("all_gather", 2 * PARAMETERS, group, min(group, gpus), name, phase)


def _message(kind, size: int, group: int, inside: int, unit: str, phase) -> Collective:
    return Collective(
        kind=kind, bytes=size, group_size=group, group_per_node=inside, unit=unit, phase=phase
    )


def _product(unit: str, phase, flops: int) -> Computation:
    return Computation(unit=unit, phase=phase, kind="matmul", flops=flops, bytes=1, kernels=6)


def _other(unit: str, phase, size: int, kernels: int) -> Computation:
    return Computation(unit=unit, phase=phase, kind="other", bytes=size, kernels=kernels)
