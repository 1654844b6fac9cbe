"""When a rank had printed how much, and how many steps its node made after that.

From the samples of its node, which are seconds to minutes apart: each time is a lower bound, and of
what was printed after the last sample nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fsdpkit.runs.samples import Sample

_STREAMS = {".out": 0, ".err": 1}
_LONG_AGO_S, _SOME_STEPS = 60.0, 3
"""What a rank said so long before the end of its launch, and made steps after, it got over."""


class Ago(NamedTuple):
    """How long before the end of the launch, at least."""

    seconds: float
    steps: int


class PrintedWhen:
    """What the samples of one node say of a launch."""

    def __init__(self, samples: Sequence[Sample], launch: int) -> None:
        own = [sample for sample in samples if sample.launch == launch]
        end_s = own[-1].time_s if own else 0.0
        steps = max((sample.optimizer_steps or 0 for sample in own), default=0)
        self._samples = [
            (Ago(end_s - sample.time_s, steps - (sample.optimizer_steps or 0)), sample.printed)
            for sample in own
        ]

    @property
    def seen_s(self) -> float:
        """How much of the launch the samples cover."""
        return self._samples[0][0].seconds if self._samples else 0.0

    def ago(self, rank: int, file: Path, size: int) -> Ago | None:
        """Since when so much stands in the rank's file; None if that is not known."""
        place = _STREAMS[file.suffix]
        return next((a for a, p in self._samples if rank in p and p[rank][place] >= size), None)

    def last(self, rank: int) -> Ago | None:
        """When it printed anything for the last time."""
        newest = self._samples[-1][1].get(rank) if self._samples else None
        same = (ago for ago, printed in self._samples if printed.get(rank) == newest)
        return None if newest is None else next(same)

    def got_over(self, rank: int, file: Path) -> int:
        """How many of the first bytes of its file are older than what can have ended the rank."""
        place = _STREAMS[file.suffix]
        old = (
            printed[rank][place]
            for ago, printed in self._samples
            if rank in printed and ago.seconds >= _LONG_AGO_S and ago.steps >= _SOME_STEPS
        )
        return max(old, default=0)
