"""The plots by rank: which ranks compute longer, when, and on which node.

Up to eight ranks are drawn as one line each; for more, their spread is drawn, and outliers are
named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fsdpkit.reporting.report.figures import COLUMNS, DrawnFigure, Steps, over_steps, thinned
from fsdpkit.reporting.report.plots import TONES, Band, PlotLine
from fsdpkit.reporting.scales import Axis, linear
from fsdpkit.reporting.series import Floats, MetricsTable, on_grid
from fsdpkit.runs.history import Attempt, History
from fsdpkit.runs.samples import read_samples, throttling_in_words

FEW_RANKS = 8
_SLOW = 1.2
"""As `fsdpkit.training.stragglers.SLOW`: worth naming."""
_ENOUGH = 3
"""Fewer comparisons, or fewer in which a rank was slow, say nothing."""
_OFTEN = 0.1
"""A rank that is slow in a smaller share of the comparisons had bad luck."""
_OTHERS = 2.0
"""A rank that is slow less than so many times as often as the median other has had it, too."""


@dataclass(frozen=True)
class Straggler:
    """A rank that others wait for: `ratio` times the median rank's computing, when it is slow."""

    rank: int
    node: str | None
    ratio: float
    share: float
    """Of the comparisons, in which it was slow."""
    from_step: float
    to_step: float
    throttled: str | None = None
    """That its GPU ran at a lower clock meanwhile, and why."""

    def __str__(self) -> str:
        where = f" on {self.node}" if self.node else ""
        why = f" Its node's {self.throttled}." if self.throttled else ""
        return (
            f"Rank {self.rank}{where} computes {self.ratio:.2f} times as long as the median rank "
            f"in {self.share:.0%} of the comparisons (steps {self.from_step:,.0f} to "
            f"{self.to_step:,.0f}); all the others wait for it.{why}"
        )


def _ratios(times: Floats | NDArray[np.float32]) -> Floats:
    """[compared, ranks] each rank's computing over the median rank's."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(times / np.median(times, axis=1, keepdims=True))


def stragglers(metrics: MetricsTable, history: History, ranks_per_node: int) -> list[Straggler]:
    """The ranks that are often slow, those first that cost most; at most five."""
    compared, ranks = metrics.rank_step_s.shape
    if compared < _ENOUGH or ranks < 2:
        return []
    ratio = _ratios(metrics.rank_step_s)
    slow = ratio > _SLOW
    share = slow.mean(axis=0)
    cost = np.where(slow, ratio - 1, 0).mean(axis=0)
    found = []
    for rank in np.argsort(-cost)[:5].tolist():
        others = float(np.median(np.delete(share, rank)))
        when = np.flatnonzero(slow[:, rank])
        if len(when) < _ENOUGH or share[rank] < max(_OFTEN, _OTHERS * others):
            continue
        step, time_s = metrics.compared["step"], metrics.compared["time_s"]
        node = node_at(history, rank, ranks_per_node, float(time_s[when[-1]]))
        typical = float(np.median(ratio[when, rank]))
        first, last = float(step[when[0]]), float(step[when[-1]])
        during = float(time_s[when[0]]), float(time_s[when[-1]])
        why = _throttling(history, node, rank % ranks_per_node, during) if node else None
        found.append(Straggler(rank, node, typical, float(share[rank]), first, last, why))
    return found


def _throttling(history: History, node: str, gpu: int, during: tuple[float, float]) -> str | None:
    """By the samples of that node from `during`."""
    files = [
        a.paths.node_samples(n.number) for a in history.attempts for n in a.nodes if n.name == node
    ]
    some = [one for file in files for one in read_samples(file)]
    begin_s, end_s = during
    return throttling_in_words([one for one in some if begin_s <= one.time_s <= end_s], gpu)


def node_at(history: History, rank: int, ranks_per_node: int, time_s: float) -> str | None:
    """The node that a rank was on at some time: standby nodes replace lost ones."""
    found: tuple[Attempt, int] | None = None
    for attempt in history.attempts:
        for place, launch in enumerate(attempt.launches):
            if launch.began_s <= time_s or found is None:
                found = (attempt, place)
    return found[0].node_of_rank(rank, ranks_per_node, found[1]) if found else None


def rank_figure(
    metrics: MetricsTable,
    history: History,
    steps: Steps,
    ranks_per_node: int,
    slow: Sequence[Straggler],
) -> DrawnFigure | None:
    """Each rank's own computing; of many ranks their spread. None: they were not compared."""
    times, step = metrics.rank_step_s, metrics.compared["step"]
    compared, ranks = times.shape
    if compared < _ENOUGH or ranks < 2:
        return None
    scale, unit, word = (
        (1000, "ms", "milliseconds") if np.median(times) < 1 else (1, "s", "seconds")
    )
    scaled = times.astype(np.float64) * scale
    named = [
        thinned(f"rank {one.rank} on {one.node}", step, scaled[:, one.rank], tone)
        for one, tone in zip(slow[:3], TONES[1:], strict=False)
    ]
    values = [(line.tone, line.name) for line in named]
    lines, bands, key = (
        _each_rank(step, scaled, {one.rank for one in slow[:3]})
        if ranks <= FEW_RANKS
        else _spread(step, scaled, steps.axis)
    )
    lines += named
    # One slow first step must not hide all others.
    top = max(float(np.percentile(scaled, 99.5)), *(float(np.nanmax(line.y)) for line in lines))
    return over_steps(
        "ranks",
        "Computing time by rank",
        lines,
        steps,
        linear(0.0, top, unit),
        [*values, key],
        [f"forward pass of one step without waiting, {word}"],
        bands=bands,
        wide=True,
    )


Drawn = tuple[list[PlotLine], list[Band], tuple[str, str]]
"""Lines, bands, and the words (tone, text) that say what they are."""


def _each_rank(step: Floats, times: Floats, named: set[int]) -> Drawn:
    others = [rank for rank in range(times.shape[1]) if rank not in named]
    lines = [thinned(f"rank {rank}", step, times[:, rank], "muted") for rank in others]
    words = f"the other {len(others)}" if named else f"{len(others)} ranks"
    return lines, [], ("muted", words)


def _spread(step: Floats, times: Floats, axis: Axis) -> Drawn:
    """Over intervals of equally many steps, of each rank its mean."""
    edges = np.linspace(axis.low, axis.high, min(COLUMNS, max(1, len(step) // 2)) + 1)
    ranks = np.array([on_grid(step, rank, edges) for rank in times.T])
    known = ~np.isnan(ranks[0])
    x, ranks = ((edges[:-1] + edges[1:]) / 2)[known], ranks[:, known]
    tenth, ninth = np.percentile(ranks, [10, 90], axis=0)
    bands = [Band(x=x, low=ranks.min(axis=0), high=ranks.max(axis=0))]
    bands.append(Band(x=x, low=tenth, high=ninth))
    line = PlotLine(name="median rank", x=x, y=np.median(ranks, axis=0))
    words = f"median of {len(ranks):,} ranks; bands: 10 to 90 %, and all"
    return [line], bands, ("a", words)
