"""The steps from the readable path to the fastest, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Step(NamedTuple):
    """Settings that may make training faster; `saves_memory`: then a larger batch is tried.

    Sizes are searched before anything is compiled, which takes longer than all the steps.
    """

    name: str
    words: tuple[str, ...]
    saves_memory: bool


STEPS = (
    Step("attention sdpa", ("model.attention=sdpa",), True),
    Step("compiled blocks", ("compile=true",), False),
    Step("fused optimizer", ("optimizer.implementation=fused",), False),
    Step("chunked loss", ("loss=chunked",), False),
    Step("two blocks a unit", ("sharding.blocks_per_unit=2",), False),
    Step("attention flex", ("model.attention=flex",), False),
    Step("attention triton", ("model.attention=triton",), False),
)
"""Each on top of those before it that paid; the first plan is attention math, foreach AdamW."""

KEPT = "large, kept"
"""Name of the rows that list the steps kept so far; the last one counts."""

PAYS = 1.02
"""A step is kept when it makes a step of training faster by this factor, at its best batch."""

COMMON = ("precision.param=bfloat16", "model.dropout_rate=0", "optimizer.lr=1e-4")
START = ("model.attention=math", "optimizer.implementation=foreach")
FIRST = STEPS[:4]
KEPT_BY_DEFAULT = tuple(step.name for step in FIRST)
"""What other parts take where not all of the first steps have been measured."""


def words_of(kept: Collection[str]) -> tuple[str, ...]:
    """The settings of the steps that were kept."""
    return START + tuple(word for step in STEPS if step.name in kept for word in step.words)
