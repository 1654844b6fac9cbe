"""The plots over steps and their captions: from metrics to drawings.

A plot answers one question, and its caption states the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from markupsafe import Markup

from fsdpkit.listing import counted, first_of
from fsdpkit.reporting.report.plots import TONES, Band, Chart, PlotLine, PlotMark, draw
from fsdpkit.reporting.scales import Axis, linear, values_axis, with_times
from fsdpkit.reporting.series import (
    Floats,
    MetricsTable,
    every,
    middle,
    stretches,
    superseded,
    thin,
)
from fsdpkit.reporting.status.printed_lines import PrintedNumbers
from fsdpkit.reporting.training import Training
from fsdpkit.reporting.words import number
from fsdpkit.runs.history import History, Launch

_POINTS = 500
_MIDDLES = 120
_MOST_MARKS = 200
COLUMNS = 240
"""Stretches of time or steps in which many nodes or ranks are looked at together."""


@dataclass(frozen=True, kw_only=True)
class DrawnFigure:
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
    marks: tuple[PlotMark, ...]
    happened: int = 0
    """How many marks there would be."""


def steps_of(
    metrics: MetricsTable,
    history: History,
    faults: Mapping[float, str],
    hide: Callable[[str], str],
) -> Steps | None:
    """None if nothing was logged or evaluated. faults: their numbers in the timeline, by time."""
    step = np.concatenate([metrics.steps["step"], metrics.evaluations["step"]])
    if not len(step):
        return None
    marks = [
        PlotMark(x=begin, until=end, label=f"steps {begin:,.0f} to {end:,.0f} were done twice")
        for begin, end in done_twice(metrics)
    ]
    troubles: dict[int, list[Launch]] = {}
    for launch in (launch for attempt in history.attempts for launch in attempt.launches):
        if launch.trouble_s is not None and launch.step is not None and launch.step >= 0:
            troubles.setdefault(launch.step, []).append(launch)
    troubled = (_mark(at, found, faults) for at, found in troubles.items())
    marks += [replace(mark, label=hide(mark.label)) for mark in troubled]
    axis = _axis_of_steps(step)
    once = ~metrics.superseded
    if once.any():
        axis = with_times(axis, metrics.steps["step"][once], metrics.steps["time_s"][once])
    return Steps(axis, tuple(every(marks, _MOST_MARKS)), len(marks))


def _mark(step: int, found: Sequence[Launch], faults: Mapping[float, str]) -> PlotMark:
    numbers = [faults.get(launch.trouble_s or 0.0, "") for launch in found]
    return PlotMark(
        x=float(step),
        label=f"after step {step:,}: {'; '.join(launch.message for launch in found)}",
        tone="bad" if any(launch.cause != "stopped" for launch in found) else "muted",
        number=",".join(filter(None, numbers)),
    )


def done_twice(metrics: MetricsTable) -> list[tuple[float, float]]:
    """Intervals of repeated steps, by their first and last logged step."""
    step = metrics.steps["step"]
    found = stretches(metrics.superseded)
    return [(float(step[first]), float(step[last - 1])) for first, last in found]


def loss_figure(metrics: MetricsTable, steps: Steps) -> DrawnFigure | None:
    step, loss = metrics.steps["step"], metrics.steps["loss"]
    evaluated, held_out = metrics.evaluations["step"], metrics.evaluations["eval_loss"]
    once = ~superseded(evaluated)
    evaluated, held_out = evaluated[once], held_out[once]
    known = np.concatenate([loss, held_out])
    known = known[~np.isnan(known)]
    if not len(known) and not {"loss", "eval_loss"} & metrics.not_finite.keys():
        return None
    lines = _over_steps("training", step, loss, metrics) if len(step) else []
    last = metrics.last("loss")
    values = [] if last is None else [("a", f"{number(last, 4)} training")]
    fine = ~np.isnan(held_out)
    if fine.any():
        lines.append(PlotLine(name="evaluation", x=evaluated[fine], y=held_out[fine], tone="b"))
        values.append(("b", f"{number(float(held_out[fine][-1]), 4)} evaluation"))
        best = int(np.nanargmin(held_out))
        if held_out[best] < held_out[fine][-1]:
            values.append(
                ("b", f"best {number(float(held_out[best]), 4)} at step {evaluated[best]:,.0f}")
            )
    y = values_axis([known])
    remarks = ["logarithmic scale"] if y.kind == "log" else []
    for whose, name in (("", "loss"), ("evaluation ", "eval_loss")):
        remarks += _not_finite_in_words(whose, metrics.not_finite.get(name, []))
    remarks += _twice_in_words(metrics)
    if len(steps.marks) < steps.happened:
        remarks.append(f"{len(steps.marks)} of {steps.happened:,} events are marked")
    return over_steps("loss", "Loss", lines, steps, y, values, remarks, height=240, wide=True)


_NotFinite = Sequence[tuple[float, str]]
"""As in `MetricsTable.not_finite`."""


def _not_finite_in_words(whose: str, found: _NotFinite) -> list[str]:
    """`NaN in 3 lines, first at step 40`."""
    steps: dict[str, list[float]] = {}
    for step, word in found:
        steps.setdefault(word, []).append(step)
    return [
        f"{whose}{word} in {counted(at, 'line')}, first at step {at[0]:,.0f}"
        for word, at in steps.items()
    ]


def _twice_in_words(metrics: MetricsTable) -> list[str]:
    found = done_twice(metrics)
    if not found:
        return []
    spans = (f"{begin:,.0f}" + (f"–{end:,.0f}" if end > begin else "") for begin, end in found)
    return [f"done twice (shaded; the first time dashed): steps {first_of(spans, 4)}"]


_MOST_TASKS = 60


def tasks_figure(
    trainings: Sequence[Training], failed: Collection[int | None]
) -> list[DrawnFigure]:
    """The loss of an array's tasks, in one pair of axes."""
    of = [one for one in trainings if np.isfinite(one.metrics.steps["loss"]).any()]
    if len(of) < 2:
        return []
    few, lines = len(of) <= len(TONES), []
    for place, one in enumerate(every(of, _MOST_TASKS)):
        once = ~one.metrics.superseded
        step, loss = (one.metrics.steps[name][once] for name in ("step", "loss"))
        line = thinned(f"task {one.task}", step, loss, TONES[place] if few else "muted")
        if one.task in failed:
            line = replace(line, name=f"{line.name}, failed", tone="bad", style="dashed")
        lines.append(line)
    x = np.concatenate([line.x for line in lines])
    steps = Steps(_axis_of_steps(x), ())
    y = values_axis([line.y for line in lines])
    told = [(line.tone, line.name) for line in lines if few or line.tone == "bad"][:12]
    remarks = ["logarithmic scale"] if y.kind == "log" else []
    remarks += [f"{len(lines)} of {len(of):,} tasks are drawn"] if len(lines) < len(of) else []
    return [
        over_steps("tasks", "Loss by task", lines, steps, y, told, remarks, height=240, wide=True)
    ]


def _axis_of_steps(step: Floats, name: str = "step") -> Axis:
    last = max(float(step.max()), float(step.min()) + 1)
    return replace(linear(float(step.min()), last, tight=True, ticks=5), name=name)


def speed_figures(metrics: MetricsTable, steps: Steps) -> list[DrawnFigure]:
    """Tokens per second, MFU, time of a step, memory, gradient and learning rate, where known."""
    peak = float(np.nan_to_num(metrics.steps["memory_bytes"]).max(initial=0))
    scale, unit = (2.0**30, "GiB") if peak >= 2**30 else (2.0**20, "MiB")
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
        once = values[~metrics.superseded]
        if np.isnan(once).all():
            continue
        gaps = metrics.not_finite.get(name, [])
        lines = _over_steps(title, metrics.steps["step"], values, metrics)
        typical = metrics.typical(name)
        median = float(np.nanmedian(once)) if typical is None else typical / scale
        told = (
            f"{number(float(once[~np.isnan(once)][-1]))} {unit}".strip()
            if name in ("memory_bytes", "lr", "grad_norm")
            else f"median {number(median)} {unit}".strip()
        )
        high = _high(values, name)
        y = linear(min(0.0, float(np.nanmin(values))), high, unit)
        remarks = [remark, *_not_finite_in_words("", gaps)]
        figures.append(over_steps(name, title, lines, steps, y, [("a", told)], remarks))
    return figures


def own_figures(own: Mapping[str, tuple[Floats, Floats]], steps: Steps) -> list[DrawnFigure]:
    """A curve of each number that the script logged under its own name."""
    figures = []
    for place, (name, (step, values)) in enumerate(own.items()):
        shown = "".join(c if c.isprintable() else "?" for c in name[:60])
        axis = linear(min(0.0, float(values.min())), float(values.max()))
        told = [("a", f"{number(float(values[-1]))} at step {step[-1]:,.0f}")]
        lines = [thinned(shown, step, values, most=_POINTS)]
        figures.append(over_steps(f"own-{place}", shown, lines, steps, axis, told, []))
    return figures


def printed_figures(points: Sequence[PrintedNumbers]) -> list[DrawnFigure]:
    """The loss of a script that logs nothing, as read from its output."""
    if len(points) < 2:
        return []
    x, unit = _places(points)
    fine = ~superseded(x)
    x, loss = x[fine], np.array([point.loss for point in points], dtype=np.float64)[fine]
    axis = _axis_of_steps(x, unit)
    y = linear(min(0.0, float(loss.min())), float(loss.max()))
    told = [("a", f"{number(float(loss[-1]), 4)} at {unit} {x[-1]:,g}")]
    remarks = ["read from its output"]
    lines = [thinned("loss", x, loss, most=_POINTS)]
    return [over_steps("printed", "Loss", lines, Steps(axis, ()), y, told, remarks)]


def _places(points: Sequence[PrintedNumbers]) -> tuple[Floats, str]:
    """What they are drawn over: epochs, steps, steps of all epochs together where these begin again
    in each, or the place in the output; and what one is called."""
    epochs = np.array([np.nan if p.epoch is None else p.epoch for p in points], dtype=np.float64)
    step = np.array([np.nan if p.step is None else p.step for p in points], dtype=np.float64)
    if np.isnan(step).any():
        return epochs, "epoch"
    if (np.diff(step) >= 0).all():
        return step, "step"
    totals = {point.total for point in points}
    total = totals.pop() if len(totals) == 1 else None
    if total is None or np.isnan(epochs).any():
        return np.arange(1.0, len(points) + 1), "line"
    return (epochs - epochs.min()) * total + step, "step"


def _high(values: Floats, name: str) -> float:
    """The top of an axis: one slow first step or one extreme gradient must not hide all others."""
    high, usual = float(np.nanmax(values)), float(np.nanpercentile(values, 99))
    return min(high, 3 * usual) if name in ("step_time_s", "grad_norm") and usual > 0 else high


def _over_steps(name: str, step: Floats, values: Floats, metrics: MetricsTable) -> list[PlotLine]:
    again = metrics.superseded
    lines = []
    kept_x, kept_y = thin(step[~again], values[~again], _POINTS)
    if again.any():
        x, y = step[again], values[again].copy()
        starts = np.flatnonzero(np.diff(np.flatnonzero(again)) > 1) + 1  # each for itself
        x, y = np.insert(x, starts, x[starts]), np.insert(y, starts, np.nan)
        if len(x) <= _POINTS:
            lines.append(
                PlotLine(name=f"{name}, first time", x=x, y=y, tone="again", style="dashed")
            )
    many = int((~again).sum()) > 2 * _MIDDLES
    style: Literal["faint", "plain"] = "faint" if many else "plain"
    lines.append(PlotLine(name="" if many else name, x=kept_x, y=kept_y, style=style))
    if many:
        x, y = middle(step[~again], values[~again], _MIDDLES)
        lines.append(PlotLine(name=name, x=x, y=y))
    return lines


def over_steps(
    key: str,
    title: str,
    lines: Sequence[PlotLine],
    steps: Steps,
    y: Axis,
    values: Sequence[tuple[str, str]],
    remarks: Sequence[str],
    *,
    bands: Sequence[Band] = (),
    height: int = 150,
    wide: bool = False,
) -> DrawnFigure:
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
    return DrawnFigure(title=title, drawing=drawing, values=tuple(values), remark=remark, wide=wide)


def thinned(name: str, x: Floats, y: Floats, tone: str = "a", most: int = COLUMNS) -> PlotLine:
    kept_x, kept_y = thin(x, y, most)
    return PlotLine(name=name, x=kept_x, y=kept_y, tone=tone)
