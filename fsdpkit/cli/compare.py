"""`fsdpkit compare`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete_run, hanging, runs_option, write_page

if TYPE_CHECKING:
    from fsdpkit.reporting.comparison.compared import Comparison, RunDifference, Side

_MOST_PACKAGES = 20
_WIDTH = 80


@answer(None)
def _comparison(found: Comparison) -> None:
    """Runs beside each other."""


@click.command("compare")
@click.argument("run", nargs=-1, required=True, shell_complete=complete_run)
@runs_option
@click.option(
    "--html",
    type=click.Path(dir_okay=False),
    help="Write one HTML file instead, or `-` to print it.",
)
@json_option(_comparison)
def command(run: tuple[str, ...], runs: str | None, html: str | None, as_json: bool) -> int:
    """Compare runs: settings that differ and results; in a page also curves.

    \b
      fsdpkit compare 3f2a 91c0
      fsdpkit compare 3f2a 91c0 --html compared.html

    Each array task counts as a run. Active runs are shown as of now.
    """
    from fsdpkit.errors import UsageError
    from fsdpkit.reporting.comparison.compared import compare
    from fsdpkit.scheduling.run import Run

    if html is not None and as_json:
        raise UsageError("--html and --json are two forms of one answer: choose one of them")
    opened = {
        (found := Run.open(name, runs=runs, copied=True)).dir.resolve(): found for name in run
    }
    told, sides = compare(list(opened.values()))
    if html is not None:
        from fsdpkit.reporting.comparison.page import page

        if path := write_page(page(told, sides), html):
            click.echo(path)
    elif as_json:
        _comparison(told)
    else:
        for line in _described(told, sides):
            click.echo(line)
    return 0


def _described(told: Comparison, sides: Sequence[Side]) -> list[str]:
    lines = [f"{side.label}  {side.name}" for side in sides]
    lines += ["", *_table(told), "", *_differing("settings that differ", told.settings)]
    if told.packages:
        lines += ["", *_differing("packages that differ", told.packages[:_MOST_PACKAGES])]
    if (more := len(told.packages) - _MOST_PACKAGES) > 0:
        lines.append(f"  and {more} packages more: --json has them all")
    return lines


def _table(told: Comparison) -> list[str]:
    """In line; where it is too wide for 80 columns in two parts, one below the other."""
    from fsdpkit.reporting.comparison.table import rows

    table = rows(told)
    widths = [max(len(row[c]) for row in table) for c in range(len(table[0]))]
    parts: list[list[int]] = [[0]]
    for column in range(1, len(widths)):
        if sum(widths[c] + 2 for c in [*parts[-1], column]) - 2 > _WIDTH:
            parts.append([0])
        parts[-1].append(column)
    lines: list[str] = []
    for part in parts:
        lines += [""] if lines else []
        lines += ["  ".join(row[c].ljust(widths[c]) for c in part).rstrip() for row in table]
    return lines


def _differing(heading: str, found: Sequence[RunDifference]) -> list[str]:
    """Each key, then who has which value; those who share one in one line."""
    lines = [f"{heading}: none" if not found else heading]
    for one in found:
        lines.append(f"  {one.key}")
        by_value: dict[str, list[str]] = {}
        for name, value in one.values.items():
            by_value.setdefault(value, []).append(name)
        for value, names in by_value.items():
            start = f"    {', '.join(names)}  "
            lines += hanging(value, start, " " * len(start))
    return lines
