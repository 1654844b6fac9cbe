"""CUDA's caching allocator, by its rules, without CUDA: what a program's requests become.

Rules of torch 2.13 (`c10/cuda/CUDACachingAllocator.cpp` and `c10/core/AllocatorConfig.h`):

- A request is rounded up to 512 bytes. Up to 1 MiB it goes to the small pool, else to the large
  one. Each stream has pools of its own: memory of one is never handed to another.
- A free block of the pool is taken by best fit: the smallest that is large enough, of equal ones
  the lowest address, and the one at the growing end last. Every rest of 512 bytes is split off.
- Segments are expandable, as fsdpkit sets by default: each pool of each stream is one range of
  addresses that grows at its end (or where it was given back) by 2 MiB in the small pool and 20 MiB
  in the large one.
- A freed block merges with free neighbours of its segment and stays reserved.
- When the device has no more, what is free is given back step by step, once; then the request is
  tried again, and fails.

Not modelled: segments that do not grow, garbage_collection_threshold, max_split_size_mb and
roundup_power2_divisions, which are off by default, private pools of CUDA graphs, and the wait for
other streams (`record_stream`) before a block can be handed out again: where a program does that
(FSDP1), `reserved` is a lower bound.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

KIB, MIB = 1 << 10, 1 << 20
SMALLEST = 512
SMALL_REQUEST = 1 * MIB
SMALL_SEGMENT, LARGE_SEGMENT = 2 * MIB, 20 * MIB
_RANGE = LARGE_SEGMENT << 26  # addresses of each expandable segment; a whole number of steps


class Shortage(Exception):
    """The device has not as much left. requested: bytes, of which the allocator made `rounded`."""

    def __init__(self, requested: int, rounded: int, reserved: int) -> None:
        super().__init__(f"{requested} bytes asked for, {reserved} reserved")
        self.requested, self.rounded, self.reserved = requested, rounded, reserved


@dataclass(eq=False)
class SegmentPiece:
    """Part of a segment: in use, cached, or (`mapped` False) only a range of addresses."""

    start: int
    size: int
    pool: tuple[int, bool]
    """(stream, whether it is the small one)."""
    used: bool = False
    mapped: bool = True
    before: SegmentPiece | None = None
    after: SegmentPiece | None = None


@dataclass
class Allocator:
    """capacity: bytes that it may reserve; None: any number."""

    capacity: int | None = None
    allocated: int = 0
    """Bytes in use, as rounded."""
    reserved: int = 0
    """Bytes taken from the device."""
    retries: int = 0
    """How often everything cached was given back because the device had no more."""
    _cached: dict[tuple[int, bool], list[tuple[int, int]]] = field(default_factory=dict)
    """(size, start) of the pieces that are mapped and free, in order, by pool."""
    _at: dict[int, SegmentPiece] = field(default_factory=dict)
    """The first piece of each segment, and every cached piece, by start."""
    _segments: dict[int, SegmentPiece] = field(default_factory=dict)

    def allocate(self, requested: int, stream: int = 0) -> SegmentPiece:
        """A piece for so many bytes. Raises Shortage."""
        size = rounded(requested)
        pool = (stream, size <= SMALL_REQUEST)
        piece = self._best_fit(pool, size)
        if piece is None:
            piece = self._grow(pool, size)
        if piece is None:
            self.retries += 1
            self.give_back()
            piece = self._grow(pool, size)
        if piece is None:
            raise Shortage(requested, size, self.reserved)
        self._uncache(piece)
        if piece.size > size:
            self._cache(self._split(piece, size))
        piece.used = True
        self.allocated += piece.size
        return piece

    def free(self, piece: SegmentPiece) -> None:
        assert piece.used, "freed twice"
        piece.used = False
        self.allocated -= piece.size
        self._cache(self._merge(piece))

    def give_back(self) -> None:
        """Give back to the device what is free of whole steps."""
        for piece in [self._at[start] for cached in self._cached.values() for _, start in cached]:
            self._unmap(piece)

    def pieces(self) -> Iterator[SegmentPiece]:
        """All that is mapped, segment by segment."""
        for first in self._segments.values():
            piece: SegmentPiece | None = first
            while piece is not None:
                if piece.mapped:
                    yield piece
                piece = piece.after

    # Finding

    def _best_fit(self, pool: tuple[int, bool], size: int) -> SegmentPiece | None:
        cached = self._cached.get(pool, [])
        at = bisect_left(cached, (size, -1))
        if at == len(cached):
            return None
        piece = self._at[cached[at][1]]
        # A piece that can grow counts as large as it can become.
        while (piece.before or piece.after) and at + 1 < len(cached):
            other = self._at[cached[at + 1][1]]
            if _grown(other) >= _grown(piece):
                break
            piece, at = other, at + 1
        return piece

    def _grow(self, pool: tuple[int, bool], size: int) -> SegmentPiece | None:
        """Map as much as it takes behind a free piece, or in a range of its own."""
        hole = self._hole(pool, size)
        step = SMALL_SEGMENT if pool[1] else LARGE_SEGMENT
        before = hole.before
        have = before.size if before is not None and before.mapped and not before.used else 0
        length = -(-(size - have) // step) * step
        if self.capacity is not None and self.reserved + length > self.capacity:
            return None
        if hole.size > length:
            self._split(hole, length).mapped = False
        hole.mapped = True
        self.reserved += length
        piece = self._merge(hole)
        self._cache(piece)
        return piece

    def _hole(self, pool: tuple[int, bool], size: int) -> SegmentPiece:
        """An unmapped piece that with the free one before it has room for `size`."""
        first = next((p for p in self._segments.values() if p.pool == pool), None)
        piece = first
        while piece is not None:
            if not piece.mapped:
                before = piece.before
                free = before is not None and before.mapped and not before.used
                if piece.size + (before.size if before is not None and free else 0) >= size:
                    return piece
            piece = piece.after
        piece = SegmentPiece(len(self._segments) * _RANGE, _RANGE, pool, mapped=False)
        self._segments[piece.start] = piece
        return piece

    # Pieces

    def _split(self, piece: SegmentPiece, size: int) -> SegmentPiece:
        """Cut `piece` after `size` bytes; the rest."""
        rest = SegmentPiece(
            piece.start + size, piece.size - size, piece.pool, before=piece, after=piece.after
        )
        if piece.after is not None:
            piece.after.before = rest
        piece.size, piece.after = size, rest
        return rest

    def _merge(self, piece: SegmentPiece) -> SegmentPiece:
        """`piece` with the free neighbours that are cached."""
        if (before := piece.before) is not None and before.mapped and not before.used:
            self._uncache(before)
            piece = self._join(before, piece)
        if (after := piece.after) is not None and after.mapped and not after.used:
            self._uncache(after)
            piece = self._join(piece, after)
        return piece

    def _join(self, first: SegmentPiece, second: SegmentPiece) -> SegmentPiece:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        return first

    def _unmap(self, piece: SegmentPiece) -> None:
        """Give back the steps that lie wholly inside the cached `piece`."""
        step = SMALL_SEGMENT if piece.pool[1] else LARGE_SEGMENT
        first = -(-piece.start // step) * step
        last = (piece.start + piece.size) // step * step
        if last <= first:
            return
        self._uncache(piece)
        if piece.start < first:
            inside = self._split(piece, first - piece.start)
            self._cache(piece)
            piece = inside
        if piece.start + piece.size > last:
            self._cache(self._split(piece, last - piece.start))
        piece.mapped = False
        self.reserved -= piece.size
        if (before := piece.before) is not None and not before.mapped:
            piece = self._join(before, piece)
        if (after := piece.after) is not None and not after.mapped:
            self._join(piece, after)

    def _cache(self, piece: SegmentPiece) -> None:
        insort(self._cached.setdefault(piece.pool, []), (piece.size, piece.start))
        self._at[piece.start] = piece

    def _uncache(self, piece: SegmentPiece) -> None:
        cached = self._cached[piece.pool]
        at = bisect_left(cached, (piece.size, piece.start))
        assert cached[at] == (piece.size, piece.start)
        del cached[at]
        del self._at[piece.start]


def rounded(requested: int) -> int:
    """Bytes that a request takes."""
    return max(SMALLEST, -(-requested // SMALLEST) * SMALLEST)


def _grown(piece: SegmentPiece) -> int:
    """Bytes that a free piece has or can grow to."""
    hole = piece.after
    return piece.size + (hole.size if hole is not None and not hole.mapped else 0)
