"""What is tried on T5 v1.1-large, in the order in which it is tried. Standard library only.

Each step is measured on top of those before it that paid. What a compiled block always does, such
as one product for q, k and v, is in all rows but the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]


class Step(NamedTuple):
    """`words` are its settings as KEY=VALUE; `searches`: the best batch is looked for, too."""

    name: str
    words: tuple[str, ...]
    searches: bool = False


FIRST = "attention sdpa, compiled"
BATCH = 64
COMMON = ("precision.param=bfloat16", "model.dropout_rate=0", "optimizer.lr=1e-4")
START = (
    "model.attention=sdpa",
    "compile=true",
    "optimizer.implementation=fused",
    "loss=chunked",
)

STEPS = (
    Step("attention triton", ("model.attention=triton",)),
    Step("largest batch", (), searches=True),
    Step("loss in one piece", ("loss=whole",)),
    Step("shard_grad_op", ("sharding.strategy=shard_grad_op",)),
)

DROPOUT = "dropout 0.1"
UNCOMPILED = "not compiled"
PAYS = 1.005
"""A step is kept when it makes training faster by this factor."""


def fastest_row(rows: Sequence[Row], part: str = "speed") -> Row | None:
    """Of those measured so far without dropout; it has `words`, `rows` and `sequences_per_s`."""
    fits = [
        row
        for row in rows
        if row["part"] == part
        and row["status"] == "measured"
        and "sequences_per_s" in row
        and DROPOUT not in row["name"]
    ]
    return max(fits, key=lambda row: float(row["sequences_per_s"]), default=None)


def best_words(rows: Sequence[Row]) -> tuple[str, ...]:
    """Settings of the fastest row, or those of the first step where nothing was measured."""
    row = fastest_row(rows)
    return tuple(row["words"]) if row else (*COMMON, *START)
