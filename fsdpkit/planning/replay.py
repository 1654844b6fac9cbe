"""A tape through the allocator: how much at which moment, and of what.

A tape whose requests do not fit ends where the first of them fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from fsdpkit.planning.allocator import Allocator, SegmentPiece, Shortage, rounded
from fsdpkit.planning.tape import HOST, Kind, MemoryBlock, Tape

CUBLAS_BYTES = 32 * 2**20
"""A cuBLAS workspace on Hopper, one for each stream that multiplies; it lies in torch's own pool
(torch.cuda.memory docs, CUBLAS_WORKSPACE_CONFIG; pytorch#144397)."""


@dataclass(frozen=True)
class Replayed:
    """Peaks in bytes, over the steps. `reserved` counts building, too: what it cached stays."""

    allocated: int
    reserved: int
    retries: int
    peak: int
    """Event of the peak of `allocated`."""
    where: str
    """At the peak: "backward of decoder.block.3, native_dropout"."""
    step: int
    """Of the peak, from 0."""
    host: int
    """Most bytes of host memory that tensors took."""
    shortage: Shortage | None = None


def replay(
    tape: Tape,
    *,
    capacity: int | None = None,
    workspace: int = CUBLAS_BYTES,
) -> Replayed:
    """workspace: bytes of cuBLAS, which are there from the first product on."""
    memory = Allocator(capacity=capacity)
    held: dict[int, SegmentPiece] = {}
    allocated = reserved = peak = host = most_host = 0
    cause: MemoryBlock | None = None
    event, block = tape.began, None
    shortage = None
    try:
        if workspace:
            memory.allocate(workspace)
        for event, block, is_birth in events(tape):
            if block.stream == HOST:
                host += _on_host(block) if is_birth else -_on_host(block)
                most_host = max(most_host, host)
                continue
            if not block.size:
                continue
            if not is_birth:
                memory.free(held.pop(id(block)))
                continue
            held[id(block)] = memory.allocate(block.size, block.stream)
            if event > tape.began:
                reserved = max(reserved, memory.reserved)
                if memory.allocated > allocated:
                    allocated, peak, cause = memory.allocated, event, block
    except Shortage as found:
        shortage, peak, cause = found, event, block
        allocated, reserved = max(allocated, memory.allocated), memory.reserved
    return Replayed(
        allocated=allocated,
        reserved=reserved,
        retries=memory.retries,
        peak=peak,
        where=place_of(cause) if cause else "",
        step=sum(end < peak for end in tape.steps),
        host=most_host,
        shortage=shortage,
    )


def _on_host(block: MemoryBlock) -> int:
    """Bytes that a block of host memory takes: FSDP pins the shards and gradients that it offloads,
    and what torch pins is rounded up to a power of two (ATen/core/CachingHostAllocator.h)."""
    pinned = block.size and block.kind in ("weights", "gradients")
    return 1 << (block.size - 1).bit_length() if pinned else block.size


def events(tape: Tape) -> Iterator[tuple[int, MemoryBlock, bool]]:
    """(number, block, whether it is born) in order."""
    both = [(block.born, block, True) for block in tape.blocks]
    both += [(block.died, block, False) for block in tape.blocks if block.died is not None]
    return iter(sorted(both, key=lambda each: each[0]))


def place_of(block: MemoryBlock) -> str:
    """The moment in words."""
    module = f" of {block.module}" if block.module else ""
    phase = {"between": "between backward and optimizer", "recompute": "recomputation"}
    return f"{phase.get(block.phase, block.phase)}{module}, {block.operation}"


def alive_at(tape: Tape, event: int) -> list[MemoryBlock]:
    """The device's blocks that are there after `event`."""
    return [
        block
        for block in tape.blocks
        if block.stream != HOST
        and block.born <= event
        and (block.died is None or block.died > event)
    ]


def by_kind(blocks: list[MemoryBlock]) -> dict[Kind, int]:
    """Bytes of each kind, the largest first."""
    sizes: Counter[Kind] = Counter()
    for block in blocks:
        sizes[block.kind] += rounded(block.size) if block.size else 0
    return {kind: size for kind, size in sizes.most_common() if size}
