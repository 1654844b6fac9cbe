"""The speed of a planned job: its work, on its GPUs as published figures and runs tell them.

A T5 job's work is counted, since its blocks are compiled on the GPU and a tape is of uncompiled
ones; a model of one's own is what its tape says. On other numbers of nodes a recorded step is
resized (`speed_resized.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpkit.errors import FsdpkitError, UsageError
from fsdpkit.planning.asked import AskedStep, on_card
from fsdpkit.planning.speed import Goal, Range, Scaled, Speed, predict, scaling
from fsdpkit.planning.speed_learned import Basis, MeasuredMachine, basis_of, of_file, published
from fsdpkit.planning.speed_measured import MeasuredSpeed, learn
from fsdpkit.planning.speed_resized import on_nodes
from fsdpkit.planning.speed_settings import work_of_settings
from fsdpkit.planning.speed_tape import work_of
from fsdpkit.planning.work import StepWork
from fsdpkit.runs.predicted import Span

if TYPE_CHECKING:
    from fsdpkit.planning.tape import Tape

MOST_DOUBLINGS = 3


@dataclass(frozen=True)
class By:
    """What a speed is to rest on: a `file`, else what runs have measured unless `learned` is
    False, else published figures."""

    file: Path | None = None
    learned: bool = True
    runs: Path | None = None
    """The directory of runs to learn from."""
    site: str | None = None

    def records(self) -> Sequence[MeasuredSpeed]:
        return learn(self.runs) if self.learned and self.runs is not None else ()

    def basis(self, gpu: str) -> Basis:
        """Raises FsdpkitError for a GPU without figures, or a file that is not for it."""
        machine = MeasuredMachine.here(gpu, self.site)
        if self.file is not None:
            return of_file(self.file, machine)
        if not self.learned:
            return published(gpu)
        return basis_of(self.records(), machine)


@dataclass(frozen=True)
class Forecast:
    """speed: None where nothing can be said, and `why`."""

    speed: Speed | None
    scaled: tuple[Scaled, ...] = ()
    """On one node, two, four … up to eight times as many as were asked for."""
    why: str = ""
    rests_on: str = ""
    left_out: tuple[str, ...] = field(default=())
    """Of what was measured, a sentence each."""


def goal_of(asked: AskedStep) -> Goal | None:
    """None where epochs end the run, whose length is only known from its data."""
    settings = asked.settings
    if settings.most_steps:
        return Goal(steps=settings.most_steps)
    return Goal(tokens=settings.tokens) if settings.tokens else None


def works_of(asked: AskedStep, tape: Tape | None) -> Callable[[int], StepWork]:
    """The step on each number of nodes. Raises UsageError for a model whose step is not recorded,
    or not whole."""
    if not asked.model:
        settings = on_card(asked)
        return lambda nodes: work_of_settings(settings, nodes, asked.gpus)
    if tape is None or not tape.samples:
        raise UsageError("its step was not recorded")
    if getattr(tape, "lacking", None):
        raise UsageError("not all of its step could be followed")
    sharding = asked.settings.sharding
    limited = sharding.engine == "fsdp2" or sharding.limit_all_gathers
    work = work_of(
        tape,
        ranks=asked.ranks,
        ranks_per_node=asked.gpus,
        tokens=tape.tokens,
        samples=tape.samples,
        parameters=tape.parameters,
        gathers_ahead=2 if limited else None,
    )
    return lambda nodes: on_nodes(work, nodes)


def forecast(asked: AskedStep, by: By, tape: Tape | None = None) -> Forecast:
    """Raises FsdpkitError for a calibration file that cannot be used."""
    try:
        basis = by.basis(asked.card.name)
        works = works_of(asked, tape)
        speed = predict(works(asked.nodes), basis.calibration, _goal(asked))
    except FsdpkitError as error:
        if by.file is not None:
            raise
        return Forecast(None, why=str(error))
    counts = {1, asked.nodes, *(asked.nodes << n for n in range(1, MOST_DOUBLINGS + 1))}
    counts |= {1 << n for n in range(asked.nodes.bit_length())}
    scaled = scaling(works, basis.calibration, sorted(counts))
    return Forecast(speed, tuple(scaled), rests_on=basis.words, left_out=basis.left_out)


def _goal(asked: AskedStep) -> Goal | None:
    """Of a script of one's own nobody knows how long it trains."""
    return None if asked.model else goal_of(asked)


def span_of(found: Range | None) -> Span | None:
    """As a run keeps it; None for what is no rate."""
    if found is None or not 0 < found.low <= found.middle <= found.high < 1e30:
        return None
    return Span(found.low, found.middle, found.high)
