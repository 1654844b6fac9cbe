"""`fsdpkit sweep`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.groups import START, FirstWordOrCommand
from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import (
    as_typed,
    complete_sweep,
    fsdpkit_as_typed,
    on_hold,
    runs_option,
    table,
    wanted,
    write_page,
)
from fsdpkit.cli.submitting import interrupt_at_end_of_shell, say_what_is_left_out, say_where
from fsdpkit.cli.trusting import consent, trust_option
from fsdpkit.errors import STOPPED_EARLY, NotFoundError
from fsdpkit.listing import spans

if TYPE_CHECKING:
    from fsdpkit.planning.cost import Asked
    from fsdpkit.sweeps.advancing import BatchStep
    from fsdpkit.sweeps.record import SweepPaths, SweepRecord
    from fsdpkit.sweeps.results import Result
    from fsdpkit.sweeps.starting import CheckedTrials


@answer("fsdpkit.sweep-start/1")
def _started(
    name: str,
    dir: Path,
    run: str,
    job_id: str | None,
    trials: Sequence[int],
    left_out: Sequence[str],
) -> None:
    """A sweep that was started, or trials that were added to one.

    run: whose array tasks the trials are; empty with --on, where each is a run. trials: numbers of
    those that were submitted. left_out: why others would have been refused, with --leave-out.
    """


@answer("fsdpkit.sweep-dry-run/1")
def _would_start(trials: Sequence[dict[str, Any]], asks: Asked) -> None:
    """`--dry-run`: the settings of each trial; asks: what the first rung, or all, would ask for."""


@answer("fsdpkit.sweep-status/1")
def _sweep(
    name: str,
    dir: Path,
    metric: str,
    best_is: str,
    rungs: int,
    best: int | None,
    trials: Sequence[Result],
) -> None:
    """A sweep, its trials, and the number of the best so far."""


@answer("fsdpkit.sweep-best/1")
def _best(name: str, metric: str, trial: Result, job: Path, command: Sequence[str]) -> None:
    """The best trial of a sweep so far, its job file, and words that train it alone."""


@answer("fsdpkit.sweep-report/1")
def _page(name: str, path: Path) -> None:
    """A sweep's report, as one HTML file."""


@answer("fsdpkit.sweep-advance/1")
def _advanced(name: str, batches: Sequence[BatchStep]) -> None:
    """What `sweep advance` did."""


@answer("fsdpkit.sweep-cancel/1")
def _cancelled(name: str, runs: Sequence[str], saving: Sequence[str]) -> None:
    """A sweep that was asked to end.

    runs: those that were asked to; others had ended. saving: jobs that were asked to save a
    checkpoint first.
    """


@click.group("sweep", cls=FirstWordOrCommand, first="FILE")
def command() -> None:
    """Try many settings of one job as one array; optionally train only the best on.

    \b
      fsdpkit sweep lr.toml --nodes 1 --gpus 4
      fsdpkit sweep status lr
      fsdpkit sweep best lr
      fsdpkit sweep extend lr --trials 16
      fsdpkit sweep lr.toml --nodes 1 --on HOLD

    FILE says what to try (docs/sweeps.md). Options of fsdpkit submit apply to every trial:
    fsdpkit sweep FILE --help.
    """


_dry_run = click.option("--dry-run", is_flag=True, help="Print the trials; submit nothing.")


@command.command(START)
@click.argument("file", type=click.Path(dir_okay=False))
@wanted("sets")
@wanted("nodes", "gpus", "time", "cluster", "partition", "account")
@wanted("runs")
@trust_option
@on_hold
@click.option("--leave-out", is_flag=True, help="Skip trials that would be refused.")
@_dry_run
@json_option(_started, _would_start)
def start(
    file: str,
    sets: tuple[str, ...],
    cluster: str | None,
    runs: str | None,
    trust: tuple[str, ...],
    on: str | None,
    leave_out: bool,
    dry_run: bool,
    as_json: bool,
    **resources: Any,
) -> int:
    """Start the sweep that FILE describes.

    With --on its trials run on a hold, side by side where --nodes leaves nodes free. Ctrl-C ends
    those that run; fsdpkit sweep advance goes on.
    """
    from fsdpkit.scheduling.submission import leaked_variables
    from fsdpkit.sweeps import starting
    from fsdpkit.sweeps.file import load_file

    said = [f"resources.{key}={value}" for key, value in resources.items() if value is not None]
    agreed = consent(trust, submits=not dry_run)
    asked = starting.SweepRequest([*said, *sets], cluster, runs, leave_out, agreed, on)
    prepared = starting.prepare(*load_file(Path(file)), asked)
    say_where(prepared.plan, prepared.why_site)
    if dry_run:
        return _show_trials(prepared, as_json)
    say_what_is_left_out(leaked_variables())
    paths, record = starting.start(prepared, asked)
    _report(paths, record, prepared, as_json)
    return 0 if on is None else _train(paths, on, as_json)


def _train(paths: SweepPaths, on: str | None, as_json: bool) -> int:
    """What is left, on the hold or in the queue; the exit status."""
    from fsdpkit.sweeps.on_hold import TrialPass, go_on, left

    interrupt_at_end_of_shell()
    try:
        go_on(TrialPass(paths, on, consent(), lambda line: click.echo(line, err=as_json)))
    finally:
        if remain := left(paths):
            click.echo(f"fsdpkit: {_left(remain, paths)}", err=True)
    return STOPPED_EARLY if remain else 0


def _left(remain: Sequence[int], paths: SweepPaths) -> str:
    command = f"{fsdpkit_as_typed()} sweep advance {as_typed(paths.dir)}"
    return f"trials that are left: {spans(remain)}; to go on: {command} --on HOLD"


def _show_trials(prepared: CheckedTrials, as_json: bool) -> int:
    """`--dry-run`."""
    from fsdpkit.config.array_tasks import text
    from fsdpkit.planning.cost import asked_by
    from fsdpkit.sweeps.table import short

    if as_json:
        batch = replace(prepared.plan, array=f"0-{len(prepared.trials) - 1}")
        return _would_start(prepared.trials, asked_by(batch))
    keys = list(prepared.trials[0])
    rows = [
        [str(number), *(text(settings[key]) for key in keys)]
        for number, settings in zip(prepared.numbers, prepared.trials, strict=True)
    ]
    table(["TRIAL", *map(short, keys)], rows)
    return 0


def _report(paths: SweepPaths, record: SweepRecord, prepared: CheckedTrials, as_json: bool) -> None:
    from fsdpkit.scheduling.run import Run

    name = record.batches[-1].run
    run = None if name is None else Run.open(paths.dir.parent.parent / name)
    left_out = [f"{settings}: {why}" for settings, why in prepared.left_out]
    if as_json:
        job_id = None if run is None else run.job_id
        _started(record.name, paths.dir, name or "", job_id, prepared.numbers, left_out)
        return
    for line in left_out:
        click.echo(f"fsdpkit: left out {line}", err=True)
    click.echo(record.name)
    first, last = prepared.numbers[0], prepared.numbers[-1]
    where_to = f"job {run.job_id}, in {run.dir}" if run else "each a run on the hold"
    click.echo(f"trials {first} to {last}, {where_to}")
    typed, where = fsdpkit_as_typed(), as_typed(paths.dir)
    click.echo(f"  {typed} sweep status {where}\n  {typed} sweep best {where}")
    if record.halving is not None and run is not None and not run.client().chains:
        click.echo(f"  {typed} sweep advance {where}    # once a rung is over")


def _open(name: str, runs: str | None) -> tuple[SweepPaths, SweepRecord]:
    from fsdpkit.runs.store import runs_dir
    from fsdpkit.sweeps.record import load, sweep_paths

    paths = sweep_paths(name, runs_dir(runs))
    return paths, load(paths)


@command.command("status")
@click.argument("name", shell_complete=complete_sweep)
@runs_option
@json_option(_sweep)
def status(name: str, runs: str | None, as_json: bool) -> int:
    """Show the trials of NAME, the best first."""
    from fsdpkit.sweeps.advancing import undecided
    from fsdpkit.sweeps.on_hold import left
    from fsdpkit.sweeps.results import best, results

    paths, record = _open(name, runs)
    found = results(paths, record)
    top = best(found, highest=record.highest)
    if as_json:
        return _sweep(
            name=record.name,
            dir=paths.dir,
            metric=record.file.metric,
            best_is=record.file.best,
            rungs=record.file.rungs,
            best=None if top is None else top.trial,
            trials=found,
        )
    from fsdpkit.sweeps.table import in_a_line, rows

    click.echo(in_a_line(record, found))
    head, *cells = rows(record, found)
    table(head, cells)
    for one in found:
        if one.problem:
            click.echo(f"trial {one.trial}: {one.problem}")
    if remain := left(paths):
        click.echo(_left(remain, paths))
    elif undecided(paths, record, found):
        click.echo(f"a rung is over; who goes on: fsdpkit sweep advance {name}")
    return 0


@command.command("best")
@click.argument("name", shell_complete=complete_sweep)
@runs_option
@json_option(_best)
def best_command(name: str, runs: str | None, as_json: bool) -> int:
    """Print the best trial of NAME so far, and the command that trains it alone."""
    from fsdpkit.config.array_tasks import text
    from fsdpkit.sweeps.results import best, results

    paths, record = _open(name, runs)
    trials = results(paths, record)
    found = best(trials, highest=record.highest)
    if found is None:
        raise NotFoundError(
            f"no trial of {record.name} has ended with a value of {record.file.metric} yet: "
            f"fsdpkit sweep status {record.name}; a script of your own logs it with fsdpkit.log"
        )
    job = paths.trial(found.trial)
    words = ["fsdpkit", "submit", str(job)]
    if as_json:
        return _best(record.name, record.file.metric, found, job, words)
    click.echo(f"trial {found.trial}: {record.file.metric} {found.value:g}")
    for key, value in found.settings.items():
        click.echo(f"  {key} = {text(value)}")
    click.echo(f"  {shlex.join(words)}")
    if going_on := sum(one.state != "UNKNOWN" and not one.over for one in trials):
        click.echo(f"so far: {going_on} of {len(trials)} trials are not over")
    return 0


@command.command("report")
@click.argument("name", shell_complete=complete_sweep)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="File to write, or `-` to print (default: NAME.html in the current directory).",
)
@runs_option
@json_option(_page)
def report(name: str, output: str | None, runs: str | None, as_json: bool) -> int:
    """Write an HTML report on NAME: its trials, which settings mattered, which went on."""
    from fsdpkit.sweeps.page import page
    from fsdpkit.sweeps.results import results

    if output == "-" and as_json:
        raise click.UsageError("-o - prints the report, --json where it is: choose one.")
    paths, record = _open(name, runs)
    html = page(paths, record, results(paths, record))
    path = write_page(html, output or f"{record.name}.html")
    if as_json and path is not None:
        return _page(record.name, path.absolute())
    if path is not None:
        click.echo(path)
    return 0


@command.command("extend")
@click.argument("name", shell_complete=complete_sweep)
@click.option(
    "--trials", type=click.IntRange(1, 1000), required=True, help="Number of trials to add."
)
@click.option("--leave-out", is_flag=True, help="Skip trials that would be refused.")
@_dry_run
@runs_option
@json_option(_started, _would_start)
def extend(
    name: str, trials: int, leave_out: bool, dry_run: bool, runs: str | None, as_json: bool
) -> int:
    """Add trials to NAME. Optuna's samplers choose them by the results so far."""
    from fsdpkit.sweeps import starting

    paths, _ = _open(name, runs)
    asked = starting.SweepRequest(leave_out=leave_out, consent=consent(submits=not dry_run))
    record, prepared = starting.extend(paths, trials, asked, dry_run=dry_run)
    say_where(prepared.plan, prepared.why_site)
    if dry_run:
        return _show_trials(prepared, as_json)
    _report(paths, record, prepared, as_json)
    return 0


@command.command("advance")
@click.argument("name", shell_complete=complete_sweep)
@click.option(
    "--wait", is_flag=True, help="Wait until the scheduler reports that the rung has ended."
)
@on_hold
@runs_option
@json_option(_advanced)
def advance_command(name: str, wait: bool, on: str | None, runs: str | None, as_json: bool) -> int:
    """Submit the next rung of NAME, if the last one is over.

    A small job after each rung does this. By hand it is needed only on the local cluster, and
    where jobs may not submit jobs. Of a sweep on a hold it trains the trials that are left: on a
    hold again, or queued as a job each.
    """
    from fsdpkit.sweeps.advancing import advance
    from fsdpkit.sweeps.next_job import ADVANCE_WITHIN_S

    paths, record = _open(name, runs)
    held = any(batch.run is None for batch in record.batches)
    if on is not None and not held:
        raise click.UsageError(f"{name} is an array, whose trials are queued: leave out --on.")
    status = _train(paths, on, as_json) if held else 0
    patience_s = ADVANCE_WITHIN_S if wait else 0.0
    steps = [] if held and not record.halving else advance(paths, patience_s=patience_s)
    if as_json:
        _advanced(record.name, steps)
        return status
    for step in steps:
        click.echo(f"batch {step.batch}: {_in_words(step.what, step.rung, step.trials)}")
    return status


def _in_words(what: str, rung: int, trials: Sequence[int]) -> str:
    named = ", ".join(map(str, trials))
    if what == "submitted":
        return f"rung {rung} is submitted; trials that go on: {named}"
    if what == "waits":
        return f"rung {rung} waits; trials that are not over: {named}"
    return f"done with rung {rung}"


@command.command("cancel")
@click.argument("name", shell_complete=complete_sweep)
@click.option("--save", is_flag=True, help="Save a checkpoint first.")
@runs_option
@json_option(_cancelled)
def cancel_command(name: str, save: bool, runs: str | None, as_json: bool) -> int:
    """End NAME: its trials, and the job that would start the next rung."""
    from fsdpkit.sweeps.next_job import cancel

    paths, record = _open(name, runs)
    asked, saving = cancel(paths, save=save)
    if as_json:
        return _cancelled(record.name, asked, saving)
    what = f"asked to end {', '.join(asked)}" if asked else "all its runs have ended already"
    click.echo(f"{record.name}: {what}")
    return 0
