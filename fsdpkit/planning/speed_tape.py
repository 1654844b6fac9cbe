"""A recorded step (`tape.py`) as the work that the model of speed reads. No torch.

The tape is of uncompiled blocks. Where the run compiles them, neighbouring kernels that are bound
by memory are put together (`_fused`). On another number of nodes than it was recorded on, a step
is resized (`on_nodes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from msgspec.structs import replace

from fsdpkit.errors import UsageError
from fsdpkit.planning import tape as recorded
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

Step = Sequence[recorded.Operation | recorded.TapedCollective]

_COMPUTES = 0
"""The stream that computes; what other streams copy runs beside it, and is little."""
_FUSED_BYTES = 0.55
"""Of the bytes of uncompiled norms, gates, casts and losses, what is left once Inductor has fused
them: 0.51 to 0.60 for T5 v1.1 small and large when passes over each activation are counted."""
_FUSED_KERNELS = 2
"""Uncompiled kernels that become one."""
_UPDATED = 7
"""Times that an optimizer with two moments goes over its shards, and over their gradients."""


def work_of(
    tape: recorded.Tape,
    *,
    ranks: int,
    ranks_per_node: int,
    gathers_ahead: int | None = 2,
    compiled: bool = False,
    offloads: bool = False,
) -> StepWork:
    """The last step on the tape. offloads: whether shards and the optimizer are in host memory.
    Raises UsageError for a tape that holds no whole step."""
    ends = [tape.work_began, *tape.work_steps]
    steps = [tape.work[a:b] for a, b in pairwise(ends)]
    if not steps or not steps[-1]:
        raise UsageError("The tape holds no whole step: record one before asking for its speed.")
    reader = _Reader(steps[-1], ranks, min(ranks, ranks_per_node), offloads)
    operations = tuple(reader.operations())
    forward = sum(
        each.flops
        for each in operations
        if isinstance(each, Computation) and each.phase == "forward"
    )
    return StepWork(
        operations=tuple(_fused(operations)) if compiled else operations,
        tokens=tape.tokens,
        samples=tape.samples,
        # Backward twice forward, whatever it makes again.
        model_flops=3 * forward,
        ranks=ranks,
        ranks_per_node=reader.ranks_per_node,
        gathers_ahead=gathers_ahead,
    )


@dataclass
class _Reader:
    step: Step
    ranks: int
    ranks_per_node: int
    offloads: bool

    def operations(self) -> Iterator[Operation]:
        units = self._units()
        paths = sorted((path for path, _ in units), key=len, reverse=True)
        last_backward = max(
            (n for n, o in enumerate(self.step) if o.phase == "backward"), default=-1
        )
        coming = list(reversed(units))
        reduced: set[tuple[CollectiveKind, str | None]] = set()
        for number, each in enumerate(self.step):
            if each.phase == "forward":
                coming = list(reversed(units))
            phase = _phase(each.phase, number > last_backward)
            if isinstance(each, recorded.Operation):
                if each.stream == _COMPUTES:
                    yield _computation(each, phase, _unit(each.module, paths))
                continue
            if each.name == "broadcast" or each.name == "other":
                continue
            kind: CollectiveKind = each.name
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
            yield from self._message(each, kind, unit, phase)
        if self.offloads:
            yield from self._update_on_host()

    def _message(
        self, each: recorded.TapedCollective, kind: CollectiveKind, unit: str | None, phase: Phase
    ) -> Iterator[Operation]:
        # Of replicas; norms are summed over shards.
        across = kind == "all_reduce" and unit is not None
        inside = self.ranks_per_node * each.ranks // self.ranks if across else each.ranks
        message = Collective(
            kind=kind,
            bytes=each.bytes,
            group_size=each.ranks,
            group_per_node=max(1, min(inside, self.ranks_per_node)),
            unit=unit,
            phase=phase,
        )
        copied = self.offloads and unit is not None
        shard = each.bytes // each.ranks
        if copied and kind == "all_gather":
            yield Copy(to="gpu", bytes=shard, unit=unit or "", phase=phase)
        yield message
        if copied and kind == "reduce_scatter":
            yield Copy(to="host", bytes=shard, unit=unit or "", phase=phase)

    def _units(self) -> list[tuple[str, int]]:
        """Paths of the units with the bytes of their weights, in the order forward gathers them; of
        one rank alone, which gathers nothing, none."""
        gathers = [
            (each.module, each.bytes)
            for each in self.step
            if isinstance(each, recorded.TapedCollective)
            and (each.name, each.phase) == ("all_gather", "forward")
        ]
        return list(dict.fromkeys(gathers))

    def _update_on_host(self) -> Iterator[Computation]:
        """The tape is of the device alone."""
        shards = sum(
            each.bytes // each.ranks
            for each in self.step
            if isinstance(each, recorded.TapedCollective) and each.name == "reduce_scatter"
        )
        yield Computation(
            unit="", phase="optimizer", kind="other", bytes=_UPDATED * shards, on_host=True
        )


def _computation(one: recorded.Operation, phase: Phase, unit: str) -> Computation:
    kind: ComputationKind = "matmul" if one.flops else "other"
    if "attention" in one.name:
        kind = "biased attention" if one.biased else "attention"
    return Computation(
        unit=unit,
        phase=phase,
        kind=kind,
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


def _fused(operations: Iterable[Operation]) -> Iterator[Operation]:
    """As Inductor would fuse it: products, attention and the optimizer stay as they are."""

    def kin(one: Operation) -> object:
        if isinstance(one, Computation) and one.kind == "other" and one.phase != "optimizer":
            return one.unit, one.phase
        return None

    for same, group in groupby(operations, kin):
        members = list(group)
        if same is None:
            yield from members
            continue
        first = members[0]
        assert isinstance(first, Computation)
        total = sum(one.bytes for one in members if not isinstance(one, Collective | Copy))
        kernels = -(-len(members) // _FUSED_KERNELS)
        yield replace(first, bytes=round(_FUSED_BYTES * total), kernels=kernels)


def on_nodes(work: StepWork, nodes: int) -> StepWork:
    """The same step of one rank of `nodes` times as many ranks as a node has.

    What a rank computes of its batch stays. A group of all ranks grows with them, one inside a node
    stays, one of replicas grows with the nodes. Sizes of messages are of whole tensors and stay;
    the optimizer's bytes are of a rank's shard.
    """
    ranks = nodes * work.ranks_per_node
    if ranks == work.ranks:
        return work
    shards = max(
        (one.group_size for one in work.collectives() if one.kind == "all_gather"), default=1
    )
    smaller = work.ranks / ranks if shards == work.ranks else 1.0
    operations = tuple(_on(one, work, nodes, ranks, smaller) for one in work.operations)
    return replace(work, operations=operations, ranks=ranks)


def _on(one: Operation, work: StepWork, nodes: int, ranks: int, smaller: float) -> Operation:
    if isinstance(one, Computation) and one.phase != "optimizer":
        return one
    if not isinstance(one, Collective):
        return replace(one, bytes=max(1, round(one.bytes * smaller)))
    if one.group_size == work.ranks:
        return replace(one, group_size=ranks)
    if one.kind == "all_reduce" and one.group_size > one.group_per_node:
        return replace(one, group_size=max(1, round(one.group_size * nodes / work.nodes)))
    return one
