"""Options and completions that several commands share."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from fsdpkit.config import assets

WHAT, RESOURCES, HOW, AFTERWARDS = (
    "What to run",
    "Resources",
    "How to submit",
    "Afterwards",
)


class _Grouped(click.Option):
    """An option that `--help` shows below a heading."""

    def __init__(self, *names: Any, group: str, **about: Any) -> None:
        super().__init__(*names, **about)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose options with a group stand together in `--help`, before the others."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {
            group: [] for group in (WHAT, RESOURCES, HOW, AFTERWARDS)
        }
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                groups.setdefault(getattr(parameter, "group", "Options"), []).append(record)
        for group, records in groups.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from fsdpkit.cli.misnamed import instead_of_option

        typed = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if told := instead_of_option(self, error.option_name, typed):
                raise click.UsageError(told, ctx) from error
            if not isinstance(self, WithTrainerArgs):
                raise
            told = f"{error.format_message()} An option of your script goes after --."
            raise click.UsageError(told, ctx) from error
        except click.UsageError as error:
            if "unexpected extra" in error.message and "--set" in typed:
                told = f"{error.message}. --set KEY=VALUE is one word, without spaces."
                raise click.UsageError(told, ctx) from error
            raise


class WithTrainerArgs(GroupedCommand):
    """What follows `--` is the trainer's, even where JOB is left out; click would call it JOB."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.obj = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- TRAINER ARGS...]"]


def grouped(group: str, *names: str, **about: Any) -> Callable[[Any], Any]:
    """An option below the heading `group`."""
    return click.option(*names, cls=_Grouped, group=group, **about)


def wanted(*which: str, **helps: str) -> Callable[[Any], Any]:
    """Options that submitting commands share, by their names in `_SHARED`. helps: for some of them,
    what they say of themselves in this command."""

    def add(function: Any) -> Any:
        for name in reversed(which):
            group, spelling, about = _SHARED[name]
            about = {**about, "help": helps.get(name, about["help"])}
            function = grouped(group, *spelling, name, **about)(function)
        return function

    return add


def on_hold(function: Any, words: str = "Run on nodes that fsdpkit hold has") -> Any:
    """`--on`."""
    return grouped(
        HOW, "--on", metavar="HOLD", shell_complete=complete_hold, help=f"{words}; implies --wait."
    )(function)


def here_or_on(function: Any) -> Any:
    """`--here` and `--on`: where a run starts that is not queued."""
    here = grouped(
        HOW,
        "--here",
        is_flag=True,
        help="Run in the allocation that this shell is in, queue nothing; implies --wait.",
    )
    return here(on_hold(function))


def complete(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completion by the names of all jobs, sites or templates."""

    def names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        return _offered(assets.available(kind), incomplete)

    return names


def _offered(names: Iterable[str], incomplete: str) -> list[str]:
    """Those that the shell takes for a word: anybody who can write there may have chosen them."""
    known = (name for name in names if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+@-]*", name))
    return [name for name in known if name.startswith(incomplete)]


def say_what_is_not_read() -> None:
    """Where the person's own directory cannot be read: a job of that name may be another."""
    if (why := assets.why_not_read()) is not None:
        click.echo(f"fsdpkit: {why}", err=True)


def complete_run(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from fsdpkit.runs.store import all_runs, runs_dir

    return _offered((p.name for p in all_runs(runs_dir(ctx.params.get("runs")))), incomplete)


def complete_hold(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from fsdpkit.cli.misnamed import holds
    from fsdpkit.runs.store import runs_by_end, runs_dir

    top = runs_dir(ctx.params.get("runs"))
    going = (name for name, over in runs_by_end(top) if not over)
    return _offered((name for name in going if holds(top / name)), incomplete)


def complete_sweep(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from fsdpkit.runs.store import runs_dir
    from fsdpkit.sweeps.record import sweeps_dir

    records = sweeps_dir(runs_dir(ctx.params.get("runs"))).glob("*/sweep.json")
    return _offered(sorted(record.parent.name for record in records), incomplete)


def chosen(run: str | None, runs: str | None) -> str | Path:
    """The run that was named, else the user's newest, which is then said. Raises NotFoundError."""
    if run is not None:
        return run
    from fsdpkit.errors import NotFoundError
    from fsdpkit.runs.store import newest_run, runs_dir

    top = runs_dir(runs)
    newest = newest_run(top)
    if newest is None:
        raise NotFoundError(
            f"there is no run in {top} that is yours; name one by its path, or give --runs DIR"
        )
    click.echo(f"fsdpkit: {newest.name}, the newest run", err=True)
    return newest


def on_run(*, copied: bool = True) -> Callable[[Callable[..., int]], Any]:
    """RUN and --runs: the command gets the opened run, by default the user's newest. copied:
    whether it may lie elsewhere than where it was submitted."""

    def add(function: Callable[..., int]) -> Any:
        @functools.wraps(function)
        def with_run(run: str | None, runs: str | None, **others: Any) -> int:
            from fsdpkit.scheduling.run import Run

            return function(Run.open(chosen(run, runs), runs=runs, copied=copied), **others)

        argument = click.argument("run", required=False, shell_complete=complete_run)
        return argument(runs_option(with_run))

    return add


def fsdpkit_as_typed() -> str:
    """How the person calls the command line: from a laptop with the host (fsdpkit/remote)."""
    via = os.environ.get("FSDPKIT_VIA")
    return f"fsdpkit --host {via}" if via else "fsdpkit"


def as_typed(directory: Path) -> str:
    """How to name a run or sweep: by name where commands look for it, else by its path."""
    import shlex

    from fsdpkit.runs.store import runs_dir

    top = runs_dir()
    usual = directory.parent in (top, top / "sweeps")
    return shlex.quote(directory.name if usual else str(directory))


class _Count(click.IntRange):
    """A whole number; of `a100:4`, `2-4` and `4,4` it says which one may be meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not re.fullmatch(r"\s*[-+]?[0-9]+\s*", value):
            found = re.fullmatch("(?:.*:)?([0-9]+)(?:[-,.][0-9,]*)?", value)
            such = f", such as {found[1]}" if found else ""
            self.fail(f"{value!r} is not a single whole number{such}.", param, ctx)
        return super().convert(value, param, ctx)


class _Shared(NamedTuple):
    """An option of several commands: its heading in `--help`, how it is typed, and the rest."""

    group: str
    spelling: tuple[str, ...]
    about: dict[str, Any]


def _shared(group: str, spelling: str, help: str, **about: Any) -> _Shared:
    return _Shared(group, tuple(spelling.split()), {"help": help, **about})


_SHARED = {
    "nodes": _shared(RESOURCES, "-N --nodes", "Nodes.", type=_Count(1, 10_000)),
    "gpus": _shared(RESOURCES, "--gpus", "GPUs (ranks) per node.", type=_Count(1, 64)),
    "time": _shared(
        RESOURCES, "-t --time", "Time limit: MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS."
    ),
    "partition": _shared(RESOURCES, "-p --partition", "Partition (default: the first that fits)."),
    "account": _shared(RESOURCES, "-A --account", "Account (project) to charge."),
    "spare": _shared(
        RESOURCES,
        "--spare",
        "Extra standby nodes that replace a failed one.",
        type=_Count(0, 1000),
    ),
    "sets": _shared(WHAT, "--set", "Any key of the job file.", multiple=True, metavar="KEY=VALUE"),
    "cluster": _shared(
        RESOURCES, "--cluster", "Site profile, or `local`.", shell_complete=complete("site")
    ),
    "snapshot": _shared(
        WHAT,
        "--snapshot/--no-snapshot",
        "Run in a copy of the work tree as it is now.",
        default=None,
    ),
    "array": _shared(
        WHAT, "--array", "Array tasks, as in sbatch: 0-15, 1,3, 0-99%10.", metavar="SPEC"
    ),
    "after": _shared(
        HOW,
        "--after",
        "Start after RUN, or a job's number, has succeeded; afterany:RUN however it ended; also "
        "afternotok, aftercorr, singleton.",
        metavar="RUN",
        shell_complete=complete_run,
    ),
    "runs": _shared(
        HOW,
        "--runs",
        "Directory of runs (default: $FSDPKIT_RUNS, else ./runs).",
        type=click.Path(file_okay=False),
    ),
}
"""By their names in `scheduling.wanted.Wanted` and `scheduling.submission.SubmitRequest`."""


def runs_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--runs", **_SHARED["runs"].about)(function)


def waiting_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a command does after it has submitted."""
    for name, about in (
        ("--follow", "Print rank 0's output until the end; implies --wait."),
        ("--wait", "Wait for the end; exit with the job's own status."),
    ):
        function = grouped(AFTERWARDS, name, is_flag=True, help=about)(function)
    return function


_NO_VALUE = frozenset({"", "-", "–"})


def table(columns: list[str], rows: list[list[str]]) -> None:
    """A table for a person; plain columns where standard output is no terminal. On a terminal that
    is too narrow, columns without a value are left out."""
    from rich.table import Table
    from rich.text import Text

    from fsdpkit.cli.terminal import console
    from fsdpkit.reporting.printable import printable

    screen = console()
    widths = [max(len(r[i]) for r in [columns, *rows]) for i in range(len(columns))]
    if not screen.is_terminal:
        for row in [columns, *rows]:
            click.echo("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())
        return
    if sum(widths) + 2 * len(widths) - 2 > screen.width:
        said = [i for i in range(len(columns)) if any(r[i] not in _NO_VALUE for r in rows)]
        columns, *rows = [[r[i] for i in said] for r in [columns, *rows]]
    made = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        # Names must stay whole to be copied; only the last column, free text, may wrap.
        made.add_column(column, overflow="fold", no_wrap=number == 0)
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    screen.print(made)


def write_page(text: str, output: str) -> Path | None:
    """Write a page to a file, which is returned; `-`: print it. Raises StorageError."""
    if output == "-":
        click.echo(text, nl=False)
        return None
    return write_file(text, Path(output), by_umask=True)


def write_file(text: str, path: Path, *, force: bool = True, by_umask: bool = False) -> Path:
    """Write it whole or not at all; force: over a file, too. Raises StorageError, UsageError."""
    from fsdpkit.errors import StorageError, UsageError
    from fsdpkit.runs.layout import write_atomically, write_new

    try:
        if force:
            write_atomically(path, text, by_umask=by_umask)
        else:
            write_new(path, text)
    except FileExistsError:
        raise UsageError(f"{path} already exists; --force replaces it") from None
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
    return path


@contextlib.contextmanager
def going_on(run: str) -> Iterator[None]:
    """Around waiting for a run: Ctrl-C ends the waiting, and says that the run goes on."""
    try:
        yield
    except KeyboardInterrupt:
        to_end = f"{fsdpkit_as_typed()} cancel {run}"
        click.echo(f"\nfsdpkit: {run} goes on; to end it: {to_end}", err=True)
        raise


def print_sentences(lines: Iterable[str]) -> None:
    """Each in lines of a terminal, the further ones indented below its first."""
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        click.echo("\n".join(hanging(line, "", indent)))


def hanging(text: str, first: str, rest: str) -> list[str]:
    """Lines of a text behind `first`, the others behind `rest`; broken between words to the width
    of a terminal, and only where a person looks at one."""
    if not sys.stdout.isatty():
        return [first + line if n == 0 else rest + line for n, line in enumerate(text.split("\n"))]
    from fsdpkit.cli.terminal import wrap

    width = max(40, os.get_terminal_size().columns)
    parts = enumerate(text.split("\n"))
    return [line for n, part in parts for line in wrap(part, width, rest if n else first, rest)]


def for_seconds(ctx: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """A time such as 90s, 15m or 2h."""
    if text is None:
        return None
    number, unit = text[:-1], text[-1:]
    if number.isdecimal() and unit in "smh" and 0 < (found := int(number)) < 100_000:
        return found * {"s": 1, "m": 60, "h": 3600}[unit]
    raise click.BadParameter(f"{text}: say it as 90s, 15m or 2h")


def node_counts(_: Any, __: Any, text: str | None) -> tuple[int, ...]:
    """`2`, `1,2,4` or `1-8`; none if nothing was said."""
    if text is None:
        return ()
    counts: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [first, last] if dash else [first]
        if not all(
            end.isascii() and end.isdecimal() and 0 < int(end[:9]) <= 10_000 for end in ends
        ):
            raise click.BadParameter(f"{text[:40]!r}: expected numbers such as 2, 1,2,4 or 1-8")
        counts += range(int(ends[0]), int(ends[-1]) + 1)
    return tuple(sorted({*counts}))
