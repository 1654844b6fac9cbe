"""`fsdpkit audit`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import table

if TYPE_CHECKING:
    from fsdpkit.publishing.audit import UsedVersion


@answer("fsdpkit.audit/1")
def _audited(
    centre: Path, weeks: int, lines: Sequence[UsedVersion], left_out: dict[str, int]
) -> None:
    """What shared runs used, and why some failed, by week.

    left_out: records that do not count, by the reason.
    """


@click.command("audit")
@click.argument("centre", type=click.Path())
@click.option(
    "--weeks",
    type=click.IntRange(1, 520),
    default=4,
    help="Number of weeks, this one included (default: 4).",
)
@json_option(_audited)
def command(centre: str, weeks: int, as_json: bool) -> int:
    """Count what shared runs used in the last weeks, and why some failed.

    \b
      fsdpkit audit /apps/fsdpkit
      fsdpkit audit /apps/fsdpkit --weeks 12 --json

    CENTRE is a centre's folder. Only runs that their owners share count: with `[audit] share =
    true` in the job, or `files.group = true`, which opens the run to its group.
    """
    from fsdpkit.publishing.audit import audit

    where = Path(centre).absolute()
    found = audit(where, weeks)
    if as_json:
        return _audited(where, weeks, found.lines, found.left_out)
    heads = ["WEEK", "OF", "VERSION", "RUNS", "USERS", "DONE", "FAILED", "NO END"]
    rows = [
        [
            *(one.week, f"{one.kind} {one.name}"),
            (one.version or "-") + ("" if one.standing == "published" else f", {one.standing}"),
            *map(str, (one.runs, one.users, one.done, one.failed, one.unknown)),
            ", ".join(f"{cause} {count}" for cause, count in one.causes.items()),
        ]
        for one in found.lines
    ]
    if rows:
        table([*heads, "CAUSES"], rows)
    else:
        click.echo(f"no shared run in {weeks} weeks")
    for why, count in found.left_out.items():
        click.echo(f"fsdpkit: left out {count} records: {why}", err=True)
    return 0
