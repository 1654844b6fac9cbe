"""`fsdpkit prune`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete_run, runs_option, table
from fsdpkit.cli.terminal import reading_bar
from fsdpkit.config.units import format_bytes, roughly

if TYPE_CHECKING:
    from fsdpkit.scheduling.pruning import Holding, PrunedRun

_SHOWN = 20
_DAYS = 7.0
_DAY_S = 86400


@answer("fsdpkit.prune/1")
def _pruned(runs: Sequence[Holding], deleted: Sequence[Path], problems: Sequence[str]) -> None:
    """What ended runs hold, and what `prune` deleted."""


@click.command("prune")
@click.argument("run", nargs=-1, shell_complete=complete_run)
@runs_option
@click.option(
    "--older",
    type=click.FloatRange(0),
    metavar="DAYS",
    help=f"Only runs that ended so many days ago or earlier (default: {_DAYS:g}; named runs: 0).",
)
@click.option("--yes", is_flag=True, help="Delete without asking.")
@json_option(_pruned)
def command(
    run: tuple[str, ...], runs: str | None, older: float | None, yes: bool, as_json: bool
) -> int:
    """Show the disk use of ended runs, largest first; then ask, and delete checkpoints.

    \b
      fsdpkit prune
      fsdpkit prune --older 30
      fsdpkit prune 3f2a --yes

    Each training keeps its newest whole checkpoint (every byte of it is read first), its best
    one, and any that a queued job starts from. Logs, metrics and exports stay. Runs that may be
    running, whose end is unknown, or that belong to another user are left alone. Without a
    terminal nothing is deleted unless --yes is given. Exit status: 74 if something could not be
    deleted.
    """
    from fsdpkit.errors import StorageError
    from fsdpkit.runs.store import all_runs, find_run, runs_dir
    from fsdpkit.scheduling.pruning import age_s, survey

    top = runs_dir(runs)
    named = [find_run(name, top) for name in run]
    days = older if older is not None else 0.0 if named else _DAYS
    found = survey(list(dict.fromkeys(named)) or all_runs(top), top)
    chosen = [one for one in found if one.spare and age_s(one) >= days * _DAY_S]
    if not as_json:
        _show(found, chosen, days, top)
    agreed = bool(chosen) and (yes or _asked(chosen, as_json))
    done = _delete(chosen) if agreed else []
    problems = [f"{each.dir.name}: {each.problem}" for each in done if each.problem]
    if as_json:
        runs_held = [replace(one, chosen=one in chosen) for one in found]
        _pruned(runs_held, [one.path for each in done for one in each.deleted], problems)
    elif done:
        freed = sum(one.bytes for each in done for one in each.deleted)
        click.echo(
            f"{sum(len(each.deleted) for each in done)} checkpoints deleted, {format_bytes(freed)}"
        )
    if problems:
        raise StorageError("\n".join(problems))
    return 0


def _show(found: Sequence[Holding], chosen: Sequence[Holding], days: float, top: Path) -> None:
    if not found:
        click.echo(f"no runs in {top}")
        return
    table(["RUN", "SIZE", "ENDED", "SPARE", "WHAT"], [_row(one) for one in found[:_SHOWN]])
    if len(found) > _SHOWN:
        rest = sum(one.bytes for one in found[_SHOWN:])
        click.echo(
            f"and {len(found) - _SHOWN:,} smaller ones with {format_bytes(rest)}: --json has all"
        )
    click.echo(f"in all {format_bytes(sum(one.bytes for one in found))}")
    spare = [one for one in found if one.spare]
    if not spare:
        click.echo("nothing to delete")
    elif not chosen:
        click.echo(f"nothing to delete of runs that ended {days:g} days ago or earlier (--older)")


def _row(one: Holding) -> list[str]:
    from fsdpkit.scheduling.pruning import age_s

    ended = "" if one.ended_s is None else f"{roughly(age_s(one))} ago"
    spare = format_bytes(one.spare_bytes) if one.spare else ""
    what = one.why_not or ""
    if one.spare:
        what = f"{len(one.spare)} of {len(one.spare) + len(one.kept)} checkpoints"
    return [one.run, format_bytes(one.bytes), ended, spare, what]


def _asked(chosen: Sequence[Holding], as_json: bool) -> bool:
    count, spare = sum(len(one.spare) for one in chosen), sum(one.spare_bytes for one in chosen)
    what = f"{count} checkpoints of {len(chosen)} runs ({format_bytes(spare)})"
    if not sys.stdin.isatty() or as_json:
        if not as_json:
            click.echo(f"fsdpkit: nothing was deleted: --yes deletes {what}", err=True)
        return False
    for one in chosen:
        steps = ", ".join(str(each.path.relative_to(one.dir)) for each in one.spare)
        stays = ", ".join(str(path.relative_to(one.dir)) for path in one.kept)
        click.echo(f"{one.run}: delete {steps}; keep {stays}")
    return click.confirm(f"Delete {what}? This cannot be undone", default=False)


def _delete(chosen: Sequence[Holding]) -> list[PrunedRun]:
    from fsdpkit.scheduling.pruning import prune

    with reading_bar() as read:
        return [prune(one, read) for one in chosen]
