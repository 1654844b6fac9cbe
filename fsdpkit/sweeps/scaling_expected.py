"""What a scaling study is expected to show, before any of its sizes is submitted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from fsdpkit.reporting.scales import number
from fsdpkit.runs.predicted import Span
from fsdpkit.sweeps.scaling import Mode

HEAD = ("MODE", "NODES", "RANKS", "PREDICTED/S", "FOUR OF FIVE BETWEEN", "EFFICIENCY", "BY")
ABSENT = "–"


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """One size. rate None: nothing is known of it."""

    mode: Mode
    nodes: int
    ranks: int
    rate: Span | None = None
    """Tokens per second of all ranks, or samples, as `unit` says."""
    unit: Literal["tokens", "samples"] = "tokens"
    efficiency: float | None = None
    """Of the middle, against the smallest size of its mode."""
    source: Literal["plan", "estimate"] | None = None
    """`plan`: fsdpkit plan was asked about this very size. `estimate`: a closed form."""
    rests_on: str = ""


def with_efficiency(sizes: Sequence[Expected]) -> list[Expected]:
    """Sizes of one mode, the smallest first: work per second and node, against the first's. Sizes
    whose speed counts something else than the first's are compared with nothing."""
    first = sizes[0] if sizes else None
    if first is None or first.rate is None:
        return list(sizes)
    of_one = first.rate.middle / first.nodes
    return [
        msgspec.structs.replace(one, efficiency=one.rate.middle / one.nodes / of_one)
        if one.rate is not None and one.unit == first.unit
        else one
        for one in sizes
    ]


def rows(sizes: Iterable[Expected]) -> list[list[str]]:
    return [
        [
            one.mode,
            str(one.nodes),
            str(one.ranks),
            ABSENT if one.rate is None else f"{number(one.rate.middle, 2)} {one.unit}",
            ABSENT
            if one.rate is None
            else f"{number(one.rate.low, 2)} to {number(one.rate.high, 2)}",
            ABSENT if one.efficiency is None else f"{one.efficiency:.0%}",
            one.source or ABSENT,
        ]
        for one in sizes
    ]


def in_words(one: Expected) -> str:
    what = f"{one.mode} {one.nodes} nodes"
    if one.rate is None:
        return f"{what}: nothing is known"
    share = "" if one.efficiency is None else f", efficiency {one.efficiency:.0%}"
    low, high = number(one.rate.low, 2), number(one.rate.high, 2)
    return f"{what}: {number(one.rate.middle, 2)} {one.unit}/s expected ({low} to {high}){share}"


def where_it_would_stop(sizes: Sequence[Expected], bound: float | None) -> str | None:
    """In words, the first size of one mode that is expected under the bound, behind which no larger
    one would be tried; None: none is."""
    if bound is None:
        return None
    for one, larger in pairwise(sizes):
        if one.efficiency is not None and one.efficiency < bound:
            return (
                f"{one.mode}: {one.nodes} nodes are expected at {one.efficiency:.0%}, under the "
                f"bound of {bound:.0%}: {larger.nodes} nodes would not be tried"
            )
    return None


def by_size(sizes: Iterable[Expected]) -> dict[str, float]:
    """Tokens per second as a study keeps them, by `weak 2`."""
    return {
        f"{one.mode} {one.nodes}": one.rate.middle
        for one in sizes
        if one.rate is not None and one.unit == "tokens"
    }
