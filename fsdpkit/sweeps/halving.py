"""Successive halving as arithmetic: how many go on, how far, and who. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UnsetType

from fsdpkit.sweeps.file import STEPS, Halving


class JudgedTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One trial at the end of a rung. A trial without a `value` has `lost`, and why."""

    trial: int
    value: float | None = None
    lost: str = ""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Who goes on into a rung; written once, and then what everybody goes by."""

    rung: int
    survivors: list[int]
    """Trials, the best first."""
    judged: list[JudgedTrial]
    """All of the rung before, the best first; those without a value last."""
    jobs_before: int
    """Slurm jobs that the run had had when this was decided: once it has more, it has gone on."""
    decided_s: float
    """Unix time."""


def survivors_of(trials: int, factor: int, rung: int) -> int:
    """How many of so many trials are in a rung; all of them in rung 0, and never none."""
    return max(1, trials // int(factor**rung))


def amount(halving: Halving, most: int, rung: int) -> int:
    """How much of the resource a trial has had by the end of a rung, `most` in the last one."""
    return max(1, -(-most // int(halving.factor ** (halving.rungs - 1 - rung))))


def ranked(trials: Sequence[JudgedTrial], *, highest: bool) -> list[JudgedTrial]:
    """The best first; of equal ones the lower number, whatever order they came in."""

    def order(one: JudgedTrial) -> tuple[bool, float, int]:
        value = one.value if one.value is not None else 0.0
        return one.value is None, -value if highest else value, one.trial

    return sorted(trials, key=order)


def survivors(trials: Sequence[JudgedTrial], places: int, *, highest: bool) -> list[int]:
    """Who goes on: at most `places` of those that have a value, the best first."""
    return [one.trial for one in ranked(trials, highest=highest) if one.value is not None][:places]


def changes(halving: Halving, most: int, rung: int, args: Mapping[int, list[str]]) -> list[str]:
    """`KEY=VALUE` for a job to go as far as a rung says. args: own words of trials that go on."""
    sets, further = goal_of(halving, most, rung)
    return sets or [
        f"array_args.{trial}={msgspec.json.encode([*words, *further]).decode()}"
        for trial, words in args.items()
    ]


def goal_of(
    halving: Halving | UnsetType | None, most: int | None, rung: int
) -> tuple[list[str], list[str]]:
    """How far a rung goes: as `KEY=VALUE` of the job, and as words of a script's own."""
    if not isinstance(halving, Halving) or most is None:
        return [], []
    goal = amount(halving, most, rung)
    if halving.resource == STEPS:
        return [f"{STEPS}={goal}"], []
    return [], [f"--{halving.resource.partition('.')[2]}={goal}"]
