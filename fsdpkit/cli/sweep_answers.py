"""What `sweep` prints with `--json`; json_answers.py says what holds for all answers."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from fsdpkit.config.fields import Scalar


class Swept(Struct, frozen=True, kw_only=True):
    """A sweep that was started, or trials that were added to one."""

    schema: Literal["fsdpkit.sweep-start/1"] = "fsdpkit.sweep-start/1"
    name: str
    dir: str
    run: str
    """Whose array tasks the trials are."""
    job_id: str | None
    trials: list[int]
    """Numbers of those that were submitted."""
    left_out: list[str]
    """Why others would have been refused, with --leave-out."""


class Trial(Struct, frozen=True, kw_only=True):
    """One trial as of now."""

    trial: int
    run: str
    job_id: str | None
    """Slurm's, of the array task that says how it stands."""
    state: str
    """In a word; DROPPED: others were better at the end of a rung."""
    rung: int
    step: int | None
    value: float | None
    """The last of the sweep's metric."""
    problem: str
    settings: dict[str, Scalar]


class SweepStatus(Struct, frozen=True, kw_only=True):
    """A sweep and its trials."""

    schema: Literal["fsdpkit.sweep-status/1"] = "fsdpkit.sweep-status/1"
    name: str
    dir: str
    metric: str
    best_is: str
    rungs: int
    best: int | None
    """The best trial so far."""
    trials: list[Trial]


class BestTrial(Struct, frozen=True, kw_only=True):
    """The best trial of a sweep so far."""

    schema: Literal["fsdpkit.sweep-best/1"] = "fsdpkit.sweep-best/1"
    name: str
    metric: str
    trial: Trial
    job: str
    """Its job file."""
    command: list[str]
    """Words that train it alone."""


class SweepReport(Struct, frozen=True, kw_only=True):
    """A sweep's report, as one HTML file."""

    schema: Literal["fsdpkit.sweep-report/1"] = "fsdpkit.sweep-report/1"
    name: str
    path: str


class RungStep(Struct, frozen=True, kw_only=True):
    """What became of the trials of one batch."""

    batch: int
    what: Literal["waits", "submitted", "done"]
    rung: int
    trials: list[int]


class Advanced(Struct, frozen=True, kw_only=True):
    """What `sweep advance` did."""

    schema: Literal["fsdpkit.sweep-advance/1"] = "fsdpkit.sweep-advance/1"
    name: str
    batches: list[RungStep]


class SweepCancelled(Struct, frozen=True, kw_only=True):
    """A sweep that was asked to end."""

    schema: Literal["fsdpkit.sweep-cancel/1"] = "fsdpkit.sweep-cancel/1"
    name: str
    runs: list[str]
    """Those that were asked to; others had ended."""
    saving: list[str]
    """Jobs that were asked to save a checkpoint first."""
