"""One run as one self-contained HTML file: what ran, how it went, what it cost.

Everything is gathered and worded here; `page.html.j2` lays it out, and `page.css` and `page.js` are
embedded. The page forbids itself to load anything (its Content-Security-Policy). What it shows was
written by others, so all of it is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from fsdpkit import __version__
from fsdpkit.reporting.predictions import Prediction, cells
from fsdpkit.reporting.report import about, figures, figures_by_node, figures_by_rank
from fsdpkit.reporting.report.efficiency import FORMULAS, efficiency_of
from fsdpkit.reporting.report.plots import LaneBlock, lanes, shares, sparkline
from fsdpkit.reporting.report.predicted import comparisons
from fsdpkit.reporting.scales import clock
from fsdpkit.reporting.series import every, read_own_numbers, thin
from fsdpkit.reporting.status.printed import pattern_of, points_in, printed_by, tails
from fsdpkit.reporting.status.status_record import Printed
from fsdpkit.reporting.timeline import TimelineSpan, timeline_of
from fsdpkit.reporting.training import Training, trainings_of
from fsdpkit.reporting.words import duration, moment, number, zone_name
from fsdpkit.runs.history import History
from fsdpkit.runs.reading import table_in
from fsdpkit.scheduling.run import Run

if TYPE_CHECKING:
    from fsdpkit.reporting.diagnosis.diagnose import Diagnosis

_HERE = Path(__file__).parent
_SPARK_POINTS = 60
_MOST_EVENTS = 200
_MOST_PREDICTED = 24
"""Tables; an array may have thousands of tasks."""
_MOST_BLOCKS = 400
"""In a lane of the timeline; of more every second is drawn, or every third, and so on."""


def page(run: Run, array_task: int | None = None, now_s: float | None = None) -> str:
    """The report as HTML. Raises NotFoundError or UsageError for a task that the run has not."""
    now_s = time.time() if now_s is None else now_s
    tasks = run.record.tasks_of(array_task)
    states = run.job_states()
    trainings = trainings_of(run, tasks, states)
    detailed = trainings[0] if run.record.array is None or array_task is not None else None
    job = table_in(run.paths.job)
    made_from = about.provenance_of(run)
    ranks = run.record.nodes * run.record.ranks_per_node
    printed = printed_by(detailed.history, job, ranks) if detailed else None
    found = _diagnosis(run, array_task, trainings)
    context: dict[str, Any] = {
        "run": run,
        "record": run.record,
        "array_task": array_task,
        "now": f"{moment(now_s)} {zone_name(now_s)}",
        "version": __version__,
        "head": about.headline(trainings, now_s, printed),
        "facts": about.facts(run, detailed, job, states, printed),
        "diagnosis": found,
        "diagnosis_title": _diagnosis_title(found[0], trainings) if found else "",
        "efficiency": _efficiency(run, trainings, now_s),
        "predicted": _predicted(run, trainings),
        "settings": about.settings(job, made_from),
        "sources": about.sources(run, made_from),
        "command": about.command(run.record.command),
        "versions": about.versions(run, trainings),
        "tasks": [*map(_task_row, trainings)] if detailed is None else [],
        **(_details(detailed, now_s) if detailed else _NO_DETAILS),
    }
    if detailed and printed is not None and not context["training"]:
        context["training"] = _printed_figures(detailed.history, job, printed, now_s)
    return rendered("page.html.j2", {**context, "formulas": FORMULAS})


_NO_DETAILS: dict[str, Any] = {
    "timeline": None,
    "training": [],
    "ranks": [],
    "machines": [],
    "stragglers": [],
}


def _diagnosis(
    run: Run, task: int | None, trainings: Sequence[Training]
) -> tuple[Diagnosis, list[tuple[str, str]]] | None:
    """Why it failed or is pending, with its evidence (place, text); None for a run that is well."""
    from fsdpkit.reporting.diagnosis.diagnose import diagnose
    from fsdpkit.reporting.diagnosis.evidence import MustRead, gather

    if all(one.state is not None and one.state.succeeded for one in trainings):
        return None
    found = diagnose(gather(run, MustRead(task)))
    if found.cause in ("done", "running"):
        return None
    return found, [
        (_place(quote.file, quote.line, run.dir), quote.text) for quote in found.evidence
    ]


def _diagnosis_title(found: Diagnosis, trainings: Sequence[Training]) -> str:
    """A stop on request is no fault."""
    if found.cause.startswith("pending"):
        return "Why"
    stopped = all(one.state is not None and one.state.outcome == "stopped" for one in trainings)
    return "How it ended" if stopped or found.cause == "cancelled" else "What went wrong"


_PRINTED_BYTES, _PRINTED_LINES = 4 << 20, 20_000
"""Of a script that logs nothing, how much of its output's end is read for a curve."""


def _printed_figures(
    history: History, job: Mapping[str, Any], printed: Printed, now_s: float
) -> list[figures.DrawnFigure]:
    ends = tails(history, printed.rank, _PRINTED_BYTES)
    points = points_in(ends, pattern_of(job), now_s, _PRINTED_LINES)
    return figures.printed_figures(points)


def _place(file: Path | None, line: int | None, directory: Path) -> str:
    if file is None:
        return ""
    inside = file.relative_to(directory) if file.is_relative_to(directory) else file
    return f"{inside}:{line}" if line else str(inside)


def _details(one: Training, now_s: float) -> dict[str, Any]:
    history, metrics, record = one.history, one.metrics, one.run.record
    timeline = timeline_of(record, history, one.states, metrics)
    numbers = {span.begin_s: str(place) for place, span in enumerate(_troubles(timeline), 1)}
    steps = figures.steps_of(metrics, history, numbers)
    per_node = record.ranks_per_node
    slow = figures_by_rank.stragglers(metrics, history, per_node)
    loss = figures.loss_figure(metrics, steps) if steps else None
    return {
        "timeline": _timeline(timeline, now_s) if timeline else None,
        "training": [
            *([loss] if loss else []),
            *(figures.speed_figures(metrics, steps) if steps else []),
            *(figures.own_figures(read_own_numbers(history.paths.metrics), steps) if steps else []),
        ],
        "ranks": figures_by_rank.rank_figures(metrics, history, steps, per_node, slow)
        if steps
        else [],
        "stragglers": slow,
        "machines": figures_by_node.machine_figures(history, one.bounds, now_s),
    }


# The timeline


@dataclass(frozen=True)
class TimelineEvent:
    """A row of the list under the timeline; `number` is that of its disc."""

    when: str
    took: str
    what: str
    number: str


@dataclass(frozen=True)
class Timeline:
    drawing: Markup
    events: tuple[TimelineEvent, ...]
    left_out: int
    queued: str


def _troubles(spans: Sequence[TimelineSpan]) -> list[TimelineSpan]:
    """What gets a number, in its order."""
    return [span for span in spans if span.kind == "fault"]


def _timeline(spans: Sequence[TimelineSpan], now_s: float) -> Timeline:
    begin_s = min(span.begin_s for span in spans)
    end_s = max((now_s if s.end_s is None else s.end_s) for s in spans)
    names = ("queue", "attempts", "launches", "saved", "stops")
    rows: dict[str, list[LaneBlock]] = {name: [] for name in names}
    faults: list[LaneBlock] = []
    events, saved, queued_s = [], 0, 0.0
    for span in spans:
        until_s = now_s if span.end_s is None else span.end_s
        took = duration(until_s - span.begin_s) if until_s > span.begin_s else ""
        took = f"{took} so far" if span.end_s is None else took
        label = f"{span.label}, {took}" if took else f"{span.label}, {moment(span.begin_s)}"
        mark = ""
        if span.kind == "queue":
            queued_s += until_s - span.begin_s
            rows["queue"].append(
                LaneBlock(begin=span.begin_s, end=until_s, tone="wait", label=label)
            )
        elif span.kind in ("attempt", "launch"):
            lane = rows["attempts" if span.kind == "attempt" else "launches"]
            tone = f"{span.kind}{len(lane) % 2}"
            lane.append(LaneBlock(begin=span.begin_s, end=until_s, tone=tone, label=label))
        elif span.kind == "checkpoint":
            saved += 1
            rows["saved"].append(LaneBlock(begin=span.begin_s, end=None, tone="saved", label=label))
            continue
        elif span.kind == "stop":
            rows["stops"].append(LaneBlock(begin=span.begin_s, end=None, tone="wait", label=label))
        else:
            mark = str(len(faults) + 1)
            faults.append(
                LaneBlock(begin=span.begin_s, end=None, tone="bad", label=label, number=mark)
            )
        events.append(TimelineEvent(moment(span.begin_s), took, span.label, mark))
    lanes_ = [
        (name, every(blocks, _MOST_BLOCKS))
        for name, blocks in [*rows.items(), ("faults", faults)]
        if blocks
    ]
    description = f"{len(events)} events, {saved} checkpoints, {len(faults)} faults"
    drawing = lanes("timeline", "Timeline", description, lanes_, clock(begin_s, end_s))
    shown = events[-_MOST_EVENTS:]
    return Timeline(drawing, tuple(shown), len(events) - len(shown), duration(queued_s))


# Efficiency


@dataclass(frozen=True)
class Cost:
    granted: str
    trained: str
    """In a word."""
    told: str
    """In a clause."""
    unit: str
    """Hours, or minutes of a run that had no hour."""
    drawing: Markup
    rows: tuple[tuple[str, str, str, str, str], ...]
    """(class, name, hours, share, formula)."""


def _efficiency(run: Run, trainings: Sequence[Training], now_s: float) -> Cost | None:
    found = efficiency_of(run, trainings, now_s)
    if not found.granted_h:
        return None
    trained = found.trained_share
    short = found.granted_h < 0.5
    unit = found.unit.replace("hours", "minutes") if short else found.unit
    rows = [
        (f"use-{part.use}", part.name, _time(part.hours, short), f"{part.share:.1%}", part.formula)
        for part in found.parts
    ]
    bar = [(part.name, part.share, f"use-{part.use}") for part in found.parts]
    title = f"What became of the {unit}"
    return Cost(
        granted=f"{_time(found.granted_h, short)} {unit}",
        unit=unit,
        trained="unknown" if trained is None else f"{trained:.0%}",
        told="of which it is unknown how much trained: no step was logged"
        if trained is None
        else f"of which {trained:.0%} trained",
        drawing=shares("efficiency", title, bar),
        rows=tuple(rows),
    )


def _time(hours: float, in_minutes: bool) -> str:
    value = hours * 60 if in_minutes else hours
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


# Predicted and measured


@dataclass(frozen=True)
class PredictedRows:
    """One prediction of one training as a table; `title` where there are several."""

    title: str
    rows: tuple[tuple[str, str, str, str, str], ...]
    told: str


def _predicted(run: Run, trainings: Sequence[Training]) -> tuple[PredictedRows, ...] | None:
    """None: the run was not planned, which the page says; for the local cluster, which has no GPUs
    to plan for, it says nothing."""
    found = [(one.task, each) for one in trainings for each in comparisons(one)]
    if not found:
        return None if run.client().gpus else ()
    shown = found[:_MOST_PREDICTED]
    return tuple(
        PredictedRows(_title(task, each) if len(found) > 1 else "", _cells(each), _told(each))
        for task, each in shown
    )


def _title(task: int | None, one: Prediction) -> str:
    on = f"{one.nodes} nodes × {one.gpus} GPUs"
    return on if task is None else f"Task {task}, {on}"


def _cells(one: Prediction) -> tuple[tuple[str, str, str, str, str], ...]:
    return tuple(cells(figure) for figure in one.figures)


def _told(one: Prediction) -> str:
    rests = f"; its speed rests on {one.rests_on}" if one.rests_on else ""
    lines = f"the median of {one.lines} logged steps" if one.lines else "too few steps were logged"
    return (
        f"Predicted by fsdpkit plan on {moment(one.made_s)} for {one.nodes} nodes × {one.gpus} "
        f"GPUs ({one.card}){rests}. Measured: {lines}."
    )


# Arrays


@dataclass(frozen=True)
class TaskRow:
    task: int | None
    state: str
    tone: str
    steps: str
    loss: str
    evaluation: str
    attempts: int
    trouble: str
    arguments: str
    spark: Markup


def _task_row(one: Training) -> TaskRow:
    metrics, history = one.metrics, one.history
    step, planned, loss = metrics.last("step"), one.planned_steps, metrics.last("loss")
    words, tone = about.state_in_words(one)
    x, y = thin(metrics.steps["step"], metrics.steps["loss"], _SPARK_POINTS)
    last = history.attempts[-1] if history.attempts else None
    trouble = last.verdict.trouble if last and last.verdict else None
    return TaskRow(
        task=one.task,
        state=words,
        tone=tone,
        steps=(f"{step:,.0f}" if step is not None else "–")
        + (f" / {planned:,.0f}" if planned else ""),
        loss=number(loss, 4) if loss is not None else "–",
        evaluation=number(one.eval_loss, 4) if one.eval_loss is not None else "–",
        attempts=len(history.attempts),
        trouble=trouble.message if trouble else "",
        arguments=about.arguments(one.job, one.task),
        spark=sparkline(x, y, f"loss of task {one.task}"),
    )


# HTML


def rendered(template: str, context: Mapping[str, Any]) -> str:
    """The page that `template` makes of the context, with style and script inside it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    style = (_HERE / "page.css").read_text("utf-8")
    script = (_HERE / "page.js").read_text("utf-8")
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return environment.get_template(template).render(
        **context, style=Markup(style), script=Markup(script), policy=policy
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
