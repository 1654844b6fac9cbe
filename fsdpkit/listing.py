"""A list in a sentence, cut where it would hide the rest of it."""

from __future__ import annotations

from collections.abc import Iterable


def first_of(items: Iterable[object], most: int, separator: str = ", ") -> str:
    """`a, b and 3 more`: the first `most` items, and how many were left out."""
    words = [str(item) for item in items]
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return separator.join(words[:most]) + more
