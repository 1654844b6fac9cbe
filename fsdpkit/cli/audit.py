"""`fsdpkit audit`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import print_sentences, table, write_file, write_page

if TYPE_CHECKING:
    from fsdpkit.publishing.audit import FailingNode, GrowingCause, QueueWait, RunAudit
    from fsdpkit.reporting.spent_shown import UsageSection
    from fsdpkit.runs.tally import Row

_BY = "week,partition,gpu"


@answer("fsdpkit.audit/1")
def _audited(
    centre: Path,
    since_s: float,
    until_s: float,
    runs: int,
    users: int,
    without_end: int,
    most_of_one: float,
    total: Sequence[Row],
    rows: Sequence[Row],
    growing: Sequence[GrowingCause],
    nodes: Sequence[FailingNode],
    waits: Sequence[QueueWait],
    left_out: dict[str, int],
) -> None:
    """What runs used and how they ended, as their owners' jobs recorded it.

    without_end: runs that wait or run, or whose owners have not looked since Slurm ended them.
    most_of_one: the share of all hours that one user's records claim, 0 to 1.
    total: one row for GPU-hours, one for node-hours of jobs without a GPU.
    growing: causes that met more users in the second half of the period than chance would make of
    the first half.
    left_out: records and accounts that do not count, by the reason.
    """


@answer("fsdpkit.audit-mine/1")
def _said_of_me(records: dict[str, Any]) -> None:
    """`--mine`: by file, the records of your runs that are there, as they were written."""


def _words_of(ctx: click.Context, option: click.Parameter, text: str) -> list[str]:
    from fsdpkit.publishing.audit import BY

    words = [word.strip() for word in text.split(",")]
    if wrong := [word for word in words if word not in BY]:
        raise click.BadParameter(f"{wrong[0]!r} is none of {', '.join(BY)}")
    return words


@click.command("audit")
@click.argument("centre", type=click.Path(), required=False)
@click.option(
    "--weeks",
    type=click.IntRange(1, 520),
    default=4,
    help="Number of weeks, this one included (default: 4).",
)
@click.option(
    "--month",
    type=click.DateTime(["%Y-%m"]),
    metavar="YYYY-MM",
    help="Of a calendar month, in place of weeks.",
)
@click.option(
    "--by",
    default=_BY,
    callback=_words_of,
    metavar="WORD,…",
    help=f"A row for each (default: {_BY}); also version, site, fsdpkit, project, user.",
)
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
    month: datetime | None,
    by: list[str],
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
      fsdpkit audit /apps/fsdpkit --month 2026-10 --page october.html
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
    from fsdpkit.cli.audit_tables import OF_PAGE, about, rows_section, sections
    from fsdpkit.publishing.audit import attempts, audit

    where = Path(centre).absolute()
    found = audit(where, weeks, month)
    nodes = found.nodes(_away())
    if json_lines is not None:
        from fsdpkit.cli.json_output import as_json as line_of

        text = "".join(f"{line_of(one)}\n" for one in attempts(found))
        write_file(text, Path(json_lines), by_umask=True)
    if openmetrics is not None:
        from fsdpkit.publishing.audit_metrics import metrics_text

        # The exporter is another user, whatever the umask of who calls this.
        write_file(metrics_text(found, nodes), Path(openmetrics)).chmod(0o644)
    tables = found.tables([["week"], by, [], *OF_PAGE])
    rows, total = tables[1:3]
    if page is not None:
        from fsdpkit.reporting.spent_shown import page as drawn

        beside = [*map(rows_section, tables[3:], OF_PAGE), *sections(found, nodes)]
        title = f"Runs at {where.name or where}"
        text = drawn(title, found.until_s, by, tables[:3], [], about(found), beside)
        write_page(text, page)
    if as_json:
        counts = (found.runs, len(found.users), found.without_end, found.most_of_one)
        of_nodes = (found.growing, nodes, found.waits, dict(found.left_out))
        return _audited(where, found.since_s, found.until_s, *counts, total, rows, *of_nodes)
    if not (json_lines or openmetrics or page):
        _print(found, nodes, total, rows_section(rows, by))
        for note in about(found):
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


def _print(
    found: RunAudit, nodes: Sequence[FailingNode], total: Sequence[Row], first: UsageSection
) -> None:
    from fsdpkit.cli.audit_tables import sections
    from fsdpkit.reporting.printable import one_line
    from fsdpkit.reporting.spent_shown import sentences

    for row in total:
        print_sentences(sentences(row))
        click.echo()
    for one in (first, *sections(found, nodes)):
        click.echo(one.title)
        table(one.head, [[one_line(cell) for cell in row] for row in one.rows])
        click.echo(f"{one.note}\n" if one.note else "")
