"""`fsdpkit audit`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import write_file, write_page
from fsdpkit.cli.usage import period, show

if TYPE_CHECKING:
    from fsdpkit.publishing.audit import FailingNode, GrowingCause, RunAudit
    from fsdpkit.reporting.spent_shown import UsageSection
    from fsdpkit.runs.tally import Row

_BY = "week,partition,gpu"
_OF_PAGE = (["partition", "gpu"], ["version"], ["site"])


@answer("fsdpkit.audit/1")
def _audited(
    centre: Path,
    since_s: float,
    until_s: float,
    runs: int,
    users: int,
    without_end: int,
    total: Sequence[Row],
    rows: Sequence[Row],
    growing: Sequence[GrowingCause],
    nodes: Sequence[FailingNode],
    left_out: dict[str, int],
) -> None:
    """What runs used and how they ended, as their owners' jobs recorded it.

    without_end: runs that wait or run, or whose owners have not looked since Slurm ended them.
    total: one row for GPU-hours, one for node-hours of jobs without a GPU.
    growing: causes that met more users in the second half of the period than chance would make of
    the first half.
    left_out: records and accounts that do not count, by the reason.
    """


@answer("fsdpkit.audit-mine/1")
def _said_of_me(records: dict[str, Any]) -> None:
    """`--mine`: by file, the records of your runs that are there, as they were written."""


@click.command("audit")
@click.argument("centre", type=click.Path(), required=False)
@period(_BY, _BY, 4)
@click.option("--json-lines", metavar="FILE", help="Write each attempt as a line of JSON.")
@click.option(
    "--openmetrics",
    metavar="FILE.prom",
    help="Write figures for the textfile collector of Prometheus' node exporter.",
)
@click.option("--page", metavar="FILE", help="Write an HTML page, as for a monthly meeting.")
@click.option("--mine", is_flag=True, help="Print what records say of your own runs.")
@json_option(_audited, _said_of_me)
def command(
    centre: str | None,
    weeks: int,
    by: tuple[str, ...],
    json_lines: str | None,
    openmetrics: str | None,
    page: str | None,
    mine: bool,
    as_json: bool,
) -> int:
    """Count what a centre's runs used in the last weeks, how they ended, and why some failed.

    \b
      fsdpkit audit /apps/fsdpkit
      fsdpkit audit /apps/fsdpkit --weeks 12 --by week,version
      fsdpkit audit /apps/fsdpkit --page meeting.html
      fsdpkit audit --mine

    CENTRE is a centre's folder. Only runs that leave a record in its folder audit/ count: where
    the site's profile has `[audit] share = true`, or their owners share them.
    """
    if mine:
        return _mine(as_json)
    if centre is None:
        raise click.UsageError("Name the centre's folder, or say --mine.")
    if openmetrics is not None and not openmetrics.endswith(".prom"):
        raise click.UsageError("--openmetrics: the node exporter reads only files called *.prom.")
    from fsdpkit.publishing.audit import attempts, audit
    from fsdpkit.reporting.spent_shown import rows_section
    from fsdpkit.runs.tally import tallies

    where = Path(centre).absolute()
    found = audit(where, weeks)
    nodes = found.nodes(_away())
    if json_lines is not None:
        from fsdpkit.cli.json_output import as_json as line_of

        text = "".join(f"{line_of(one)}\n" for one in attempts(found))
        write_file(text, Path(json_lines), by_umask=True)
    if openmetrics is not None:
        from fsdpkit.publishing.audit_metrics import metrics_text

        # The exporter is another user, whatever the umask of who calls this.
        write_file(metrics_text(found, nodes), Path(openmetrics)).chmod(0o644)
    weekly, total, rows, *more = tallies(found.spent, [["week"], [], by, *_OF_PAGE])
    tables, notes = [rows_section(rows, by), *_sections(found, nodes)], _about(found)
    if page is not None:
        from fsdpkit.reporting.spent_shown import page as drawn

        tables[1:1] = map(rows_section, more, _OF_PAGE)
        title = f"Runs at {where.name or where}"
        text = drawn(title, found.until_s, weekly, total, tables, notes)
        write_page(text, page)
    if as_json:
        counts = (found.runs, len(found.users), found.without_end)
        of_nodes = (found.growing, nodes, dict(found.left_out))
        return _audited(where, found.since_s, found.until_s, *counts, total, rows, *of_nodes)
    if not (json_lines or openmetrics or page):
        show(total, tables)
        for note in notes:
            click.echo(f"fsdpkit: {note}", err=True)
    return 0


def _mine(as_json: bool) -> int:
    from fsdpkit.scheduling.sharing import records_of_mine

    found = records_of_mine()
    if as_json:
        import msgspec

        return _said_of_me({str(path): msgspec.Raw(text) for path, text in found.items()})
    for path, text in found.items():
        click.echo(f"{path}\n{text.decode(errors='replace')}")
    if not found:
        click.echo("no record of a run of yours is there")
    return 0


def _away() -> dict[str, str]:
    """Nodes that Slurm has drained or down, where there is a Slurm that says so."""
    from fsdpkit.errors import SchedulerError
    from fsdpkit.scheduling.slurm_answers import answers_of

    try:
        return answers_of(None).away()
    except SchedulerError:
        return {}


def _sections(found: RunAudit, nodes: Sequence[FailingNode]) -> list[UsageSection]:
    """Beside what was used; those with a row."""
    from fsdpkit.reporting.spent_shown import UsageSection, counts
    from fsdpkit.reporting.words import moment

    growing = [
        [one.cause, f"{one.before:,} of {one.of_before:,}", f"{one.now:,} of {one.of_now:,}"]
        for one in found.growing
    ]
    failing = [
        [
            *(one.node, f"{one.failures:,}", f"{one.users:,}", moment(one.last_s)),
            *(counts(one.causes, 4), one.away or "-"),
        ]
        for one in nodes
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
    ]
    return [one for one in made if one.rows]


def _about(found: RunAudit) -> list[str]:
    """What to know of the figures."""
    return [
        f"{found.runs:,} runs of {len(found.users):,} users left a record; {found.without_end:,} "
        "of them have no end: they wait or run, or their owners have not looked since Slurm ended "
        "them",
        "all jobs of fsdpkit, with a record or without: sacct -a -X -o "
        "JobID,User,Elapsed,State,Comment%80, where Comment begins with fsdpkit:",
        *(f"left out {count:,}: {why}" for why, count in found.left_out.most_common()),
    ]
