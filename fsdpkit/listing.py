"""A list in a sentence, cut where it would hide the rest of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sized

_NUMBERED = re.compile(r"(.*?)([0-9]{1,11})", re.DOTALL)


def first_of(items: Iterable[object], most: int, separator: str = ", ") -> str:
    """`a, b and 3 more`: the first `most` items, and how many were left out."""
    words = [str(item) for item in items]
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return separator.join(words[:most]) + more


def counted(things: Sized | int, name: str) -> str:
    """`1 node`, `1,200 nodes`."""
    number = things if isinstance(things, int) else len(things)
    return f"{number:,} {name}{'' if number == 1 else 's'}"


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


def node_list(names: Iterable[str], separator: str = ",") -> str:
    """`login,node[001-120,200]`, as Slurm writes lists of nodes; names without a number first."""
    found, numbered = [], dict[str, list[str]]()
    for name in sorted(set(names)):
        if match := _NUMBERED.fullmatch(name):
            numbered.setdefault(match[1], []).append(match[2])
        else:
            found.append(name)
    for stem, digits in numbered.items():
        padded = any(each.startswith("0") and each != "0" for each in digits)
        for width in dict.fromkeys(len(each) * padded for each in digits):
            shown = spans((int(d) for d in digits if len(d) * padded == width), width=width)
            found.append(f"{stem}{shown}" if shown.isdigit() else f"{stem}[{shown}]")
    return separator.join(found)
