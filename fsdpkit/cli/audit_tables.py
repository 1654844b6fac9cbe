"""What an audit counted, as tables for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fsdpkit.listing import first_of
from fsdpkit.reporting.words import duration, moment, number, zone_name
from fsdpkit.runs.account import USES
from fsdpkit.runs.tally import Row

if TYPE_CHECKING:
    from fsdpkit.publishing.audit import FailingNode, RunAudit

_CAUSES = 6
_WASTED = {
    "failed_at_start": ("failed at start", "within an hour and before a step: all of the attempt"),
    "after_failures": ("repeated or lost", "steps done again, and time up to a restart or the end"),
    "idle": ("idle", "standby and lost nodes, and GPUs on which nothing ran"),
}
_HEADS = {"gpu": "GPU", "version": "Template", "fsdpkit": "fsdpkit"}
_OF_PAGE = (["week"], ["partition", "gpu"], ["version"], ["site"])


class AuditTable(NamedTuple):
    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""


def summary(found: RunAudit) -> list[tuple[str, str]]:
    """What is said above all tables: name and value."""
    said = [("runs", f"{found.runs:,}"), ("users", f"{len(found.users):,}")]
    for row in found.rows(()):
        said.append((row.unit, number(row.hours)))
        if row.unit == "GPU-hours":
            said.append(
                (f"of the {_share(row.measured_share)} sampled busy", _share(row.busy_share))
            )
        said.append((f"of {row.unit} wasted", _share(_wasted_share(row))))
    return said


def tables(
    found: RunAudit, nodes: Sequence[FailingNode], bys: Sequence[list[str]]
) -> list[AuditTable]:
    """Those with a row. bys: of the first tables, what their rows are for."""
    made = [_by(found.rows(by), by) for by in bys]
    made += [_wasted(found), _growing(found), _nodes(nodes), _waits(found)]
    return [one for one in made if one.rows]


def _by(rows: Sequence[Row], by: list[str]) -> AuditTable:
    heads = [_HEADS.get(word, word.capitalize()) for word in by]
    columns = ["Runs", "Users", "Hours", "Busy", "Wasted", "Done", "Failed", "Causes"]
    return AuditTable(
        f"By {', '.join('GPU' if word == 'gpu' else word for word in by)}",
        [*heads, *columns],
        [[*(row.by[word] or "-" for word in by), *_cells(row)] for row in rows],
    )


def _cells(row: Row) -> list[str]:
    failed = {cause: n for cause, n in row.ends.items() if cause not in ("done", "stopped")}
    causes = first_of((f"{cause} {n}" for cause, n in failed.items()), _CAUSES)
    return [
        *(f"{row.runs:,}", f"{row.users:,}", f"{number(row.hours)} {row.unit[:-4]}"),
        *(_share(row.busy_share), _share(_wasted_share(row))),
        f"{sum(row.ends.values()) - sum(failed.values()):,}",
        *(f"{sum(failed.values()):,}", causes),
    ]


def _wasted_share(row: Row) -> float | None:
    return sum(row.wasted.values()) / row.hours if row.hours else None


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _wasted(found: RunAudit) -> AuditTable:
    rows = []
    for row in found.rows(()):
        for waste, hours in row.wasted.items():
            name, means = _WASTED[waste]
            share = _share(hours / row.hours if row.hours else None)
            rows.append([name, f"{number(hours)} {row.unit}", share, means])
        if row.asked_hours:
            over = row.asked_hours - row.asked_used_hours
            means = "of the time limits of attempts that ended; nobody was kept from using it"
            share = _share(over / row.asked_hours)
            rows.append(["asked, not taken", f"{number(over)} {row.unit}", share, means])
    return AuditTable("Wasted", ["Cause", "Hours", "Share", "That is"], rows)


def _growing(found: RunAudit) -> AuditTable:
    rows = [
        [one.cause, f"{one.before:,}", f"{one.now:,}", f"{one.users:,}"] for one in found.growing
    ]
    return AuditTable(
        "Causes that grow",
        ["Cause", "Runs before", "Runs now", "Users now"],
        rows,
        "The second half of the period beside the first: at least 10 runs of 3 users, and more by "
        "two standard deviations than the share of the first half.",
    )


def _nodes(nodes: Sequence[FailingNode]) -> AuditTable:
    rows = [
        [
            *(one.node, f"{one.failures:,}", f"{one.users:,}", moment(one.last_s)),
            first_of((f"{cause} {n}" for cause, n in one.causes.items()), _CAUSES),
            one.away or "-",
        ]
        for one in nodes
    ]
    head = ["Node", "Failures", "Users", "Last", "Causes", "Slurm says now"]
    return AuditTable("Nodes that failed more than once", head, rows)


def _waits(found: RunAudit) -> AuditTable:
    rows = [
        [one.partition or "-", f"{one.attempts:,}", duration(one.median_s), duration(one.most_s)]
        for one in found.waits
    ]
    note = "From the submission, or the end of the attempt before; time that a job was held counts."
    return AuditTable("Time in the queue", ["Partition", "Attempts", "Median", "90 %"], rows, note)


def page_text(centre: Path, found: RunAudit, nodes: Sequence[FailingNode], weeks: int) -> str:
    """The page as HTML."""
    from fsdpkit import __version__
    from fsdpkit.reporting.report.page import rendered

    rows = [row for row in found.rows(("week",)) if row.unit == "GPU-hours"]
    context: dict[str, Any] = {
        "centre": centre.name or str(centre),
        "weeks": weeks,
        "since": moment(found.since_s),
        "numbers": summary(found),
        "bars": _bars(rows),
        "uses": {use: USES[use][0] for use in USES if any(use in row.used for row in rows)},
        "tables": tables(found, nodes, _OF_PAGE),
        "without_end": found.without_end,
        "most_of_one": found.most_of_one,
        "left_out": found.left_out,
        "now": f"{moment(found.now_s)} {zone_name(found.now_s)}",
        "version": __version__,
    }
    return rendered("audit.html.j2", context)


def _bars(rows: Sequence[Row]) -> list[tuple[str, str, list[tuple[str, str, float, float]]]]:
    """A week each: its name, its hours, and by use the label, the place and the width, in percent
    of the week with the most hours."""
    most, bars = max((row.hours for row in rows), default=0.0) or 1.0, []
    for row in rows:
        at, parts = 0.0, list[tuple[str, str, float, float]]()
        for use in USES:
            width = 100 * row.used.get(use, 0.0) / most
            parts.append((use, f"{USES[use][0]} {number(row.used.get(use, 0.0))}", at, width))
            at += width
        bars.append((row.by["week"] or "-", number(row.hours), parts))
    return bars
