"""Saving T5 v1.1-large, ours and plain torch's, in the background and not: checkpoint_ranks.py."""

from __future__ import annotations

from benchmarks.checkpoints import start
from benchmarks.gpu_parts.part import Part, Row
from benchmarks.gpu_parts.trial import plan


def run(part: Part) -> None:
    def samples() -> Row:
        words = plan("t5-v1.1-large", dry=part.dry).words
        return {"samples": start("save", 1, part.scratch, 1, 5, words)[0]}

    part.measure("large", samples, needs_s=60)
