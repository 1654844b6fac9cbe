"""What runs used, in words for a terminal, and as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fsdpkit import __version__
from fsdpkit.listing import counted, first_of
from fsdpkit.reporting.followed import FollowedAttempt
from fsdpkit.reporting.spent import OtherJobs
from fsdpkit.reporting.words import duration, moment, number, zone_name
from fsdpkit.runs.account import USES
from fsdpkit.runs.tally import Row
from fsdpkit.runs.uses import parts_of

_HEADS = ("RUNS", "HOURS", "OF", "COMPUTING", "BUSY", "ACTIVE", "WASTED", "KWH", "QUEUED")


_LEAST = ("QUEUED", "KWH", "ACTIVE", "USERS", "ENDS", "BUSY", "RUNS", "COMPUTING", "OF")
"""Columns that go first where there is no room."""


class UsageSection(NamedTuple):
    """A table with a title, for a terminal or a page."""

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""

    def within(self, width: int) -> UsageSection:
        """Without the columns that have no room in so many characters; the note names them."""
        columns = [*zip(self.head, *self.rows, strict=True)]
        columns = [one for one in columns if {*one[1:]} - {"", "-"} or not self.rows]
        gone = []
        for name in _LEAST:
            if sum(2 + max(map(len, one)) for one in columns) - 2 > width:
                gone += [one[0] for one in columns if one[0] == name]
                columns = [one for one in columns if one[0] != name]
        head, *rows = map(list, zip(*columns, strict=True))
        note = f"{self.note} no room for {', '.join(gone)}: --json has them" if gone else self.note
        return UsageSection(self.title, head, rows, note.strip())


def rows_section(rows: Sequence[Row], by: Sequence[str]) -> UsageSection:
    """A row for each of these words; with users and ends where there are several users."""
    if "week" not in by:
        rows = sorted(rows, key=lambda row: (row.unit, -row.hours))
    several = any(row.users > 1 for row in rows)
    found = [
        [
            *(w or "-" for w in row.by.values()),
            *_cells(row),
            *([f"{row.users:,}", counts(row.ends, 4)] if several else []),
        ]
        for row in rows
    ]
    head = [*(word.upper() for word in by), *_HEADS, *(["USERS", "ENDS"] if several else [])]
    named = ", ".join("GPU" if word == "gpu" else word for word in by)
    return UsageSection(f"By {named}", head, found)


def counts(ends: Mapping[str, int], most: int) -> str:
    return first_of((f"{cause} {count:,}" for cause, count in ends.items()), most)


def _cells(row: Row) -> list[str]:
    """Below _HEADS."""
    kwh = [one for one in (row.gpu_kwh, row.host_kwh) if one is not None]
    queued_s = row.queued_median_s
    return [
        *(f"{row.runs:,}", number(row.hours), row.unit, _share(row.computing_share)),
        *(_share(row.busy_share), _share(row.active_share)),
        _share(sum(row.wasted.values()) / row.hours if row.hours else None),
        number(sum(kwh)) if kwh else "-",
        "-" if queued_s is None else duration(queued_s),
    ]


def _share(share: float | None) -> str:
    if share is None:
        return "-"
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def sentences(row: Row) -> list[str]:
    """All that is known of many attempts, most of all of how to waste less."""
    said = [f"{number(row.hours)} {row.unit} granted to {counted(row.runs, 'run')}"]
    said[0] += f" of {row.users} users" if row.users > 1 else ""
    said[0] += f" in {counted(row.attempts, 'attempt')}" if row.attempts > row.runs else ""
    parts = [(USES[use][0], hours) for use, hours in row.used.items()]
    said.append(", ".join(f"{name} {_share(hours / row.hours)}" for name, hours in parts))
    if row.busy_share is not None:
        active = f", their multiprocessors {_share(row.active_share)}" if row.active_share else ""
        sampled = f"in the {_share(row.measured_share)} of these hours that were sampled"
        said.append(f"GPUs busy {_share(row.busy_share)}{active}, {sampled}")
    elif row.unit == "GPU-hours":
        said.append("no sample says how busy the GPUs were")
    if row.wasted:
        wasted = (f"{number(hours)} {WASTES[waste]}" for waste, hours in row.wasted.items())
        said.append(f"wasted, in {row.unit}: {', '.join(wasted)}")
    if row.ends:
        said.append(f"attempts ended: {counts(row.ends, 8)}")
    if row.asked_used_hours:
        asked = row.asked_hours / row.asked_used_hours
        said.append(f"time limits were {number(asked, 2)} times what was used of them")
    for name, kwh in (("GPUs", row.gpu_kwh), ("processors and memory", row.host_kwh)):
        if kwh is not None:
            said.append(f"{number(kwh)} kWh, by counters of {name}")
    if row.queued_median_s is not None and row.queued_most_s is not None:
        median, most = duration(row.queued_median_s), duration(row.queued_most_s)
        half = f"half of them {median} or less, at most " if row.attempts > 1 else ""
        said.append(f"waited in the queue: {half}{most}")
    return [one for one in said if one]


WASTES = {
    "failed_at_start": "failed at the start",
    "after_failures": "lost or repeated after failures",
    "idle": "idle",
}


def others_in_words(one: OtherJobs) -> str:
    what = "of fsdpkit, whose runs are not here" if one.of_fsdpkit else "without fsdpkit"
    under = ", ".join(f"{name} {word}" for name, word in one.by.items() if word is not None)
    hours = f"{number(one.gpu_hours)} GPU-hours of {counted(one.starts, 'job')}"
    return f"{under + ': ' if under else ''}{hours} {what}"


def page(
    title: str,
    now_s: float,
    weeks: Sequence[Row],
    total: Sequence[Row],
    sections: Sequence[UsageSection],
    notes: Sequence[str],
) -> str:
    """weeks, total: rows by week, and of all together. notes: what is not counted."""
    from fsdpkit.reporting.report.page import rendered
    from fsdpkit.reporting.report.plots import shares

    def bar(place: int, row: Row) -> Any:
        parts = [(one.name, one.share, f"use-{one.use}") for one in parts_of(row)]
        return shares(f"uses-{place}", f"What became of {number(row.hours)} {row.unit}", parts)

    context: Mapping[str, Any] = {
        "title": title,
        "total": [(row, sentences(row), parts_of(row)) for row in total],
        "weeks": [(row, bar(place, row)) for place, row in enumerate(weeks)],
        "notes": notes,
        "sections": sections,
        "number": number,
        "now": f"{moment(now_s)} {zone_name(now_s)}",
        "version": __version__,
    }
    return rendered("usage.html.j2", context)


def figure_lines(one: FollowedAttempt) -> Iterator[str]:
    """Where the figures of an attempt come from."""
    task = "" if one.task is None else f", task {one.task}"
    yield f"{one.run}{task}, attempt {one.attempt}"
    for figure in one.figures:
        value = f"{number(figure.value)} {figure.unit}"
        yield f"{figure.name}: {value}: {figure.how} ({', '.join(figure.files)})"
    for line in one.lines:
        values = ", ".join(f"{name} {value}" for name, value in line.values.items())
        yield f"{line.file}:{line.line}, {moment(line.time_s)}: {values}"
