"""`fsdpkit logs`."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpkit.bounded import TAIL_BYTES
from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import on_run
from fsdpkit.errors import NotFoundError, UsageError
from fsdpkit.listing import first_of, spans

if TYPE_CHECKING:
    from fsdpkit.reporting.logs.errors import FailedAttempt
    from fsdpkit.reporting.logs.lines import Batch, LineFilter, LogSource, Tail
    from fsdpkit.runs.printed_words import PrintedText
    from fsdpkit.scheduling.run import Run

_NEWEST, _ALL = "newest", "all"
_WITH_ERRORS = {"errors", "all_ranks", "attempt", "run", "runs", "task", "as_json"}


@answer("fsdpkit.logs/1", is_last=False)
def _line(
    attempt: int, launch: int | None, rank: int | None, stream: str, text: PrintedText
) -> None:
    """One line of a log; each is an object of its own.

    launch, rank: both null of the batch shell's. stream: `out` or `err`.
    """


@answer("fsdpkit.logs-errors/1")
def _failures(run: str, attempts: Sequence[FailedAttempt]) -> None:
    """`logs --errors`: of the newest attempt that failed, or of those that were asked for."""


@click.command("logs")
@on_run()
@click.option("--rank", "ranks", metavar="RANKS", help="Global ranks: 5, 0-3,7. [default: 0]")
@click.option("--all", "all_ranks", is_flag=True, help="All ranks.")
@click.option(
    "--attempt", default=_NEWEST, show_default=True, metavar="N", help="Attempt number, or `all`."
)
@click.option("--launch", type=click.IntRange(0), help="Index of the launch within the attempt.")
@click.option(
    "--stream", type=click.Choice(["out", "err", "both"]), default="both", show_default=True
)
@click.option("--batch", is_flag=True, help="Print the batch shell's log, alone or with ranks.")
@click.option(
    "--task", type=click.IntRange(0), help="Array task (default: the first; of --errors: to fail)."
)
@click.option("--tail", "-n", metavar="N", help="Last N lines of each file, or `all`.")
@click.option("--follow", "-f", is_flag=True, help="Keep printing until the run ends.")
@click.option("--errors", is_flag=True, help="Only errors, the first failure first.")
@json_option(_line, _failures)
def command(
    run: Run,
    ranks: str | None,
    all_ranks: bool,
    attempt: str,
    launch: int | None,
    stream: str,
    batch: bool,
    task: int | None,
    tail: str | None,
    follow: bool,
    errors: bool,
    as_json: bool,
) -> int:
    """Print the output of RUN's ranks (default: your newest run).

    \b
      fsdpkit logs fsdp-t5-20261121-101500-3f2a --follow
      fsdpkit logs 3f2a --rank 0-3,7 --attempt all
      fsdpkit logs 3f2a --all --stream err
      fsdpkit logs 3f2a --errors

    With several ranks each line starts with its rank. Lines come file by file (attempt, launch,
    rank, standard output before error). --follow prints lines as they are found, twice a second,
    in no exact order, and continues across restarts, requeues and resumes.

    Of a file over 64 MiB only the end is printed, unless --tail asks for more.
    """
    from fsdpkit.reporting.logs.lines import LineFilter, in_order, sources_of

    _refuse_what_does_not_fit(click.get_current_context())
    if errors and task is None and run.record.array is not None:
        from fsdpkit.reporting.diagnosis.diagnose import diagnose
        from fsdpkit.reporting.diagnosis.evidence import gather

        task = diagnose(gather(run)).task
    task = run.record.tasks_of(task)[0]
    if errors:
        return _print_errors(run, task, attempt, as_json)
    first, last = _attempts(run, task, attempt, follow)
    choice = LineFilter(
        ranks=_ranks(run, ranks, all_ranks, batch),
        first_attempt=first,
        last_attempt=last,
        launch=launch,
        streams=frozenset({"out", "err"} if stream == "both" else {stream}),  # type: ignore[arg-type]
        batch=batch,
        array_task=task,
    )
    wanted = _tail(tail)
    sources = sources_of(run.paths, run.record, choice)
    if wanted is None:
        _say_what_is_left_out(sources)
    if follow:
        from fsdpkit.cli.telling import follow_told

        lines = follow_told(run, choice, tail=wanted, changes=False)
        _print(lines, run, choice, as_json, live=True)
        sources = sources_of(run.paths, run.record, choice)
    if not sources:
        _say_why_there_is_nothing(run, choice, as_json)
    if not follow:
        batches = in_order(sources, wanted)
        if isinstance(wanted, int) and not as_json:
            batches = _last_shown(batches, wanted)
        _print(batches, run, choice, as_json)
    return 0


def _refuse_what_does_not_fit(ctx: click.Context) -> None:
    given = {
        name
        for name in ctx.params
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    if {"ranks", "all_ranks"} <= given:
        raise click.UsageError("--rank chooses ranks, --all takes all: leave out one.")
    if "errors" in given and (left := given - _WITH_ERRORS):
        option = next(p.opts[0] for p in ctx.command.params if p.name in left)
        raise click.UsageError(f"--errors looks at all ranks and logs: leave out {option}.")


def _tail(tail: str | None) -> Tail:
    if tail is None:
        return None
    if tail == _ALL:
        return "all"
    if not (tail.isascii() and tail.isdigit()):
        raise UsageError(f"--tail {tail!r}: give a number of lines, or `all`")
    return int(tail)


def _say_what_is_left_out(sources: Iterable[LogSource]) -> None:
    """Before a large file's end is printed without its beginning."""
    sizes = {source.path: source.path.stat().st_size for source in sources}
    large = {path: size for path, size in sizes.items() if size > TAIL_BYTES}
    if large:
        path, size = max(large.items(), key=lambda item: item[1])
        others = f" and {len(large) - 1} more" if len(large) > 1 else ""
        click.echo(
            f"fsdpkit: of {path.name} ({size >> 20:,} MiB){others} only the last "
            f"{TAIL_BYTES >> 20} MiB are printed; all with --tail all",
            err=True,
        )


def _attempts(run: Run, task: int | None, attempt: str, follow: bool) -> tuple[int, int | None]:
    """First and last attempt that are wanted; None: and all to come."""
    known = run.paths.task(task).attempts()
    if attempt == _ALL:
        return 0, None
    if attempt == _NEWEST:
        return (known[-1] if known else 0), None
    if not (attempt.isascii() and attempt.isdigit()):
        raise UsageError(f"--attempt {attempt!r}: give a number, `all` or `newest`")
    if int(attempt) not in known and not follow:
        there = f"it has {spans(known)}" if known else "it has not started yet"
        raise NotFoundError(f"{run.id} has no attempt {attempt}; {there}")
    return int(attempt), int(attempt)


def _ranks(run: Run, ranks: str | None, all_ranks: bool, batch: bool) -> frozenset[int] | None:
    from fsdpkit.reporting.logs.lines import parse_ranks

    if all_ranks:
        return None
    if ranks is None:
        return frozenset() if batch else frozenset({0})
    wanted = parse_ranks(ranks)
    if missing := sorted(rank for rank in wanted if rank >= _world_size(run)):
        raise NotFoundError(f"{run.id} has ranks 0 to {_world_size(run) - 1}, no rank {missing[0]}")
    return wanted


def _world_size(run: Run) -> int:
    """Of the largest of its jobs."""
    return max(job.nodes * job.ranks_per_node for job in run.record.jobs)


# Lines


def fronts(run: Run, choice: LineFilter) -> Callable[[LogSource], str]:
    """`rank 12 │ ` for the lines of a file, where several ranks are shown."""
    if choice.ranks is not None and len(choice.ranks) + choice.batch <= 1:
        return lambda source: ""
    width = len(str(_world_size(run) - 1))
    batch = f"{'batch':<{width + 5}} │ "
    return lambda source: batch if source.is_batch else f"rank {source.rank:>{width}} │ "


def _shown(line: str) -> list[str]:
    """A progress bar as it came out at last, or, for programs, each version of it."""
    from fsdpkit.reporting.logs.lines import last_written, written

    return last_written(line) if sys.stdout.isatty() else written(line)


def _last_shown(batches: Iterable[Batch], most: int) -> Iterator[Batch]:
    """Of each file so many lines as they are shown: one line of a bar is many of these."""
    for source, parts in groupby(batches, key=lambda batch: batch[0]):
        lines = (part for _, lines in parts for line in lines for part in _shown(line))
        yield source, [*deque(lines, maxlen=most)]


def print_lines(batches: Iterable[Batch], front: Callable[[LogSource], str], *, live: bool) -> None:
    """Print lines, `live` at once. Where another attempt or launch begins than the run's first,
    standard error says so: standard output is the ranks' alone."""
    at, out = (0, 0), sys.stdout
    try:
        for source, lines in batches:
            if lines and not source.is_batch and (source.attempt, source.launch) != at:
                at = source.attempt, source.launch
                out.flush()
                click.echo(f"fsdpkit: attempt {at[0]}, launch {at[1]}", err=True)
            words = front(source)
            out.write("".join([f"{words}{part}\n" for line in lines for part in _shown(line)]))
            if live:
                out.flush()
    finally:
        out.flush()


def print_followed(run: Run, first_attempt: int) -> None:
    """The output of rank 0 from that attempt on, of an array that of its first task, and beside it
    what becomes of the run, until it has ended. Raises SchedulerError, StorageError."""
    from fsdpkit.cli.telling import follow_told
    from fsdpkit.reporting.logs.lines import LineFilter

    task = run.record.array[0] if run.record.array else None
    choice = LineFilter(first_attempt=first_attempt, streams=frozenset({"out"}), array_task=task)
    print_lines(follow_told(run, choice), lambda source: "", live=True)


def _print(
    batches: Iterable[Batch], run: Run, choice: LineFilter, as_json: bool, *, live: bool = False
) -> None:
    """As JSON an object a line, at once: who reads it waits for the next."""
    if not as_json:
        print_lines(batches, fronts(run, choice), live=live)
        return
    for source, lines in batches:
        for line in lines:
            launch, rank = (None, None) if source.is_batch else (source.launch, source.rank)
            _line(source.attempt, launch, rank, source.stream, line)


def _say_why_there_is_nothing(run: Run, choice: LineFilter, as_json: bool) -> None:
    """Raises NotFoundError, after what the batch shell has to say."""
    from fsdpkit.reporting.logs.lines import in_order, sources_of

    logs = sources_of(
        run.paths, run.record, replace(choice, ranks=frozenset(), batch=True, first_attempt=0)
    )
    if not logs:
        raise NotFoundError(f"run {run.id} has not started yet, so there is no output")
    _print(in_order(logs), run, replace(choice, ranks=frozenset()), as_json)
    who = "a rank" if choice.ranks is None else f"rank {spans(choice.ranks)}"
    raise NotFoundError(f"{who} of {run.id} wrote no such log; above is the start-up log")


# Errors


def _print_errors(run: Run, task: int | None, attempt: str, as_json: bool) -> int:
    from fsdpkit.reporting.logs.errors import errors_in
    from fsdpkit.reporting.logs.lines import LineFilter
    from fsdpkit.runs.history import history_of

    history = history_of(run.paths, run.record, task)
    first, last = _attempts(run, task, attempt, follow=False)
    if not history.attempts:
        _say_why_there_is_nothing(run, LineFilter(array_task=task), as_json)
    newest = attempt == _NEWEST  # that has any
    numbers = range(
        0 if newest else first, (history.attempts[-1].number if last is None else last) + 1
    )
    found = [
        errors
        for one in history.attempts
        if one.number in numbers and (errors := errors_in(one, run.paths, run.record))
    ]
    told_of = found[-1:] if newest else found
    if as_json:
        return _failures(run.id, told_of)
    for errors in told_of:
        _print_attempt(errors, run.dir)
    if not found:
        click.echo(f"fsdpkit: no failure is on record in attempt {spans(numbers)}", err=True)
    elif newest and (earlier := [errors.attempt for errors in found[:-1]]):
        told = f"attempt {spans(earlier)} failed, too: --attempt all shows it"
        click.echo(f"fsdpkit: {told}", err=True)
    return 0


def _print_attempt(errors: FailedAttempt, run_dir: Path) -> None:
    at: int | None = -1
    for broken in errors.broken:
        if broken.launch != at:
            at = broken.launch
            where = "before the ranks were started" if at is None else f"launch {at}"
            _say(f"attempt {errors.attempt}, {where}")
        who = f"{broken.who}: " if broken.who else ""
        _say(f"{'follow-on: ' if broken.follow_on else ''}{who}{broken.message}", 2)
        if broken.details:
            _say("\n".join(broken.details), 6)
        if broken.details and broken.file is not None:
            _say(f"({broken.file.relative_to(run_dir)})", 6)
        if broken.same:
            _say(f"the same: {first_of(broken.same, 6)}", 6)
    for log in errors.logs:
        _say(str(log.file.relative_to(run_dir)))
        _say("\n".join(log.lines), 2)


def _say(text: str, indent: int = 0) -> None:
    for line in text.split("\n"):
        click.echo(" " * indent + line)
