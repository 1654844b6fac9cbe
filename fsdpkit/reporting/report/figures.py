"""The plots over steps, and what stands above each: from metrics to drawings.

A plot answers one question, and its caption says the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup

from fsdpkit.reporting.report.plots import Band, Chart, Line, Mark, draw
from fsdpkit.reporting.scales import Axis, linear, logarithmic, number
from fsdpkit.reporting.series import Floats, Metrics, middle, thin
from fsdpkit.runs.history import History, Launch

_POINTS = 500
_MIDDLES = 120
COLUMNS = 240
"""Stretches of time or steps in which many nodes or ranks are looked at together."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawing with its caption: a title, numbers in the colours of their lines, a remark."""

    title: str
    drawing: Markup
    values: tuple[tuple[str, str], ...] = ()
    """(tone, text)."""
    remark: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Steps:
    """The x axis that all plots over steps share, and what happened on it."""

    axis: Axis
    marks: tuple[Mark, ...]


def steps_of(metrics: Metrics, history: History, faults: Mapping[float, str]) -> Steps | None:
    """None if no step was logged. faults: their numbers in the timeline, by time."""
    step = metrics.steps["step"]
    if not len(step):
        return None
    marks = [
        Mark(x=begin, until=end, label=f"steps {begin:,.0f} to {end:,.0f} were done twice")
        for begin, end in done_twice(metrics)
    ]
    troubles: dict[int, list[Launch]] = {}
    for launch in (launch for attempt in history.attempts for launch in attempt.launches):
        if launch.trouble_s is not None and launch.step is not None and launch.step >= 0:
            troubles.setdefault(launch.step, []).append(launch)
    marks += [_mark(at, found, faults) for at, found in troubles.items()]
    last = max(float(step.max()), float(step.min()) + 1)
    return Steps(linear(float(step.min()), last, tight=True, ticks=5), tuple(marks))


def _mark(step: int, found: Sequence[Launch], faults: Mapping[float, str]) -> Mark:
    numbers = [faults.get(launch.trouble_s or 0.0, "") for launch in found]
    return Mark(
        x=float(step),
        label=f"after step {step:,}: {'; '.join(launch.message for launch in found)}",
        tone="bad" if any(launch.cause != "stopped" for launch in found) else "muted",
        number=",".join(filter(None, numbers)),
    )


def done_twice(metrics: Metrics) -> list[tuple[float, float]]:
    """Stretches of steps that were done again, by their first and last logged step."""
    again, step = metrics.superseded, metrics.steps["step"]
    ends = np.flatnonzero(np.diff(np.concatenate([[False], again, [False]]).astype(int)))
    return [
        (float(step[first]), float(step[last - 1]))
        for first, last in zip(ends[::2], ends[1::2], strict=True)
    ]


def loss_figure(metrics: Metrics, steps: Steps) -> Figure | None:
    step, loss = metrics.steps["step"], metrics.steps["loss"]
    evaluated, held_out = metrics.evaluations["step"], metrics.evaluations["eval_loss"]
    known = np.concatenate([loss, held_out])
    known = known[~np.isnan(known)]
    if not len(known):
        return None
    lines = _over_steps("training", step, loss, metrics)
    values = [("a", f"{number(metrics.last('loss') or math.nan, 4)} training")]
    fine = ~np.isnan(held_out)
    if fine.any():
        lines.append(Line(name="evaluation", x=evaluated[fine], y=held_out[fine], tone="b"))
        values.append(("b", f"{number(float(held_out[fine][-1]), 4)} evaluation"))
        best = int(np.nanargmin(held_out))
        if held_out[best] < held_out[fine][-1]:
            values.append(
                ("b", f"best {number(float(held_out[best]), 4)} at step {evaluated[best]:,.0f}")
            )
    low, high = float(known.min()), float(known.max())
    y = logarithmic(low, high) if low > 0 and high / low > 4 else linear(low, high)
    remarks = ["logarithmic scale"] if y.kind == "log" else []
    if count := len(metrics.loss_not_finite):
        first = float(metrics.loss_not_finite[0])
        remarks.append(f"not a number in {count:,} lines, first at step {first:,.0f}")
    remarks += _twice_in_words(metrics)
    return over_steps("loss", "Loss", lines, steps, y, values, remarks, height=240, wide=True)


def _twice_in_words(metrics: Metrics) -> list[str]:
    stretches = done_twice(metrics)
    if not stretches:
        return []
    told = ", ".join(f"{begin:,.0f}–{end:,.0f}" for begin, end in stretches[:4])
    more = f" and {len(stretches) - 4} more" if len(stretches) > 4 else ""
    return [f"done twice (shaded; the first time dashed): steps {told}{more}"]


def speed_figures(metrics: Metrics, steps: Steps) -> list[Figure]:
    """Tokens per second, MFU, time of a step, memory, gradient and learning rate, where known."""
    peak = float(np.nan_to_num(metrics.steps["memory_bytes"]).max(initial=0))
    scale, unit = _bytes_unit(peak)
    rows: list[tuple[str, str, str, float, str]] = [
        ("tokens_per_s", "Tokens per second", "tokens/s", 1, "all ranks together"),
        ("mfu", "MFU", "%", 0.01, "share of the devices' dense peak"),
        ("step_time_s", "Time of a step", "s", 1, "mean since the line before"),
        ("memory_bytes", "Peak memory of rank 0", unit, scale, ""),
        ("grad_norm", "Gradient norm", "", 1, "before clipping"),
        ("lr", "Learning rate", "", 1, ""),
    ]
    figures = []
    for name, title, unit, scale, remark in rows:
        values = metrics.steps[name] / scale
        counted = values[~metrics.superseded]
        if np.isnan(counted).all():
            continue
        lines = _over_steps(title, metrics.steps["step"], values, metrics)
        middle_value = float(np.nanmedian(counted))
        told = (
            f"{number(float(counted[~np.isnan(counted)][-1]))} {unit}".strip()
            if name in ("memory_bytes", "lr", "grad_norm")
            else f"median {number(middle_value)} {unit}".strip()
        )
        y = linear(0.0, _high(values, name), unit)
        figures.append(over_steps(name, title, lines, steps, y, [("a", told)], [remark]))
    return figures


def _high(values: Floats, name: str) -> float:
    """The top of an axis: one slow first step or one wild gradient shall not hide all others."""
    high, usual = float(np.nanmax(values)), float(np.nanpercentile(values, 99))
    return min(high, 3 * usual) if name in ("step_time_s", "grad_norm") and usual > 0 else high


def _over_steps(name: str, step: Floats, values: Floats, metrics: Metrics) -> list[Line]:
    again = metrics.superseded
    lines = []
    kept_x, kept_y = thin(step[~again], values[~again], _POINTS)
    if again.any():
        x, y = step[again], values[again].copy()
        starts = np.flatnonzero(np.diff(np.flatnonzero(again)) > 1) + 1  # each for itself
        x, y = np.insert(x, starts, x[starts]), np.insert(y, starts, np.nan)
        if len(x) <= _POINTS:
            lines.append(Line(name=f"{name}, first time", x=x, y=y, tone="again", style="dashed"))
    many = int((~again).sum()) > 2 * _MIDDLES
    style: Literal["faint", "plain"] = "faint" if many else "plain"
    lines.append(Line(name="" if many else name, x=kept_x, y=kept_y, style=style))
    if many:
        x, y = middle(step[~again], values[~again], _MIDDLES)
        lines.append(Line(name=name, x=x, y=y))
    return lines


def over_steps(
    key: str,
    title: str,
    lines: Sequence[Line],
    steps: Steps,
    y: Axis,
    values: Sequence[tuple[str, str]],
    remarks: Sequence[str],
    *,
    bands: Sequence[Band] = (),
    height: int = 150,
    wide: bool = False,
) -> Figure:
    remark = "; ".join(r for r in remarks if r)
    told = ", ".join(text for _, text in values)
    drawing = draw(
        Chart(
            key=key,
            title=f"{title} over steps",
            description=f"{told}. {remark}",
            x=steps.axis,
            y=y,
            lines=lines,
            bands=bands,
            marks=steps.marks,
            height=height,
        )
    )
    return Figure(title=title, drawing=drawing, values=tuple(values), remark=remark, wide=wide)


def _bytes_unit(peak: float) -> tuple[float, str]:
    return (2**30, "GiB") if peak >= 2**30 else (2**20, "MiB")


def thinned(name: str, x: Floats, y: Floats, tone: str) -> Line:
    kept_x, kept_y = thin(x, y, COLUMNS)
    return Line(name=name, x=kept_x, y=kept_y, tone=tone)
