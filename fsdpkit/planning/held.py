"""A tape for debugging: which layers hold activations when backward begins, which units are whole
at once, and whether checkpointed layers let go of what they compute again. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from fsdpkit.planning.replay import alive_at, events
from fsdpkit.planning.tape import HOST, MemoryBlock, Tape, layer_of

MESSAGES = "messages"
_OF_BACKWARD = ("backward", "recompute")


@dataclass(frozen=True)
class Kept:
    """Bytes of activations and scores at the last backward's begin, by layer, largest first."""

    by_layer: dict[str, int]
    checkpointed: tuple[str, ...]
    """Layers whose forward runs again within backward."""
    inside: dict[str, int]
    """Of those layers what they keep beside the result: nothing, if all is well."""
    again: int
    """What the largest of them makes anew for its backward."""

    @property
    def bytes(self) -> int:
        return sum(self.by_layer.values())


def kept_for_backward(tape: Tape) -> Kept:
    begin, end = last_step(tape)
    step = [b for b in tape.blocks if begin < b.born <= end]
    first = min((b.born for b in step if b.phase in _OF_BACKWARD), default=end)
    there = [
        block
        for block in alive_at(tape, first - 1)
        if begin < block.born and block.kind in ("activations", "logits")
    ]
    again: Counter[str] = Counter()
    for block in step:
        if block.phase == "recompute" and block.stream != HOST and block.kind == "activations":
            again[layer_of(block.module)] += block.size
    inside = (b for b in there if layer_of(b.module) in again and not b.handed_on)
    return Kept(
        by_layer=_by_layer(there),
        checkpointed=tuple(again),
        inside=_by_layer(inside),
        again=max(again.values(), default=0),
    )


def units_at_most(tape: Tape) -> dict[str, int]:
    """Bytes of gathered weights by unit when they are most, in the last step, the largest first;
    under `messages` the buffers of collectives."""
    begin, end = last_step(tape)
    now: Counter[str] = Counter()
    most: dict[str, int] = {}
    total = highest = 0
    for event, block, is_birth in events(tape):
        if block.kind not in ("gathered", "reduction") or block.stream == HOST or event > end:
            continue
        change = block.size if is_birth else -block.size
        now[block.unit or MESSAGES] += change
        total += change
        if event > begin and total > highest:
            highest, most = total, {name: size for name, size in now.most_common() if size}
    return most


def last_step(tape: Tape) -> tuple[int, int]:
    """Its first event less one, and its last."""
    steps = tape.steps
    begin = steps[-2] if len(steps) > 1 else tape.began
    return begin, steps[-1] if steps else tape.events


def _by_layer(blocks: Iterable[MemoryBlock]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for block in blocks:
        sizes[layer_of(block.module)] += block.size
    return dict(sizes.most_common())
