"""What an audit counted, as tables for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fsdpkit.listing import first_of
from fsdpkit.reporting.spent_shown import HEADS, UsageSection, cells
from fsdpkit.reporting.words import duration, moment
from fsdpkit.runs.tally import Row

if TYPE_CHECKING:
    from fsdpkit.publishing.audit import FailingNode, RunAudit

_CAUSES = 4
OF_PAGE = (["partition", "gpu"], ["version"], ["site"])


def rows_section(rows: Sequence[Row], by: Sequence[str]) -> UsageSection:
    """A row for each of these words."""
    if "week" not in by:
        rows = sorted(rows, key=lambda row: (row.unit, -row.hours))
    head = [*(word.upper() for word in by), *HEADS, "USERS", "ENDS"]
    found = [
        [*(w or "-" for w in row.by.values()), *cells(row), f"{row.users:,}", _counts(row.ends)]
        for row in rows
    ]
    return UsageSection(
        f"By {', '.join('GPU' if word == 'gpu' else word for word in by)}", head, found
    )


def _counts(causes: dict[str, int]) -> str:
    return first_of((f"{cause} {count:,}" for cause, count in causes.items()), _CAUSES)


def sections(found: RunAudit, nodes: Sequence[FailingNode]) -> list[UsageSection]:
    """Beside what was used; those with a row."""
    growing = [
        [one.cause, f"{one.before:,} of {one.of_before:,}", f"{one.now:,} of {one.of_now:,}"]
        for one in found.growing
    ]
    failing = [
        [
            *(one.node, f"{one.failures:,}", f"{one.users:,}", moment(one.last_s)),
            *(_counts(one.causes), one.away or "-"),
        ]
        for one in nodes
    ]
    waits = [
        [one.partition or "-", f"{one.attempts:,}", duration(one.median_s), duration(one.most_s)]
        for one in found.waits
    ]
    made = [
        UsageSection(
            "Causes that grow",
            ["CAUSE", "USERS BEFORE", "USERS NOW"],
            growing,
            "Users whom it met in the first half of the period and in the second: five or more, "
            "and by two standard deviations more than the first half would make one expect.",
        ),
        UsageSection(
            "Nodes that failed more than once",
            ["NODE", "FAILURES", "USERS", "LAST", "CAUSES", "SLURM SAYS NOW"],
            failing,
        ),
        UsageSection(
            "Time in the queue",
            ["PARTITION", "ATTEMPTS", "MEDIAN", "90 %"],
            waits,
            "From the submission, or the end of the attempt before; time that a job was held, or "
            "waited for another, counts.",
        ),
    ]
    return [one for one in made if one.rows]


def about(found: RunAudit) -> list[str]:
    """What to know of the figures."""
    return [
        f"{len(found.users):,} users' {found.runs:,} runs left a record; {found.without_end:,} of "
        "them have no end: they wait or run, or their owners have not looked since Slurm ended "
        "them",
        f"a record is its owner's word: one user's are {found.most_of_one:.0%} of all hours",
        "all jobs of fsdpkit, with a record or without: sacct -a -X -o "
        "JobID,User,Elapsed,State,Comment%80, where Comment begins with fsdpkit:",
        *(f"left out {count:,}: {why}" for why, count in found.left_out.most_common()),
    ]
