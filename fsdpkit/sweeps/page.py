"""A sweep as one HTML file that needs nothing else, drawn and styled as a run's report."""

from __future__ import annotations

from collections.abc import Sequence

from fsdpkit import __version__
from fsdpkit.config.array_tasks import text
from fsdpkit.reporting.report.page import rendered
from fsdpkit.reporting.scales import moment, number, zone_name
from fsdpkit.runs.record import now_s
from fsdpkit.sweeps.importance import LEAST, importances
from fsdpkit.sweeps.parallel import MOST_AXES, parallel
from fsdpkit.sweeps.record import SweepPaths, SweepRecord, decisions
from fsdpkit.sweeps.results import Result, best
from fsdpkit.sweeps.space import Settings, parameters
from fsdpkit.sweeps.table import in_a_line, in_order, rows, short


def comparable(
    paths: SweepPaths, record: SweepRecord, found: Sequence[Result]
) -> list[tuple[Settings, float]]:
    """What trials came to with the same training: at the end of the first rung, or of all."""
    if record.halving is None:
        return [(one.settings, one.value) for one in found if one.counts and one.value is not None]
    first = [d for n in range(len(record.batches)) for d in decisions(paths, record, n)[:1]]
    return [
        (dict(record.trials[one.trial]), one.value)
        for decision in first
        for one in decision.judged
        if one.value is not None
    ]


def page(paths: SweepPaths, record: SweepRecord, found: Sequence[Result]) -> str:
    """The page's text."""
    space = parameters(record.file.parameters)
    drawn = [one for one in in_order(record, found) if one.counts]
    judged_by = comparable(paths, record, found)
    top = best(found, highest=record.highest)
    made_s = now_s()
    return rendered(
        "sweep.html.j2",
        {
            "name": record.name,
            "summary": in_a_line(record, found),
            "metric": record.file.metric,
            "best": None
            if top is None or top.value is None
            else {
                "trial": top.trial,
                "value": number(top.value, 4),
                "settings": [(short(key), text(value)) for key, value in top.settings.items()],
                "command": f"fsdpkit submit {paths.trial(top.trial)}",
            },
            "table": rows(record, found),
            "problems": [(one.trial, one.problem) for one in found if one.problem],
            "parallel": parallel(space, drawn, record.file.metric) if drawn else None,
            "drawn": len(drawn),
            "hidden_axes": max(0, len(space) - MOST_AXES + 1),
            "importances": [
                {
                    "key": short(one.key),
                    "strength": f"{one.strength:.2f}",
                    "share": round(100 * one.strength),
                    "direction": {None: "choice", True: "rises", False: "falls"}[one.rises],
                }
                for one in importances(judged_by)
            ],
            "judged_by": len(judged_by),
            "least": LEAST,
            "halved": record.halving is not None,
            "now": f"{moment(made_s)} {zone_name(made_s)}",
            "version": __version__,
        },
    )
