"""Does it fit: a tape, a card and what lies outside, as one answer. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from fsdpkit.planning.asked import Asked
from fsdpkit.planning.outside import SAFE, Outside, outside
from fsdpkit.planning.replay import (
    Replayed,
    alive_at,
    by_kind,
    replay,
)
from fsdpkit.planning.tape import Block, Kind, Tape

Fit = Literal["fits", "tight", "does not fit"]
"""tight: only by giving cached memory back to the device, which costs time in each step."""


@dataclass(frozen=True)
class Verdict:
    """All of it computed, nothing measured. Bytes."""

    asked: Asked
    fit: Fit
    expandable: Replayed
    segments: Replayed
    """The same tape without expandable segments."""
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
    gathered: int
    """Most bytes of gathered weights and of buffers of messages at one time."""
    after_forward: int
    """Bytes of activations and scores when backward begins."""
    notes: tuple[str, ...] = ()
    tape: Tape = field(default_factory=Tape, repr=False)

    @property
    def replayed(self) -> Replayed:
        return self.expandable if self.asked.expandable else self.segments

    @property
    def total(self) -> int:
        return self.replayed.reserved + self.outside.bytes


def verdict(asked: Asked, tape: Tape, notes: Iterable[str] = ()) -> Verdict:
    """The answer for one tape."""
    groups = sum(ranks > 1 for ranks in tape.groups.values())
    around = outside(asked.card, groups, tape.torch)
    room = int(asked.card.memory * SAFE) - around.bytes
    grown = replay(tape, expandable=True, workspace=around.workspace)
    pieces = replay(tape, expandable=False, workspace=around.workspace)
    wanted = grown if asked.expandable else pieces
    fit: Fit = "fits"
    if wanted.reserved > room:
        squeezed = replay(
            tape, expandable=asked.expandable, capacity=max(0, room), workspace=around.workspace
        )
        fit = "does not fit" if squeezed.shortage else "tight"
    there = alive_at(tape, wanted.peak)
    kinds = by_kind(there)
    if around.workspace:
        kinds["other"] = kinds.get("other", 0) + around.workspace
    most = list(kinds)[:2]
    kept = [b for b in alive_at(tape, tape.began) if b.kind == "weights"]
    return Verdict(
        asked=asked,
        fit=fit,
        expandable=grown,
        segments=pieces,
        outside=around,
        room=room,
        kinds=kinds,
        makers={kind: _sums(there, kind, lambda b: b.operation) for kind in most},
        holders={kind: _sums(there, kind, lambda b: layer_of(b.module)) for kind in most},
        weights=sum(b.size for b in kept),
        optimizer=sum(b.size for b in tape.blocks if b.kind == "optimizer" and b.stream >= 0),
        gathered=_most(tape, ("gathered", "reduction")),
        after_forward=_most(tape, ("activations", "logits")),
        notes=(*notes, *around.notes, *_assumptions(tape), *_recorded(tape)),
        tape=tape,
    )


def layer_of(path: str) -> str:
    """The repeated layer that a module belongs to: `encoder.block.3` of what lies in it."""
    if found := re.match(r"(?:.*?\.)?\d+(?=\.|$)", path):
        return found[0]
    return path or "outside of modules"


def _sums(blocks: list[Block], kind: Kind, key: Callable[[Block], str]) -> dict[str, int]:
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


def _assumptions(tape: Tape) -> Iterator[str]:
    if tape.assumed:
        places = ", ".join(tape.assumed[:3])
        more = f" and {len(tape.assumed) - 3} more" if len(tape.assumed) > 3 else ""
        yield (
            f"the host reads values, which were taken for 1: {places}{more}; where they decide "
            "what is computed, the plan holds for that case only"
        )


def _recorded(tape: Tape) -> Iterator[str]:
    if any(block.also_used_on for block in tape.blocks):
        yield (
            "fsdp1 keeps freed memory until other streams are done with it, which is not modelled: "
            "reserved may be more than it says"
        )
