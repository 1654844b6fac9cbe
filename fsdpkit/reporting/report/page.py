"""One run as one self-contained HTML file: what ran, how it went, what it cost.

Everything is gathered and worded here; `page.html.j2` lays it out, and `page.css` and `page.js` are
embedded. The page forbids itself to load anything (its Content-Security-Policy). What it shows was
written by others, so all of it is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from fsdpkit import __version__
from fsdpkit.listing import counted
from fsdpkit.reporting import worth
from fsdpkit.reporting.predictions import cells
from fsdpkit.reporting.report import about, figures, figures_by_node, figures_by_rank, head
from fsdpkit.reporting.report.plots import LaneBlock, lanes, shares
from fsdpkit.reporting.report.predicted import comparisons
from fsdpkit.reporting.scales import clock
from fsdpkit.reporting.series import every, read_own_numbers
from fsdpkit.reporting.status.held_runs import HoldUse, use_of_hold
from fsdpkit.reporting.status.printed import pattern_of, points_in, printed_by, tails
from fsdpkit.reporting.status.status_record import Printed
from fsdpkit.reporting.timeline import TimelineSpan, timeline_of
from fsdpkit.reporting.training import Training, trainings_of
from fsdpkit.reporting.words import duration, moment, number, zone_name
from fsdpkit.runs.account import Account
from fsdpkit.runs.history import History
from fsdpkit.runs.provenance import in_words
from fsdpkit.runs.reading import table_in
from fsdpkit.runs.uses import Uses
from fsdpkit.scheduling.asking import Asking
from fsdpkit.scheduling.run import Run

if TYPE_CHECKING:
    from fsdpkit.reporting.diagnosis.diagnose import Diagnosis

_HERE = Path(__file__).parent
_MOST_EVENTS = 200
_MOST_PREDICTED = 24
"""Tables; an array may have thousands of tasks."""
_MOST_TEXTS = 40
"""Of what stands beside a diagnosis."""
_MOST_BLOCKS = 400
"""In a lane of the timeline; of more every second is drawn, or every third, and so on."""


def page(run: Run, array_task: int | None = None, now_s: float | None = None) -> str:
    """The report as HTML. Raises NotFoundError or UsageError for a task that the run has not."""
    tasks = run.record.tasks_of(array_task)
    return page_of(trainings_of(run, tasks, run.job_states()), array_task, now_s)


def page_of(
    trainings: Sequence[Training],
    array_task: int | None = None,
    now_s: float | None = None,
    again_s: int | None = None,
) -> str:
    """The report of these trainings of a run. array_task: the one that is shown in full. again_s:
    after how many seconds a browser loads it again."""
    now_s = time.time() if now_s is None else now_s
    run, states = trainings[0].run, trainings[0].states
    detailed = trainings[0] if run.record.array is None or array_task is not None else None
    job = table_in(run.paths.job)
    made_from = about.provenance_of(run)
    ranks = run.record.nodes * run.record.ranks_per_node
    printed = printed_by(detailed.history, job, ranks) if detailed else None
    hide = about.hiding(job)
    found = _diagnosis(run, array_task, trainings)
    told_of = next((t for t in trainings if found and t.task == found.task), detailed)
    log_ends = about.log_ends(told_of, found) if told_of else []
    accounts = [account for one in trainings for account in one.accounts(now_s)]
    spent = Uses(accounts) if accounts and not run.record.holds else None
    predicted = [(one.task, each) for one in trainings for each in comparisons(one)]
    newest = [each for _, each in predicted] if detailed else []
    context: dict[str, Any] = {
        "run": run,
        "record": run.record,
        "array_task": array_task,
        "now": f"{moment(now_s)} {zone_name(now_s)}",
        "version": __version__,
        "again_s": again_s,
        "head": head.headline(trainings, now_s, spent, newest, printed),
        "facts": about.facts(run, detailed, job, states),
        "diagnosis": found,
        "diagnosis_title": _diagnosis_title(found, trainings) if found else "",
        "of_diagnosis": [*log_ends, *_beside(found, run.dir)] if found else [],
        "log_ends": log_ends,
        "spent": spent if spent and spent.granted_h else None,
        "task_in_full": told_of.task if told_of else trainings[0].task,
        "figures": worth.figures(spent) if spent else [],
        "hints": _hints(accounts, job, detailed),
        "held": _held(run, trainings, now_s) if run.record.holds else None,
        "predicted": predicted[:_MOST_PREDICTED],
        "settings": about.settings(job, made_from),
        "made_from": made_from,
        "sources": about.sources(run, made_from) if made_from else [],
        "command": about.command(run.record.command),
        "versions": about.versions(run, trainings),
        "tasks": trainings if detailed is None else [],
        **(_details(detailed, now_s, hide) if detailed else _NO_DETAILS),
    }
    if detailed is None:
        failed = {one.task for one in trainings if head.state_in_words(one)[1] == "bad"}
        context["training"] = figures.tasks_figure(trainings, failed)
    if detailed and printed is not None and not context["training"]:
        context["training"] = _printed_figures(detailed.history, job, printed, now_s)
    return rendered("page.html.j2", {**context, **_IN_TEMPLATE}, hide)


_NO_DETAILS: dict[str, Any] = {
    "timeline": None,
    "training": [],
    "ranks": None,
    "machines": [],
    "stragglers": [],
}


def _hints(
    accounts: Sequence[Account], job: Mapping[str, Any], one: Training | None
) -> Sequence[worth.Hint]:
    """Of one training; an array's tasks may differ."""
    if one is None or not accounts:
        return ()
    return worth.hints(accounts, job, done=one.state is not None and one.state.succeeded)


def _held(run: Run, trainings: Sequence[Training], now_s: float) -> HoldUse:
    """What its nodes were used for since its job began."""
    bounds = [(begin, end) for one in trainings for begin, end in one.bounds if begin is not None]
    held_s = sum((now_s if end is None else end) - begin for begin, end in bounds)
    return use_of_hold(run.paths, run.record, held_s, Asking())


def _diagnosis(run: Run, task: int | None, trainings: Sequence[Training]) -> Diagnosis | None:
    """Why it failed or is pending; None for a run that is well."""
    from fsdpkit.reporting.diagnosis.diagnose import diagnose
    from fsdpkit.reporting.diagnosis.evidence import MustRead, gather

    if all(one.state is not None and one.state.succeeded for one in trainings):
        return None
    found = diagnose(gather(run, MustRead(task)))
    return None if found.cause in ("done", "running") else found


def _beside(found: Diagnosis, directory: Path) -> list[tuple[str, str]]:
    """What it rests on, and what else happened: (what, text)."""
    quotes = [f"{one.place(directory)}\n{one.text}" for one in found.evidence]
    lists = {
        "Evidence": quotes,
        "What only followed from it": found.follow_on,
        "What came before it": found.earlier,
        "What was looked at": found.looked_at,
    }
    return [
        (f"{what} ({len(texts)})", "\n".join(texts[:_MOST_TEXTS]))
        for what, texts in lists.items()
        if texts
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


def _details(one: Training, now_s: float, hide: Callable[[str], str]) -> dict[str, Any]:
    history, metrics, record = one.history, one.metrics, one.run.record
    spans = timeline_of(record, history, one.states, metrics)
    timeline = [replace(span, label=hide(span.label)) for span in spans]
    faults = (span for span in timeline if span.kind == "fault")
    numbers = {span.begin_s: str(place) for place, span in enumerate(faults, 1)}
    steps = figures.steps_of(metrics, history, numbers, hide)
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
        "ranks": figures_by_rank.rank_figure(metrics, history, steps, per_node, slow)
        if steps
        else None,
        "stragglers": slow,
        "machines": figures_by_node.machine_figures(history, one.bounds, now_s),
    }


# The timeline


@dataclass(frozen=True)
class Timeline:
    drawing: Markup
    events: Sequence[tuple[str, str, str, str]]
    """When, how long, what, and the number of its disc."""
    left_out: int
    queued: str


_LANES = {
    "queue": "queue",
    "attempt": "attempts",
    "stage": "launches",
    "launch": "launches",
    "checkpoint": "saved",
    "stop": "stops",
    "fault": "faults",
}
_TONES = {"queue": "wait", "stage": "wait", "checkpoint": "saved", "stop": "wait", "fault": "bad"}


def _timeline(spans: Sequence[TimelineSpan], now_s: float) -> Timeline:
    begin_s = min(span.begin_s for span in spans)
    end_s = max((now_s if s.end_s is None else s.end_s) for s in spans)
    rows: dict[str, list[LaneBlock]] = {name: [] for name in _LANES.values()}
    events, queued_s = [], 0.0
    for span in spans:
        until_s = now_s if span.end_s is None else span.end_s
        took = duration(until_s - span.begin_s) if until_s > span.begin_s else ""
        took = f"{took} so far" if span.end_s is None else took
        label = f"{span.label}, {took}" if took else f"{span.label}, {moment(span.begin_s)}"
        mark = ""
        lane = rows[_LANES[span.kind]]
        moment_only = span.kind in ("checkpoint", "stop", "fault")
        if span.kind == "fault":
            mark = str(len(lane) + 1)
        elif span.kind == "queue":
            queued_s += until_s - span.begin_s
        lane.append(
            LaneBlock(
                begin=span.begin_s,
                end=None if moment_only else until_s,
                tone=_TONES.get(span.kind, f"{span.kind}{len(lane) % 2}"),
                label=label,
                number=mark,
            )
        )
        if span.kind != "checkpoint":
            events.append((moment(span.begin_s), took, span.label, mark))
    lanes_ = [(name, every(blocks, _MOST_BLOCKS)) for name, blocks in rows.items() if blocks]
    saved, faults = len(rows["saved"]), len(rows["faults"])
    description = f"{len(events)} events, {saved} checkpoints, {faults} faults"
    drawing = lanes("timeline", "Timeline", description, lanes_, clock(begin_s, end_s))
    shown = events[-_MOST_EVENTS:]
    return Timeline(drawing, shown, len(events) - len(shown), duration(queued_s))


def _bar(spent: Uses) -> Markup:
    parts = [(part.name, part.share, f"use-{part.use}") for part in spent.parts]
    return shares("efficiency", f"What became of the {spent.shown_unit}", parts)


def _trouble(one: Training) -> str:
    last = one.history.attempts[-1] if one.history.attempts else None
    trouble = last.verdict.trouble if last and last.verdict else None
    return trouble.message if trouble else ""


_IN_TEMPLATE: dict[str, Any] = {
    "arguments": about.arguments,
    "bar": _bar,
    "cells": cells,
    "code": in_words,
    "counted": counted,
    "duration": duration,
    "state": head.state_in_words,
    "trouble": _trouble,
}
"""What page.html.j2 calls."""


# HTML


def rendered(
    template: str, context: Mapping[str, Any], hide: Callable[[str], str] = lambda text: text
) -> str:
    """The page that `template` makes of the context, with style and script inside it. hide: takes
    out of every text what is not to be shown."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    style = (_HERE / "page.css").read_text("utf-8")
    script = (_HERE / "page.js").read_text("utf-8")
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: hide(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "moment": moment}
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return environment.get_template(template).render(
        **context, style=Markup(style), script=Markup(script), policy=policy
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
