"""A speed and what `--tune` found as lines for a terminal, ranges throughout. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fsdpkit.planning.cards import CARDS
from fsdpkit.planning.forecast import Forecast
from fsdpkit.planning.outside import SAFE
from fsdpkit.planning.speed import Range, Speed, in_words
from fsdpkit.planning.tune import Tuned

GIB = 2**30
_SMALLEST_SHARE = 0.02
_MOST_LEFT_OUT = 3


def lines(found: Forecast) -> Iterator[str]:
    """How fast, how sure, what bounds it, how it scales."""
    if (speed := found.speed) is None:
        yield f"speed: not known: {found.why}"
        return
    yield f"{'speed, all ranks':26}{'computed':>12}   80% interval"
    yield (
        _row("tokens/s", speed.tokens_per_s)
        if speed.tokens_per_s
        else _row("samples/s", speed.samples_per_s)
    )
    yield _row("model FLOPs of the peak", speed.mfu.times(100), " %")
    yield _row("one step", speed.step_s, " s")
    if speed.hours and speed.gpu_hours and speed.steps:
        yield _row(f"hours, {speed.steps:,} steps", speed.hours)
        yield _row("GPU-hours", speed.gpu_hours)
    yield f"bound by {in_words(speed.bound)}; a step's time: {_shares(speed)}"
    scaled = ", ".join(f"{one.nodes}: {one.efficiency:.0%}" for one in found.scaled)
    assumed = f" (the network between nodes is not known: {found.network})" if found.network else ""
    yield f"efficiency by nodes, the batch of a GPU as it is: {scaled}{assumed}"
    yield f"speed is computed from: the recorded step; {found.rests_on}"
    yield from left_out_lines(found.left_out)


def left_out_lines(sentences: Sequence[str]) -> Iterator[str]:
    """What was measured and does not count, a few of many."""
    for sentence in sentences[:_MOST_LEFT_OUT]:
        yield f"  left out: {sentence}"
    if len(sentences) > _MOST_LEFT_OUT:
        yield f"  and {len(sentences) - _MOST_LEFT_OUT} more: fsdpkit plan --calibration"


def tuned_lines(found: Tuned) -> Iterator[str]:
    """The answer of `--tune`: what to type, and why each choice."""
    as_it_is = "" if found.in_script else "(as it is)"
    sets = " ".join(f"--set {each}" for each in found.sets) or as_it_is
    needed = f"{found.memory_bytes / GIB:.1f}"
    room = f"{found.room_bytes / GIB:.1f} GiB"
    if found.fits:
        yield f"fastest that fits: --nodes {found.nodes} {sets}".rstrip()
        yield f"takes {needed} of {room} a GPU"
    else:
        yield f"nothing fits {room} a GPU; the nearest miss: --nodes {found.nodes} {sets}".rstrip()
        yield f"takes {needed} GiB{_too_much(found)}"
    if found.in_script:
        yield (
            "in the script itself, which reads no [training] and so takes no --set of them: "
            + ", ".join(found.in_script)
        )
    speed = found.speed
    rate = speed.tokens_per_s or speed.samples_per_s
    yield (
        f"{'tokens' if speed.tokens_per_s else 'samples'}/s {_number(rate.middle)} "
        f"({_number(rate.low)} to {_number(rate.high)}), "
        f"bound by {in_words(speed.bound)}"
    )
    for one in found.choices:
        yield f"  {one.key} = {one.value}: {one.why}"
    yield f"{found.asked} settings were recorded, one at a time from the job's own"
    for note in found.notes:
        yield f"note: {note}"


def _too_much(found: Tuned) -> str:
    """By how much the nearest miss misses, and which GPU would do."""
    over, least = found.memory_bytes - found.room_bytes, found.memory_bytes / SAFE
    enough = min((c for c in CARDS if c.memory >= least), key=lambda c: c.memory, default=None)
    example = f", such as {enough.name}" if enough else ""
    size = math.ceil(least / GIB)
    return (
        f": {over / GIB:.1f} GiB ({over:,} bytes) too much. A GPU of {size} GiB or more would "
        f"do{example}; else shorter sequences, more nodes or a smaller model"
    )


def _row(name: str, value: Range, unit: str = "") -> str:
    middle = f"{_number(value.middle)}{unit}"
    return f"{name:26}{middle:>12}   {_number(value.low)} to {_number(value.high)}{unit}"


def _number(value: float) -> str:
    """Two digits that count, and no more than are known."""
    if value >= 100:
        digits = len(str(int(value))) - 2
        return f"{round(value, -digits):,.0f}"
    return f"{value:.2g}"


def _shares(speed: Speed) -> str:
    shares = [(name, share) for name, share in speed.shares.items() if share >= _SMALLEST_SHARE]
    return ", ".join(f"{in_words(name)} {share:.0%}" for name, share in shares)
