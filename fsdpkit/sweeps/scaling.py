"""What a scaling study says: speed, efficiency, cost and the knee, from measured speeds. Pure.

Weak: each rank's batch stays the same, so the work grows with the nodes. Strong: the batch of all
ranks together stays the same. In both the efficiency is the speed for each node, of that of the
smallest size: 1 would be a cluster without communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from fsdpkit.reporting.series import Floats, MetricsTable

Mode = Literal["weak", "strong"]
MODES: tuple[Mode, ...] = ("weak", "strong")
KNEE = 0.5
"""A step up pays while added nodes bring at least this share of what the smallest size's would."""


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """One number of nodes as it was measured. None: not measured, or nothing to compare with."""

    mode: Mode
    nodes: int
    ranks: int
    run: str | None
    """None: it was not submitted."""
    state: str
    samples: int
    """Logged steps that the speed is the median of."""
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    speedup: float | None = None
    """Work per second, of that of the smallest size."""
    efficiency: float | None = None
    gpu_hours_per_billion_tokens: float | None = None
    predicted_tokens_per_s: float | None = None
    """What its run was submitted with; None: nobody had planned that job, or not in tokens."""


class RunSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run, medians over the second half of what it logged: the first has warm-up in it."""

    samples: int = 0
    step_time_s: float | None = None
    tokens_per_s: float | None = None


def speed_of(metrics: MetricsTable) -> RunSpeed:
    """Of steps that were done again the later ones count."""
    fine = ~metrics.superseded
    step_time = _second_half(metrics.steps["step_time_s"][fine])
    tokens = _second_half(metrics.steps["tokens_per_s"][fine])
    return RunSpeed(
        samples=max(len(step_time), len(tokens)),
        step_time_s=_median(step_time),
        tokens_per_s=_median(tokens),
    )


def _second_half(values: Floats) -> Floats:
    known = values[np.isfinite(values) & (values > 0)]
    return np.asarray(known[len(known) // 2 :], dtype=np.float64)


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None


def work_per_s(mode: Mode, nodes: int, speed: RunSpeed, *, by_tokens: bool) -> float | None:
    """Speed in one unit for all sizes: tokens, or batches of one node's (weak) or of the whole
    (strong), per second."""
    if by_tokens:
        return speed.tokens_per_s
    if speed.step_time_s is None:
        return None
    return (nodes if mode == "weak" else 1) / speed.step_time_s


class MeasuredSize(NamedTuple):
    """One number of nodes, and its run."""

    nodes: int
    ranks: int
    run: str | None
    state: str
    speed: RunSpeed
    predicted: float | None
    """Tokens per second."""


def compared(mode: Mode, sizes: Sequence[MeasuredSize]) -> list[Size]:
    """Sizes of one mode, smallest first: by tokens where that counted them, else by steps."""
    by_tokens = bool(sizes) and sizes[0].speed.tokens_per_s is not None
    work = [work_per_s(mode, one.nodes, one.speed, by_tokens=by_tokens) for one in sizes]
    first = work[0] if work else None
    found = []
    for one, done in zip(sizes, work, strict=True):
        speedup = done / first if done is not None and first else None
        tokens = one.speed.tokens_per_s
        found.append(
            Size(
                mode=mode,
                nodes=one.nodes,
                ranks=one.ranks,
                run=one.run,
                state=one.state,
                samples=one.speed.samples,
                step_time_s=one.speed.step_time_s,
                tokens_per_s=tokens,
                speedup=speedup,
                efficiency=None if speedup is None else speedup * sizes[0].nodes / one.nodes,
                gpu_hours_per_billion_tokens=tokens and one.ranks * 1e9 / tokens / 3600,
                predicted_tokens_per_s=one.predicted,
            )
        )
    return found


def knee(sizes: Sequence[Size]) -> int | None:
    """The last number of nodes before the first step up that does not pay (`KNEE`); None: every
    step that was measured does, or there are fewer than two sizes."""
    known = [(one.nodes, one.speedup) for one in sizes if one.speedup is not None]
    for (nodes, speedup), (more, faster) in pairwise(known):
        if (faster - speedup) * known[0][0] / (more - nodes) < KNEE:
            return nodes
    return None
