"""The allocator's written rules, one by one, and what must hold whatever is asked for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdpkit.planning.allocator import (
    KIB,
    LARGE_SEGMENT,
    MIB,
    SMALL_SEGMENT,
    Allocator,
    SegmentPiece,
    Shortage,
    rounded,
)


def test_requests_are_rounded_to_512_bytes():
    assert [rounded(n) for n in (1, 512, 513, 3 * KIB + 1)] == [512, 512, 1024, 3 * KIB + 512]


def test_the_smallest_block_that_is_large_enough_is_taken():
    memory = Allocator()
    large, other, small = (memory.allocate(size * MIB) for size in (40, 20, 30))
    memory.free(large)
    memory.free(small)
    assert other.used
    assert memory.allocate(28 * MIB).start == large.start, "the one at the growing end is the last"
    assert memory.allocate(11 * MIB).size == 11 * MIB


def test_streams_share_nothing():
    memory = Allocator()
    memory.free(memory.allocate(20 * MIB, stream=0))
    memory.allocate(20 * MIB, stream=1)
    assert memory.reserved == 40 * MIB


def test_small_and_large_requests_share_nothing():
    memory = Allocator()
    memory.free(memory.allocate(20 * MIB))
    memory.allocate(KIB)
    assert memory.reserved == LARGE_SEGMENT + SMALL_SEGMENT


def test_a_segment_grows_by_what_a_request_lacks():
    memory = Allocator()
    held = [memory.allocate(20 * MIB) for _ in range(4)]
    memory.free(held[2])
    memory.free(held[3])
    memory.allocate(60 * MIB)
    assert memory.reserved == 100 * MIB


def test_what_is_cached_is_given_back_before_a_request_fails():
    memory = Allocator(capacity=100 * MIB)
    memory.free(memory.allocate(60 * MIB, stream=1))
    memory.allocate(80 * MIB)
    assert (memory.reserved, memory.retries) == (80 * MIB, 1)
    with pytest.raises(Shortage) as short:
        memory.allocate(40 * MIB)
    assert short.value.requested == 40 * MIB


def test_an_expandable_segment_gives_back_what_lies_between_used_parts_and_grows_there_again():
    memory = Allocator(capacity=100 * MIB)
    held = [memory.allocate(20 * MIB) for _ in range(4)]
    memory.free(held[1])
    memory.allocate(40 * MIB, stream=1)
    assert (memory.reserved, memory.retries) == (100 * MIB, 1)


Request = tuple[str, int, int]
requests = st.lists(
    st.tuples(
        st.sampled_from(["allocate", "free"]),
        st.one_of(st.integers(1, 2 * MIB), st.integers(1, 64 * MIB)),
        st.integers(0, 2),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(asked=requests, capacity=st.one_of(st.none(), st.integers(64 * MIB, 512 * MIB)))
def test_whatever_is_asked_for(asked: list[Request], capacity: int | None):
    memory = Allocator(capacity=capacity)
    held: list[SegmentPiece] = []
    for what, size, stream in asked:
        if what == "free" and held:
            memory.free(held.pop(size % len(held)))
        elif what == "allocate":
            try:
                held.append(memory.allocate(size, stream))
            except Shortage:
                assert capacity is not None
        _is_sound(memory, held)
    for piece in held:
        memory.free(piece)
    _is_sound(memory, [])
    assert memory.allocated == 0
    neighbours = [p for p in memory.pieces() if p.after and p.after.mapped]
    assert not neighbours, "what is free and adjacent is one block"
    memory.give_back()
    assert memory.reserved == 0


def _is_sound(memory: Allocator, held: list[SegmentPiece]) -> None:
    pieces = sorted(memory.pieces(), key=lambda piece: piece.start)
    for one, other in pairwise(pieces):
        assert one.start + one.size <= other.start, "blocks overlap"
    assert {id(p) for p in pieces if p.used} == {id(p) for p in held}
    assert memory.allocated == sum(piece.size for piece in held)
    assert memory.reserved == sum(piece.size for piece in pieces)
    assert memory.allocated <= memory.reserved
    if memory.capacity is not None:
        assert memory.reserved <= memory.capacity
