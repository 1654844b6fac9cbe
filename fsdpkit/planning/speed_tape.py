"""A recorded step (`tape.py`) as the work that the model of speed reads. No torch.

The tape is of uncompiled blocks. A compiled run launches fewer kernels and moves fewer bytes, so
what is told of one by its tape is slower than it will be; `speed_settings.py` counts fused kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from fsdpkit.errors import UsageError
from fsdpkit.planning import tape as recorded
from fsdpkit.planning.work import (
    Collective,
    CollectiveKind,
    Computation,
    Operation,
    Phase,
    StepWork,
)

_COMPUTES = 0
"""The stream that computes; what other streams copy runs beside it, and is little."""
_KINDS: dict[str, CollectiveKind] = {
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
}


def work_of(
    tape: recorded.Tape,
    *,
    ranks: int,
    ranks_per_node: int,
    tokens: int,
    samples: int,
    parameters: int,
    gathers_ahead: int | None = 2,
) -> StepWork:
    """The last step on the tape. `tokens` and `samples` are those of one rank in it.

    Raises UsageError for a tape that holds no whole step.
    """
    ends = [tape.work_began, *tape.work_steps]
    steps = [tape.work[a:b] for a, b in pairwise(ends)]
    if not steps or not steps[-1]:
        raise UsageError("The tape holds no whole step: record one before asking for its speed.")
    step = steps[-1]
    units = _units(step)
    shapes = {"ranks": ranks, "ranks_per_node": min(ranks, ranks_per_node)}
    operations = tuple(_operations(step, units, **shapes))
    forward = sum(
        each.flops
        for each in operations
        if isinstance(each, Computation) and each.phase == "forward"
    )
    return StepWork(
        operations=operations,
        tokens=tokens,
        samples=samples,
        # Backward twice forward, whatever it makes again.
        model_flops=3 * forward,
        parameters=parameters,
        gathers_ahead=gathers_ahead,
        source="tape",
        **shapes,
    )


def _units(step: Sequence[recorded.Operation | recorded.TapedCollective]) -> list[tuple[str, int]]:
    """Paths of the units with the bytes of their weights, in the order forward gathers them; of one
    rank alone, which gathers nothing, none."""
    gathers = [
        (each.module, each.bytes)
        for each in step
        if isinstance(each, recorded.TapedCollective)
        and (each.name, each.phase) == ("all_gather", "forward")
    ]
    return list(dict.fromkeys(gathers))


def _operations(
    step: Sequence[recorded.Operation | recorded.TapedCollective],
    units: Sequence[tuple[str, int]],
    *,
    ranks: int,
    ranks_per_node: int,
) -> Iterable[Operation]:
    paths = sorted((path for path, _ in units), key=len, reverse=True)
    last_backward = max((n for n, each in enumerate(step) if each.phase == "backward"), default=-1)
    coming = list(reversed(units))
    reduced: set[tuple[CollectiveKind, str | None]] = set()
    for number, each in enumerate(step):
        if each.phase == "forward":
            coming = list(reversed(units))
        phase = _phase(each.phase, number > last_backward)
        if isinstance(each, recorded.Operation):
            if each.stream == _COMPUTES:
                yield _computation(each, phase, _unit(each.module, paths))
            continue
        kind = _KINDS.get(each.name)
        if kind is None:
            continue
        unit: str | None = _unit(each.module, paths)
        if kind == "all_gather" and phase in ("backward", "recompute"):
            # It is issued while the unit after it computes.
            unit = _next_unit(coming, each.bytes, unit or "")
        elif each.phase == "between":
            unit = None
        elif (kind, unit) in reduced:
            # The root's gradients are last, after whatever module has run before.
            unit = ""
        elif kind != "all_gather":
            reduced.add((kind, unit))
        across = kind == "all_reduce" and unit is not None  # replicas; norms are summed over shards
        inside = ranks_per_node * each.ranks // ranks if across else each.ranks
        yield Collective(
            kind=kind,
            bytes=each.bytes,
            group_size=each.ranks,
            group_per_node=max(1, min(inside, ranks_per_node)),
            unit=unit,
            phase=phase,
        )


def _computation(one: recorded.Operation, phase: Phase, unit: str) -> Computation:
    attention = "attention" in one.name
    return Computation(
        unit=unit,
        phase=phase,
        kind="attention" if attention else "matmul" if one.flops else "other",
        flops=one.flops,
        bytes=one.bytes_read + one.bytes_written,
        dtype=one.dtype,
    )


def _phase(phase: recorded.Phase, after_backward: bool) -> Phase:
    if phase == "build" or phase == "between":
        return "optimizer" if after_backward else "forward"
    return phase


def _unit(module: str, paths: Sequence[str]) -> str:
    """The innermost unit that holds the module; `paths` the longest first."""
    return next((p for p in paths if p and (module == p or module.startswith(f"{p}."))), "")


def _next_unit(coming: list[tuple[str, int]], size: int, otherwise: str) -> str:
    """The next unit against the order of forward whose weights have that size, taken from
    `coming` with those passed over, which were still whole."""
    for number, (path, weights) in enumerate(coming):
        if weights == size:
            del coming[: number + 1]
            return path
    return otherwise
