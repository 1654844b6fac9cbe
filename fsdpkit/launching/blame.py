"""Which of a node's ranks the others are waiting for, according to their stacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fsdpkit.failures.stacks import current_thread, waits_in


@dataclass(frozen=True)
class RankPlace:
    """Where the main thread of a rank is."""

    words: str
    """`it is at train.py:88 in forward`; empty: its stack says nothing."""
    kind: Literal["collective", "backward", "own"]
    """`backward`: in autograd's engine, which computes gradients and waits for those of other ranks
    (DistributedDataParallel); nobody can tell which."""


def standing_out(places: Mapping[int, RankPlace]) -> tuple[int, str] | None:
    """The one rank that is not waiting as the others are, and where it is; None if none stands out.
    Others must be waiting: a single rank, or all ranks in their own code, show nothing."""
    own = {rank: place for rank, place in places.items() if place.kind == "own"}
    if not own:  # then the others may be waiting for one that computes gradients
        own = {rank: place for rank, place in places.items() if place.kind == "backward"}
    if len(own) == len(places) > 1:
        own = _odd_one(own)
    named = {rank: place for rank, place in own.items() if place.words}
    if len(places) == 1 or len(named) < len(places):
        return next(((rank, named[rank].words) for rank in sorted(named)), None)
    return None


def _odd_one(places: Mapping[int, RankPlace]) -> dict[int, RankPlace]:
    """Of three or more ranks, the only one that is elsewhere than all others: with GPUs the others
    wait for it wherever their own code next reads a number."""
    by_words: dict[str, list[int]] = {}
    for rank, place in places.items():
        by_words.setdefault(place.words, []).append(rank)
    alone = [ranks[0] for ranks in by_words.values() if len(ranks) == 1]
    if len(places) >= 3 and len(by_words) == 2 and len(alone) == 1:
        return {alone[0]: places[alone[0]]}
    return {}


def place_of(stacks: str) -> RankPlace:
    """Where a rank is, from the output of faulthandler or py-spy."""
    calls = current_thread(stacks)
    if not calls or waits_in(calls) is not None:
        return RankPlace("", "collective")
    backward = calls[0].file.endswith("/torch/autograd/graph.py")
    return RankPlace(f"it is at {calls[0]}", "backward" if backward else "own")
