"""`fsdpkit usage`."""

from __future__ import annotations

import csv
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete_run, print_sentences, runs_option, table, write_page

if TYPE_CHECKING:
    from fsdpkit.reporting.followed import FollowedAttempt
    from fsdpkit.reporting.spent import Gathered, OtherJobs
    from fsdpkit.reporting.spent_shown import UsageSection
    from fsdpkit.runs.tally import Row, Spent

_WORDS = "week, project, name, run, user, partition, gpu, fsdpkit, version, site"


@answer("fsdpkit.usage/1")
def _used(
    since_s: float,
    rows: Sequence[Row],
    total: Sequence[Row],
    others: Sequence[OtherJobs],
    unread: Sequence[str],
    left_out: dict[str, int],
    followed: Sequence[FollowedAttempt],
) -> None:
    """What runs used of what they were granted.

    since_s: attempts that began before do not count. total: one for GPU-hours, one for node-hours.
    unread: why other jobs are not known. left_out: runs, records and attempts that do not count, by
    the reason. followed: with --explain.
    """


def period(default: str, words: str, weeks: int | None = None) -> Callable[[Any], Any]:
    """What both ways to add up have: `--weeks` and `--by`."""

    def split(ctx: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
        from fsdpkit.runs.tally import WORDS

        found = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word))
        if unknown := [word for word in found if word not in WORDS]:
            raise click.BadParameter(f"{unknown[0][:40]!r}: expected some of {', '.join(WORDS)}")
        return found

    help_ = f"Add up by {_WORDS}; several with commas (default: {words})."
    by = click.option("--by", default=default, callback=split, metavar="WORDS", help=help_)
    said = "Number of weeks, this one included (default: 4)."
    of = click.option("--weeks", type=click.IntRange(1, 520), default=weeks, help=said)
    return lambda made: of(by(made))


@click.command("usage")
@click.argument("run", nargs=-1, shell_complete=complete_run)
@runs_option
@period("", "week,project; of RUN: run")
@click.option(
    "--group",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Read what a project's runs share there.",
)
@click.option("--explain", is_flag=True, help="Follow each figure of RUN to files and lines.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--page", type=click.Path(dir_okay=False), help="Write one HTML file, too.")
@json_option(_used)
def command(
    run: tuple[str, ...],
    runs: str | None,
    weeks: int | None,
    by: tuple[str, ...],
    group: str | None,
    explain: bool,
    as_csv: bool,
    page: str | None,
    as_json: bool,
) -> int:
    """Say what runs used of the GPU-hours granted to them, and what was wasted.

    \b
      fsdpkit usage
      fsdpkit usage --weeks 12 --by project,name
      fsdpkit usage 3f2a --explain
      fsdpkit usage --group /proj/pas1234/fsdpkit --by user --page usage.html

    Without RUN, all runs in the runs directory count whose attempts began in these weeks. Jobs that
    are no run of fsdpkit come from Slurm's accounting, which knows their GPU-hours alone.
    """
    from fsdpkit.errors import UsageError
    from fsdpkit.reporting.printable import one_line
    from fsdpkit.reporting.spent import Gathered
    from fsdpkit.reporting.spent_shown import figure_lines, others_in_words, rows_section
    from fsdpkit.runs.store import runs_dir
    from fsdpkit.runs.tally import tallies, weeks_since
    from fsdpkit.scheduling.slurm import Round

    if run and (group or weeks):
        raise UsageError("RUN is shown whole: leave out --group and --weeks")
    if explain and not run:
        raise UsageError("--explain is for RUN: name one")
    if as_csv and as_json:
        raise UsageError("--csv and --json are two forms of one answer: choose one of them")
    now_s, top = time.time(), runs_dir(runs)
    gathered = Gathered(0.0 if run else weeks_since(weeks or 4, now_s), now_s)
    by = by or (("run",) if run else ("week", "project"))
    figures: list[FollowedAttempt] = []
    if group:
        spent = gathered.shared_in(Path(group))
    else:
        spent = _named(gathered, run, top, figures, explain) if run else gathered.below(top)
    by_week, rows, total = tallies(spent, [["week"], by, []])
    asked = Round()
    others = [] if run or group else gathered.unknown_jobs(by, asked)
    left_out = dict(Counter(gathered.lacking).most_common())
    notes = [f"other jobs are not known: {why}" for why in asked.unread]
    notes += [f"left out {count:,}: {why}" for why, count in left_out.items()]
    if page:
        from fsdpkit.reporting.spent_shown import page as drawn

        title = f"What {' and '.join(run[:3]) or group or 'runs'} used"
        beside = [*map(others_in_words, others), *notes]
        text = drawn(title, now_s, by_week, total, [rows_section(rows, by)], beside)
        write_page(text, page)
    if as_json:
        return _used(gathered.since_s, rows, total, others, asked.unread, left_out, figures)
    if as_csv:
        _print_csv(rows)
    elif page != "-":
        if not rows:
            click.echo("nothing was granted to a run")
        show(total, [rows_section(rows, by)] if rows else [])
        print_sentences(map(others_in_words, others))
        for one in figures:
            print_sentences(map(one_line, figure_lines(one)))
    for note in notes:
        click.echo(f"fsdpkit: {note}", err=True)
    return 0


def _named(
    gathered: Gathered,
    names: Sequence[str],
    top: Path,
    figures: list[FollowedAttempt],
    explain: bool,
) -> Iterator[Spent]:
    from fsdpkit.reporting.followed import followed
    from fsdpkit.runs.layout import RunPaths
    from fsdpkit.runs.record import load
    from fsdpkit.runs.store import find_run
    from fsdpkit.scheduling.run_states import standings

    for paths in [RunPaths(find_run(name, top)) for name in names]:
        for one in gathered.of_run(paths, *standings([(paths, load(paths.dir, copied=True))])):
            if explain:
                figures.append(followed(paths, one.run, one.task, one.account))
            yield one


def show(total: Sequence[Row], sections: Sequence[UsageSection]) -> None:
    """Sentences about all together, and tables."""
    from fsdpkit.reporting.printable import one_line
    from fsdpkit.reporting.spent_shown import sentences

    for row in total:
        print_sentences(sentences(row))
        click.echo()
    for one in sections:
        if sys.stdout.isatty():
            one = one.within(os.get_terminal_size().columns)
        click.echo(one.title)
        table(one.head, [[one_line(cell) for cell in row] for row in one.rows])
        print_sentences([one.note, ""] if one.note else [""])


def _print_csv(rows: Sequence[Row]) -> None:
    """A column for each figure; words, uses, wastes and ends have one each."""
    import msgspec

    from fsdpkit.reporting.printable import one_line

    def plain(value: object) -> object:
        """No text that a spreadsheet would compute."""
        text = one_line(value) if isinstance(value, str) else ""
        return f"'{text}" if text[:1] in tuple("=+-@") else text or value

    flat = [
        {
            f"{name}_{key}" if key else name: plain(one)
            for name, value in msgspec.to_builtins(row).items()
            for key, one in (value if isinstance(value, dict) else {"": value}).items()
        }
        for row in rows
    ]
    writer = csv.DictWriter(sys.stdout, dict.fromkeys(n for row in flat for n in row), restval=0)
    writer.writeheader()
    writer.writerows(flat)
