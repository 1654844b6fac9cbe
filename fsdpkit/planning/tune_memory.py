"""What candidates need of a GPU's memory: asked as seldom as can be, guessed in between.

A tape takes seconds, so most candidates are judged by those that were asked about. What surely
needs no less than one that did not fit does not fit. Of a combination asked about at two
micro-batches the rest lie on a line. Of the others a closed form guesses, corrected by how far it
was off the last time; a guess only puts off, and what is answered with was asked about itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fsdpkit.config.training import TrainingSettings
from fsdpkit.config.training.footprint import least_gpu_bytes, parameter_count
from fsdpkit.errors import FsdpkitError
from fsdpkit.planning.tune_space import Candidate, takes_no_less

MemoryOf = Callable[[TrainingSettings, int, int], int]
"""(settings, nodes, GPUs of a node) -> bytes of one GPU at the peak, all told."""

_KEPT_OF_MOVED = {"none": 0.4, "selective": 0.2, "full": 0.02}
"""What backward keeps of a block, as a share of the bytes that its forward moves; a first guess."""
_LATER, _NEVER = 1.25, 2.0
"""How far a guess must be over the room for its candidate to wait until others were asked about,
and, where the guess is one that was corrected, not to be asked about at all."""


@dataclass
class MemoryAnswers:
    """Answers so far."""

    ask: MemoryOf
    room: int
    gpus: int
    moved: Callable[[Candidate], int]
    """Bytes that the blocks' forward moves in one micro-batch."""
    seconds: float
    """After which nothing more is asked."""
    started: float = field(default_factory=time.monotonic)
    known: dict[tuple[Any, ...], dict[int, int]] = field(default_factory=dict)
    too_large: list[Candidate] = field(default_factory=list)
    failed: dict[tuple[Any, ...], str] = field(default_factory=dict)
    corrections: dict[str, float] = field(default_factory=dict)
    """By the kind of activation checkpointing: what was measured, over what was guessed."""
    asked: int = 0
    parameters: int | None = None
    """Of the whole model; None: of the T5 that the settings describe."""

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() - self.started > self.seconds

    def bytes_of(self, one: Candidate) -> int | None:
        """Asked, once; None for what cannot be answered."""
        points = self.known.setdefault(one.combination, {})
        if one.micro not in points:
            self.asked += 1
            try:
                points[one.micro] = self.ask(one.settings, one.nodes, self.gpus)
            except FsdpkitError as error:
                self.failed[one.combination] = str(error)
                return None
            self._learn(one, points[one.micro])
            if points[one.micro] > self.room:
                self.too_large.append(one)
        return points[one.micro]

    def known_bytes(self, one: Candidate) -> int | None:
        """Asked before, or on the line through two of its combination that were."""
        points = self.known.get(one.combination, {})
        if one.micro in points:
            return points[one.micro]
        if len(points) < 2:
            return None
        (a, at_a), (b, at_b) = sorted(points.items())[:2]
        return round(at_a + (at_b - at_a) * (one.micro - a) / (b - a))

    def was_asked(self, one: Candidate) -> bool:
        return one.micro in self.known.get(one.combination, {}) or one.combination in self.failed

    def surely_too_large(self, one: Candidate) -> bool:
        if one.combination in self.failed or self.least(one) > self.room:
            return True
        known = self.known_bytes(one)
        if known is not None:
            return known > self.room
        return any(takes_no_less(one, other) for other in self.too_large)

    def guessed_too_large(self, one: Candidate) -> bool:
        return self.known_bytes(one) is None and self.guess(one) > _LATER * self.room

    def hopeless(self, one: Candidate) -> bool:
        """Whether what was learned of its kind says that it is far too large."""
        how = one.settings.sharding.activation_checkpointing
        return how in self.corrections and self.guess(one) > _NEVER * self.room

    def guess(self, one: Candidate) -> int:
        how = one.settings.sharding.activation_checkpointing
        last = next(reversed(self.corrections.values()), 1.0)
        factor = self.corrections.get(how, last)
        return round(self.least(one) + factor * self._activations(one))

    def least(self, one: Candidate) -> int:
        parameters = self.parameters
        if parameters is None:
            parameters = parameter_count(one.settings.model.dimensions())
        return least_gpu_bytes(one.settings, parameters, one.nodes * self.gpus, self.gpus)

    def _activations(self, one: Candidate) -> float:
        how = one.settings.sharding.activation_checkpointing
        return _KEPT_OF_MOVED.get(how, 0.1) * self.moved(one)

    def _learn(self, one: Candidate, measured: int) -> None:
        guessed = self._activations(one)
        if guessed > 0:
            how = one.settings.sharding.activation_checkpointing
            self.corrections[how] = max(0.05, (measured - self.least(one)) / guessed)
