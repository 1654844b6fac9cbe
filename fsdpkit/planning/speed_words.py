"""A speed as lines for a terminal, ranges throughout. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdpkit.planning.forecast import Forecast
from fsdpkit.planning.speed import Scaled, Speed, in_words
from fsdpkit.runs.predicted import Span

_SMALLEST_SHARE = 0.02
_MOST_LEFT_OUT = 3
_VISIBLE = 0.05
"""From this difference on, efficiencies at both ends of the network's doubt are shown."""


def lines(found: Forecast) -> Iterator[str]:
    """How fast, how sure, what bounds it, how it scales."""
    if (speed := found.speed) is None:
        yield f"speed: not known: {found.why}"
        return
    if speed.host_bound:
        yield from _host_bound(speed)
    else:
        yield from _predicted(speed)
    scaled = ", ".join(f"{one.nodes}: {_efficiency(one)}" for one in found.scaled)
    unknown = f" (the network between nodes is not known: {found.network})" if found.network else ""
    if not speed.host_bound:
        yield f"efficiency by nodes, the batch of a GPU as it is: {scaled}{unknown}"
    yield f"speed is computed from: the recorded step; {found.rests_on}"
    yield from left_out_lines(found.left_out)


def _host_bound(speed: Speed) -> Iterator[str]:
    rate = speed.tokens_per_s or speed.samples_per_s
    unit = "tokens" if speed.tokens_per_s else "samples"
    yield (
        "speed: bound by the host, which launches kernels more slowly than the GPU computes them; "
        "not predicted. Larger batches, fewer kernels (torch.compile) or a measured run change that"
    )
    yield (
        f"one step takes at least {number(speed.step_s.low)} s: "
        f"all ranks at most {number(rate.high)} {unit}/s"
    )


def _predicted(speed: Speed) -> Iterator[str]:
    yield f"{'speed, all ranks':26}{'computed':>12}   80% interval"
    yield (
        _row("tokens/s", speed.tokens_per_s)
        if speed.tokens_per_s
        else _row("samples/s", speed.samples_per_s)
    )
    yield _row("model FLOPs of the peak", speed.mfu.times(100), " %")
    yield _row("one step", speed.step_s, " s")
    yield f"bound by {in_words(speed.bound)}; a step's time: {_shares(speed)}"


def _efficiency(one: Scaled) -> str:
    """A range where the network's doubt makes a difference."""
    low, high = f"{one.low:.0%}", f"{one.high:.0%}"
    return f"{one.efficiency:.0%}" if one.high - one.low < _VISIBLE else f"{low} to {high}"


def left_out_lines(sentences: Sequence[str]) -> Iterator[str]:
    """What was measured and does not count, a few of many."""
    for sentence in sentences[:_MOST_LEFT_OUT]:
        yield f"  left out: {sentence}"
    if len(sentences) > _MOST_LEFT_OUT:
        yield f"  and {len(sentences) - _MOST_LEFT_OUT} more: --json has them"


def _row(name: str, value: Span, unit: str = "") -> str:
    middle = f"{number(value.middle)}{unit}"
    return f"{name:26}{middle:>12}   {number(value.low)} to {number(value.high)}{unit}"


def number(value: float) -> str:
    """Two digits that count, and no more than are known."""
    if value >= 100:
        digits = len(str(int(value))) - 2
        return f"{round(value, -digits):,.0f}"
    return f"{value:.2g}"


def _shares(speed: Speed) -> str:
    shares = [(name, share) for name, share in speed.shares.items() if share >= _SMALLEST_SHARE]
    return ", ".join(f"{in_words(name)} {share:.0%}" for name, share in shares)
