"""Whether training ends within the job's time limit, and what it takes if not. No torch.

What is counted: steps, evaluations (a batch at a third of its step: forward is one of three equal
parts of the arithmetic), checkpoints that training waits for, and for each job its start-up and the
time between Slurm's warning and the end. The queue is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from fsdpkit.config.job import Resources
from fsdpkit.config.limits import START_S, training_s
from fsdpkit.config.partition import Partition
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.trainer import TrainingLength
from fsdpkit.config.units import LONGEST_S, format_bytes, format_time, roughly
from fsdpkit.runs.predicted import Span

_FORWARD = 1 / 3


class TimeAllowed(NamedTuple):
    """What one job of the training may take."""

    limit_s: int
    training_s: int
    """Of it, for steps, evaluations and checkpoints."""
    most_s: int | None
    """The longest limit that such a job may ask for; None: not known."""
    returns: bool
    """Whether the job is queued again by itself when its time is over."""


class SavedState(NamedTuple):
    """One checkpoint. None: not known."""

    bytes: int | None
    write_s: float | None


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """When training ends, of jobs of `limit_s` seconds each; ranges are as sure as the speed's."""

    verdict: Literal["finishes", "may not finish", "does not finish", "not known"]
    why: str = ""
    """Of what is not known: what is missing, and where it would come from."""
    limit_s: int
    steps: int | None = None
    steps_from: str = ""
    steps_estimated: bool = False
    evaluations: int = 0
    saves: int = 0
    seconds: Span | None = None
    """Of all jobs together, from the first start-up on."""
    jobs: tuple[int, int, int] | None = None
    """How many it takes: at the fast end, in the middle, at the slow end."""
    returns: bool = False
    """Whether each next job is queued by itself."""
    enough: str | None = None
    """A --time with which one job is enough at the slow end, if such a job may ask for it."""
    step_s_at_most: float | None = None
    """With steps as fast as this one job is enough."""
    checkpoint_bytes: int | None = None
    checkpoint_s: float | None = None
    """To write one; where it is not known it is not counted."""
    not_counted: tuple[str, ...] = ()


def allowed(
    resources: Resources, profile: SiteProfile, way: Partition, on_limit: str
) -> TimeAllowed:
    """For jobs with these resources. way: the partition; on_limit: `[retry] on_time_limit`."""
    gpus = resources.nodes_asked * resources.gpus
    return TimeAllowed(
        resources.time_s,
        training_s(resources, profile),
        way.max_time_s(resources.nodes_asked, gpus),
        on_limit == "requeue" and profile.policy.requeue is not False,
    )


def saved_state(size: int | None, write_gb_s: float | None) -> SavedState:
    """size: bytes of a checkpoint; write_gb_s: of the file system. None: not known."""
    return SavedState(size, size / (write_gb_s * 1e9) if size and write_gb_s else None)


def finish(
    length: TrainingLength, step_s: Span | None, saved: SavedState, time: TimeAllowed, why: str = ""
) -> Finish:
    """step_s: None where speed is not known; `why` then says what would tell it."""
    known = Finish(
        verdict="not known",
        limit_s=time.limit_s,
        steps=length.steps,
        steps_from=length.source,
        steps_estimated=length.is_estimate,
        evaluations=length.evaluations,
        saves=length.saves,
        returns=time.returns,
        checkpoint_bytes=saved.bytes,
        checkpoint_s=saved.write_s,
        not_counted=length.not_counted,
    )
    if length.steps is None:
        return msgspec.structs.replace(known, why=f"steps are not known: {length.source}")
    if time.training_s <= 0:
        return msgspec.structs.replace(
            known, verdict="does not finish", why="--time leaves none for training"
        )
    fast_enough_s = _step_s_at_most(length, saved, time.training_s)
    if step_s is None:
        return msgspec.structs.replace(known, why=why, step_s_at_most=fast_enough_s)
    low, middle, high = (
        _training_s(length, one, saved) for one in (step_s.low, step_s.middle, step_s.high)
    )
    jobs = tuple(math.ceil(one / time.training_s) for one in (low, middle, high))
    unsure: Literal["may not finish", "does not finish"]
    unsure = "may not finish" if jobs[1] == 1 else "does not finish"
    around_s = time.limit_s - time.training_s
    needed_s = math.ceil((high + around_s) / 600) * 600
    possible = jobs[2] > 1 and needed_s <= (time.most_s or LONGEST_S)
    return msgspec.structs.replace(
        known,
        verdict="finishes" if jobs[2] == 1 else unsure,
        seconds=Span(*(s + n * START_S for s, n in zip((low, middle, high), jobs, strict=True))),
        jobs=jobs,
        enough=format_time(needed_s) if possible else None,
        step_s_at_most=fast_enough_s,
    )


def _training_s(length: TrainingLength, step_s: float, saved: SavedState) -> float:
    """Steps, evaluations, and the checkpoints that training waits for: of those that are written
    while it goes on, what is left of one when the next begins."""
    assert length.steps is not None
    evaluated = length.evaluations * length.evaluated * step_s * _FORWARD
    write_s = saved.write_s or 0.0
    between_s = length.steps / max(1, length.saves) * step_s if length.background else 0.0
    return length.steps * step_s + evaluated + length.saves * max(0.0, write_s - between_s)


def _step_s_at_most(length: TrainingLength, saved: SavedState, training_s: int) -> float | None:
    """The longest step with which training takes no more than that; by halving, for what training
    waits for falls as steps grow. None: no step is short enough."""
    assert length.steps is not None
    low, high = 0.0, training_s / length.steps
    if _training_s(length, low, saved) > training_s:
        return None
    for _ in range(40):
        middle = (low + high) / 2
        fits = _training_s(length, middle, saved) <= training_s
        low, high = (middle, high) if fits else (low, middle)
    return low or None


# ---- For people


def verdict_lines(found: Finish) -> Iterator[str]:
    """The answer, and what to do where one job is not enough."""
    limit = f"--time {format_time(found.limit_s)}"
    takes = _spread(found.seconds) if found.seconds else ""
    if found.verdict == "not known":
        yield f"will it finish in {limit}? not known: {found.why}"
        if found.step_s_at_most is not None:
            yield f"  it does if a step takes {found.step_s_at_most:.2g} s or less"
    elif found.verdict == "finishes":
        yield f"finishes in {limit}: takes {takes}"
    else:
        yield f"{found.verdict} in {limit}: {found.why or f'takes {takes}'}"
        yield from _what_then(found)


def finish_lines(found: Finish) -> Iterator[str]:
    """The answer, and what it is made of."""
    yield from verdict_lines(found)
    if found.steps is not None:
        about = "about " if found.steps_estimated else ""
        parts = [f"{about}{found.steps:,} steps ({found.steps_from})"]
        counted = {"evaluation": found.evaluations, "checkpoint": found.saves}
        parts += [f"{n:,} {what}{'' if n == 1 else 's'}" for what, n in counted.items() if n]
        yield f"  {', '.join(parts)}"
    if found.not_counted:
        yield f"  not counted: {', '.join(found.not_counted)}"
    if found.checkpoint_bytes is not None:
        yield checkpoint_line(found)


def checkpoint_line(found: Finish) -> str:
    """How large one is, and how long writing it takes."""
    assert found.checkpoint_bytes is not None
    size = f"  a checkpoint is {format_bytes(found.checkpoint_bytes)}"
    if found.checkpoint_s is None:
        return f"{size}; writing it is not counted (storage.write_gb_s)"
    return f"{size}, written in {roughly(found.checkpoint_s)}"


def _what_then(found: Finish) -> Iterator[str]:
    if found.jobs is not None:
        low, middle, high = found.jobs
        several = f"{middle} jobs" if low == high else f"{low} to {high} jobs, likely {middle}"
        after = (
            "each next one is queued by itself ([retry])"
            if found.returns
            else "each next one by: fsdpkit resume RUN --chained"
        )
        yield f"  {several}; {after}"
    if found.enough is not None:
        yield f"  one job is enough with --time {found.enough}"


def _spread(seconds: Span) -> str:
    low, middle, high = map(roughly, (seconds.low, seconds.middle, seconds.high))
    return middle if low == high else f"{middle} ({low} to {high})"
