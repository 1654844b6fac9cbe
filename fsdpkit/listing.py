"""A list in a sentence, cut where it would hide the rest of it."""

from __future__ import annotations

from collections.abc import Iterable


def first_of(items: Iterable[object], most: int, separator: str = ", ") -> str:
    """`a, b and 3 more`: the first `most` items, and how many were left out."""
    words = [str(item) for item in items]
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return separator.join(words[:most]) + more


def spans(numbers: Iterable[int], separator: str = ",", width: int = 0) -> str:
    """`0-3,7`: neighbours together, each written with at least `width` digits."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return separator.join(
        f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}"
        for low, high in found
    )
