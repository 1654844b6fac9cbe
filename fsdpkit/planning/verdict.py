"""Does it fit: a tape, a card and what lies outside, as one answer. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from fsdpkit.planning.asked import AskedStep
from fsdpkit.planning.held import Kept, kept_for_backward, units_at_most
from fsdpkit.planning.outside import SAFE, Outside, outside
from fsdpkit.planning.replay import Replayed, alive_at, by_kind, replay
from fsdpkit.planning.tape import Kind, MemoryBlock, Tape, layer_of

Fit = Literal["fits", "tight", "does not fit", "not known"]
"""tight: only by giving cached memory back to the device, which costs time in each step. not known:
values decide it, or what was followed fits and the rest was not followed."""


@dataclass(frozen=True)
class MemoryVerdict:
    """All of it computed, nothing measured. Bytes."""

    asked: AskedStep
    fit: Fit
    replayed: Replayed
    outside: Outside
    room: int
    """What torch may reserve: the card's safe share less what is outside."""
    kinds: dict[Kind, int]
    """What the peak is made of."""
    makers: dict[Kind, dict[str, int]]
    """What made the largest kinds' blocks: operations."""
    holders: dict[Kind, dict[str, int]]
    """Which layers hold them."""
    weights: int
    optimizer: int
    copy: int
    """Of the shards in host memory, from which a checkpoint is written while training goes on."""
    gathered: int
    """Most bytes of gathered weights and of buffers of messages at one time."""
    units: dict[str, int]
    """Gathered weights by unit when they are most."""
    kept: Kept
    least: int | None = None
    """`total` with what depends on values as small as it can be; None: nothing does."""
    notes: tuple[str, ...] = ()
    tape: Tape = field(default_factory=Tape, repr=False)

    @property
    def is_lower_bound(self) -> bool:
        """Whether something could not be followed."""
        return bool(self.tape.lacking)

    @property
    def host(self) -> int:
        """Bytes of host memory that this rank's tensors take at most."""
        return self.replayed.host + self.copy

    @property
    def total(self) -> int:
        return self.replayed.reserved + self.outside.bytes


def verdict(asked: AskedStep, tape: Tape, notes: Iterable[str] = ()) -> MemoryVerdict:
    """The answer for one tape, and what was assumed in it the other way round."""
    one = _verdict(asked, tape, notes)
    if tape.least is None:
        return one
    turned = replace(tape.least, assumed=tape.assumed, lacking=tape.lacking, least=tape)
    other = _verdict(asked, turned, notes)
    low, high = sorted((one, other), key=lambda each: each.total)
    fit = high.fit if high.fit in ("fits", low.fit) else "not known"
    return replace(high, fit=fit, least=low.total)


def _verdict(asked: AskedStep, tape: Tape, notes: Iterable[str]) -> MemoryVerdict:
    groups = sum(ranks > 1 for ranks in tape.groups.values())
    around = outside(asked.card, groups, tape.torch)
    room = int(asked.card.memory * SAFE) - around.bytes
    wanted = replay(tape, workspace=around.workspace)
    fit: Fit = "not known" if tape.lacking else "fits"
    if wanted.reserved > room:
        squeezed = replay(tape, capacity=max(0, room), workspace=around.workspace)
        if squeezed.shortage:
            fit = "does not fit"
        elif not tape.lacking:
            fit = "tight"
    there = alive_at(tape, wanted.peak)
    kinds = by_kind(there)
    if around.workspace:
        kinds["other"] = kinds.get("other", 0) + around.workspace
    most = list(kinds)[:2]
    kept = [b for b in alive_at(tape, tape.began) if b.kind == "weights"]
    copy = _state_bytes(tape) if asked.settings.checkpoint.background and not asked.model else 0
    on_host = _host_problem(asked, wanted.host + copy)
    return MemoryVerdict(
        asked=asked,
        fit=fit,
        replayed=wanted,
        outside=around,
        room=room,
        kinds=kinds,
        makers={kind: _sums(there, kind, lambda b: b.operation) for kind in most},
        holders={kind: _sums(there, kind, lambda b: layer_of(b.module)) for kind in most},
        weights=sum(b.size for b in kept),
        optimizer=sum(b.size for b in tape.blocks if b.kind == "optimizer" and b.stream >= 0),
        copy=copy,
        gathered=_most(tape, ("gathered", "reduction")),
        units=units_at_most(tape),
        kept=kept_for_backward(tape),
        notes=(*notes, *tape.notes, *around.notes, *on_host, *_of_tape(tape)),
        tape=tape,
    )


def _state_bytes(tape: Tape) -> int:
    """Weights and optimizer state of one rank, wherever they are."""
    weights = (
        block.size
        for block in tape.blocks
        if block.kind == "weights"
        and block.born <= tape.began
        and (block.died is None or block.died > tape.began)
    )
    return sum(weights) + sum(b.size for b in tape.blocks if b.kind == "optimizer")


def _host_problem(asked: AskedStep, bytes_of_rank: int) -> Iterator[str]:
    """Slurm would end a job that takes more host memory than it asks for."""
    given, needed = asked.card.job_memory_mb, asked.gpus * bytes_of_rank >> 20
    if given is not None and needed > given:
        yield (
            f"the tensors of a node's {asked.gpus} ranks take {needed} MB of host memory, and the "
            f"job gets {given} MB of a node: ask for more with resources.memory, or set "
            "training.checkpoint.background = false"
        )


def _sums(
    blocks: list[MemoryBlock], kind: Kind, key: Callable[[MemoryBlock], str]
) -> dict[str, int]:
    sums: dict[str, int] = {}
    for block in blocks:
        if block.kind == kind:
            sums[key(block)] = sums.get(key(block), 0) + block.size
    return dict(sorted(sums.items(), key=lambda pair: -pair[1])[:3])


def _most(tape: Tape, kinds: tuple[Kind, ...]) -> int:
    """Most bytes of these kinds at one time, in the steps."""
    return max((sum(sizes.get(k, 0) for k in kinds) for _, sizes in course(tape)), default=0)


def course(tape: Tape) -> Iterator[tuple[int, dict[Kind, int]]]:
    """(event, bytes by kind then), from the first step on; the same dict each time."""
    sizes: dict[Kind, int] = {}
    changes = [(b.born, b.kind, b.size) for b in tape.blocks if b.stream >= 0]
    changes += [(b.died, b.kind, -b.size) for b in tape.blocks if b.stream >= 0 and b.died]
    for event, kind, change in sorted(changes):
        sizes[kind] = sizes.get(kind, 0) + change
        if event > tape.began:
            yield event, sizes


def _of_tape(tape: Tape) -> Iterator[str]:
    if tape.lacking:
        yield f"a lower bound, for not all was followed: {_first(tape.lacking)}"
    if tape.uncompiled:
        yield (
            "what the run compiles is followed uncompiled, which usually takes more: "
            f"{_first(tape.uncompiled)}"
        )
    if tape.launched:
        yield (
            "Triton kernels are not run, and make no tensors: "
            f"{_first(tape.launched)}; a step takes at least the time in which they read or write "
            "each of theirs once"
        )
    yield from _assumptions(tape)
    if any(block.also_used_on for block in tape.blocks):
        yield (
            "fsdp1 keeps freed memory until other streams are done with it, which is not modelled: "
            "reserved may be more than it says"
        )


def _assumptions(tape: Tape) -> Iterator[str]:
    if not tape.assumed:
        return
    both = "followed both ways: numbers as 1 and as 0, conditions true and false, sizes at their "
    both += "largest and none"
    one = "followed with numbers as 1, conditions true and sizes at their largest alone"
    yield (
        f"values decide what is computed: {_first(tape.assumed)}; {both if tape.least else one}. "
        "Sizes lie between; numbers beyond 1 may do otherwise"
    )


def _first(places: list[str]) -> str:
    more = f"; and {len(places) - 3} more" if len(places) > 3 else ""
    return "; ".join(places[:3]) + more
