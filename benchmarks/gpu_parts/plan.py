"""The order of the parts and the time that each may take. Standard library only.

A section is one command of nine minutes at most, compilation counted, the most valuable first: a
machine that is taken away leaves the answers that matter most.
"""

from __future__ import annotations

from typing import NamedTuple


class Section(NamedTuple):
    """`parts`: seconds that each may take; what one leaves goes to those after it."""

    answers: str
    parts: dict[str, int]


SECTION_S = 540

SECTIONS = {
    1: Section(
        "what this GPU can do at most, and which attention is right and fastest",
        {"ceilings": 60, "attention": 200, "correctness": 200, "triton": 80},
    ),
    2: Section("sequences/s and MFU of T5 v1.1-large, step by step", {"speed": 540}),
    3: Section(
        "where the time of a step goes, and whether a user gets it",
        {"profile": 240, "trainer": 300},
    ),
    4: Section(
        "how peers do, what a save costs, what memory is used for, what monitoring sees",
        {
            "peers-eager": 70,
            "peers-sdpa": 70,
            "peers-compiled": 120,
            "memory": 110,
            "checkpoints": 120,
            "machine": 50,
        },
    ),
    5: Section("the same speed for T5 v1.1-xl", {"xl": 540}),
}

PARTS = {name: number for number, section in SECTIONS.items() for name in section.parts}
"""The number of each part's section."""

REPEATED_WHOLE = ("checkpoints",)
"""Their rows build on one another in one process: a part that was cut off begins anew."""


def budget_s(part: str, wanted: tuple[str, ...], left_s: float) -> float:
    """Seconds for `part`, the first of `wanted` of its section, of the `left_s` of the section."""
    limits = SECTIONS[PARTS[part]].parts
    return left_s * limits[part] / sum(limits[name] for name in wanted)
