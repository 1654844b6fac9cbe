"""`fsdpkit status`."""

from __future__ import annotations

import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete_run, hanging, runs_option
from fsdpkit.cli.submitting import say_announcements
from fsdpkit.cli.terminal import at_work, cut, redraw
from fsdpkit.config.units import roughly
from fsdpkit.errors import FsdpkitError
from fsdpkit.reporting.printable import one_line
from fsdpkit.reporting.words import second

if TYPE_CHECKING:
    from fsdpkit.reporting.status.status_record import Status, Task
    from fsdpkit.scheduling.asking import PacedAsking

NEWEST = 20
"""Runs that have ended and are shown without --all."""
_WATCH_S = 10.0
_LOOKS = 30  # --watch reads the records of ended runs again in one of so many
_MOST_TASKS = 20
_LONGEST_STATE = 30
_INDENT = " " * 4


class _WithSeconds(click.Command):
    """`--watch RUN`: what follows is the number of seconds only if it is a number."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = list(args)
        for place, word in enumerate(args):
            if word == "--watch":
                after = args[place + 1 : place + 2]
                seconds = args.pop(place + 1) if after and _is_number(after[0]) else _WATCH_S
                args[place] = f"--watch={seconds}"
        return super().parse_args(ctx, args)


def _is_number(word: str) -> bool:
    return word.replace(".", "", 1).isdecimal() and not Path(word).exists()


@answer(None, is_last=False)
def _status(status: Status) -> None:
    """A run as of now."""


@answer("fsdpkit.status-all/2", is_last=False)
def _statuses(runs: Sequence[Status], left_out: int) -> None:
    """The newest runs. left_out: how many older ones that ended; none with --all."""


@click.command("status", cls=_WithSeconds)
@click.argument("run", required=False, shell_complete=complete_run)
@runs_option
@click.option(
    "--all", "everything", is_flag=True, help=f"Show all ended runs, not only the newest {NEWEST}."
)
@click.option(
    "--watch", type=click.FloatRange(min=1), metavar="[SECONDS]", help="Refresh periodically."
)
@json_option(_status, _statuses, help="Print JSON: all runs, or RUN.")
def command(
    run: str | None, runs: str | None, everything: bool, watch: float | None, as_json: bool
) -> int:
    """Show all runs in the runs directory, or RUN (its id or a part of it, path, job number).

    \b
      fsdpkit status
      fsdpkit status fsdp-t5-20261121-101500-3f2a
      fsdpkit status 3f2a --watch

    Of ended runs only the newest are shown. --watch refreshes every 10 seconds, or as often as
    you say, until Ctrl-C (exit status 0); the scheduler is polled less and less often, down to
    once a minute. Exit status: 70 if RUN has ended and it is unknown whether it did any work,
    else 0, whatever its state.
    """
    from fsdpkit.reporting.status.overview import all_statuses, one_status
    from fsdpkit.runs.store import find_run, runs_dir
    from fsdpkit.scheduling.asking import Asking, PacedAsking

    top = runs_dir(runs)
    asking = Asking() if watch is None else PacedAsking()
    unknown: list[str] = []
    over: set[str] = set()
    looks = itertools.count(1)

    def look() -> str:
        if next(looks) % _LOOKS == 0:
            over.clear()  # one of them may have been resumed
        if run is not None:
            status = one_status(find_run(run, top), asking)
            if _not_vouched_for(status):
                unknown.append(status.run)
            return _status.text(status) if as_json else "\n".join(_described(status))
        newest = None if everything else NEWEST
        statuses, left_out = all_statuses(top, newest, asking, over)
        if as_json:
            return _statuses.text(statuses, left_out)
        return "\n".join(_listed(statuses, left_out)) if statuses else f"no runs in {top}"

    if isinstance(asking, PacedAsking):
        assert watch is not None
        with at_work(""):
            _watch(look, watch, asking, as_json)
        return 0
    click.echo(look())
    if not as_json:
        say_announcements(once=True)
    return FsdpkitError.exit_code if unknown else 0


def _watch(look: Callable[[], str], pause_s: float, asking: PacedAsking, as_json: bool) -> None:
    """Until Ctrl-C: a screen drawn anew on a terminal, one answer after the other elsewhere."""
    drawn = sys.stdout.isatty() and not as_json
    try:
        while True:
            text = look()
            if not as_json:
                asked = f"the scheduler was asked {roughly(asking.age_s)} ago"
                text = f"{second(time.time())}, every {pause_s:g} s; {asked}\n\n{text}"
            if drawn:
                redraw(text)
            else:
                click.echo(text if as_json else f"{text}\n")
            time.sleep(pause_s)
    except KeyboardInterrupt:
        if drawn:
            click.echo()


# All runs


def _listed(statuses: list[Status], left_out: int) -> list[str]:
    rows = [["RUN", "JOB", "STATE", *_PROGRESS, *_TIMES]]
    notes: list[list[str]] = [[]]
    for status in statuses:
        state = f"unreadable: {status.error}" if status.error else _short_state(status)[0]
        cells = [*_progress_cells(status), *_time_cells(status)]
        rows.append([status.run, status.job_id or "-", state, *cells])
        notes.append([*_notes(status), *([cut(status.differs, 72)] if status.differs else [])])
    lines = []
    for row, below in zip(_columns(rows), notes, strict=True):
        lines += [row, *(line for note in below for line in hanging(note, _INDENT, _INDENT))]
    if any(_MARK in cell for row in rows[1:] for cell in row[3:5]):
        sources = {status.printed.source for status in statuses if status.printed}
        lines.append(f"{_MARK} {', or '.join(sorted(filter(None, sources)))}")
    if left_out:
        lines.append(f"{left_out:,} older ended runs are not shown: fsdpkit status --all")
    unread = dict.fromkeys(sentence for status in statuses for sentence in status.unread)
    return [*lines, *(f"not read: {sentence}" for sentence in unread)]


_STATE = re.compile(r"(?P<word>[A-Z_]+)(?:: |, | (?=by ))(?P<rest>.+)", re.DOTALL)
"""`STATE: why`, `STATE by somebody`, `STATE, exit status 3`."""


def _short_state(status: Status) -> tuple[str, str]:
    """What fits into a column, and the sentence that is told below."""
    if status.waiting:  # why it waits is told below anyway
        return status.state.partition(" (")[0], ""
    if len(status.states) == 1 and len(status.state) > _LONGEST_STATE:
        found = _STATE.match(status.state)
        return (found["word"], found["rest"]) if found else ("unknown", status.state)
    return status.state, ""


def _notes(status: Status) -> list[str]:
    if status.waiting is None:
        note = "" if status.error else _short_state(status)[1]
        logged = (status.progress or {}).get("step") is not None
        running = status.phase == "running" and status.printed is not None and not logged
        own = [_own_words(status)] if running else []
        return list(filter(None, [note, _copying(status), *own]))
    return list(filter(None, [status.waiting.sentence, status.waiting.action]))


_PROGRESS = ("STEP", "LOSS", "TOKENS/S", "LEFT", "SAVED")
_TIMES = ("STARTED", "ELAPSED", "ENDED")


def _time_cells(status: Status) -> list[str]:
    over = status.phase not in ("pending", "running") and status.elapsed_s is not None
    return [
        "" if status.started_s is None else _moment(status.started_s),
        "" if status.elapsed_s is None else roughly(status.elapsed_s),
        _moment(status.ends_s) if over else "",
    ]


def _progress_cells(status: Status) -> list[str]:
    if status.task_steps:
        least, most, steps = status.task_steps
        done = f"{least}" if least == most else f"{least}-{most}"
        return [f"{done}/{steps}" if steps else done, "", "", "", ""]
    progress = status.progress if status.phase == "running" else None
    if not progress:
        return [""] * 5
    if progress["step"] is None:
        return _read_cells(status)
    of = f"/{progress['steps']}" if progress["steps"] else ""
    return [
        f"{progress['step']}{of}",
        _number(progress["loss"], ".4f"),
        _number(progress["tokens_per_s"], ",.0f"),
        _left(progress),
        "" if progress["checkpoint_s"] is None else f"{_age(progress['checkpoint_s'])} ago",
    ]


_MARK = "*"


def _read_cells(status: Status) -> list[str]:
    """What the output of a script that logs nothing says."""
    if (found := status.printed) is None:
        return [""] * 5
    at: float | None = found.optimizer_steps
    of = None
    if found.step is not None:
        at, of = found.step, found.total
    elif found.epoch is not None:
        at, of = found.epoch, found.epochs
    step = "" if at is None else f"{at:g}{f'/{of}' if of else ''}{_MARK}"
    step = f"epoch {step}" if found.step is None and found.epoch is not None else step
    loss = "" if found.loss is None else f"{found.loss:.4f}{_MARK}"
    saved_s = (status.progress or {}).get("checkpoint_s")
    return [step, loss, "", "", "" if saved_s is None else f"{_age(saved_s)} ago"]


def _own_words(status: Status) -> str:
    """The newest line of its output, short enough for a terminal's line."""
    if (found := status.printed) is None or not found.line:
        return ""
    return f"rank {found.rank} prints: {cut(found.line, 60)}"


def _copying(one: Status | Task) -> str:
    stage = one.stage
    return f"copying to nodes: {stage.so_far}" if stage is not None and stage.goes_on else ""


def _columns(rows: list[list[str]]) -> list[str]:
    """Rows in line. Without room on a terminal the last columns go, as do empty ones."""
    used = [c for c in range(len(rows[0])) if c < 3 or any(row[c] for row in rows[1:])]
    width = os.get_terminal_size().columns if sys.stdout.isatty() else None
    # A sentence in the place of a state is no measure for the others.
    widths = {c: max(len(row[c]) for row in rows if len(row[c]) <= 40 or c == 0) for c in used}
    while width and len(used) > 3 and sum(widths[c] + 2 for c in used) - 2 > width:
        used.pop()
    return ["  ".join(row[c].ljust(widths[c]) for c in used).rstrip() for row in rows]


# One run


def _described(status: Status) -> list[str]:
    from fsdpkit.reporting.predictions import in_a_line
    from fsdpkit.reporting.status.job_words import shape
    from fsdpkit.runs.uses import Uses

    lines = [status.run, *_labelled("state", status.state)]
    lines += _labelled("job", f"{status.job_id or 'not confirmed'} on {status.cluster}")
    lines += _labelled("submitted", _moment(status.submitted_s))
    if status.started_s is not None:
        until = f", at most until {_moment(status.ends_s)}" if status.phase == "running" else ""
        lines += _labelled("started", _moment(status.started_s) + until)
    if status.elapsed_s is not None:
        lines += _labelled("elapsed", roughly(status.elapsed_s))
        if status.phase not in ("pending", "running"):
            lines += _labelled("ended", _moment(status.ends_s))
    if status.stage is not None:
        at_it = status.stage.goes_on
        lines += _labelled("copying" if at_it else "copied", status.stage.outcome)
    if status.waiting:
        lines += _labelled("why", status.waiting.sentence)
        lines += _labelled("to do", status.waiting.action)
    lines += _labelled("without", _left_out(status))
    lines += [part for line in status.others for part in hanging(line, "  ", " " * 13)]
    lines += _labelled("shape", shape(status.shape["nodes"], status.shape["ranks_per_node"]))
    lines += _labelled("nodes", status.nodes)
    for found in status.differences:
        lines += _labelled("granted", f"{found.what} {found.granted}, asked for {found.asked}")
    lines += _progress_lines(status)
    lines += _labelled("planned", in_a_line(status.predictions))
    if status.used:
        lines += _labelled("used", Uses(status.used).words.removeprefix("used "))
    for hint in status.hints:
        lines += _labelled("hint", hint.sentence)
    for remark in status.remarks:
        lines += hanging(remark, "  note       ", " " * 13)
    if status.attempts:
        lines += _labelled("attempts", _attempts(status))
    lines += _task_lines(status.tasks)
    lines += _labelled("exit", status.exit)
    lines += _provenance_lines(status)
    lines.append(f"  directory  {status.dir}")  # never broken: to be copied
    if status.phase == "failed" or _not_vouched_for(status):
        lines += [f"  {line}" for line in _failure_lines(status)]
    if status.phase == "stopped":
        lines.append(f"  to go on: fsdpkit resume {status.run}")
    for sentence in status.unread:
        lines += _labelled("not read", sentence)
    return lines


def _provenance_lines(status: Status) -> list[str]:
    """Which code ran, and whether in a copy of it."""
    from fsdpkit.runs.provenance import in_words

    if (found := status.provenance) is None:
        return []
    lines = _labelled("code", in_words(found))
    if found.snapshot is not None:
        lines += _labelled("in a copy", f"of {found.snapshot.source}")
    return lines


def _left_out(status: Status) -> str | None:
    from fsdpkit.scheduling.left_out import in_words

    return in_words(status.left_out, Path(status.dir).parent)


def _labelled(label: str, text: str | None) -> list[str]:
    return hanging(text, f"  {label:<9}  ", " " * 13) if text else []


def _progress_lines(status: Status) -> list[str]:
    progress = status.progress or {}
    if progress.get("step") is None and progress.get("checkpoint_step") is None:
        return _printed_lines(status)
    said = [
        f"{progress['step']}" + (f" of {progress['steps']}" if progress["steps"] else ""),
        _number(progress["loss"], ".4f", "loss {}"),
        _number(progress["tokens_per_s"], ",.0f", "{} tokens/s"),
        _number(progress["step_time_s"], ".3g", "{} s a step"),
        _number(progress["mfu"], ".1%", "MFU {}"),
    ]
    lines = []
    if progress["step"] is not None:
        lines += _labelled("step", ", ".join(word for word in said if word))
        if status.phase == "running":
            lines += _labelled("heard", f"{_age(progress['updated_s'])} ago")
        left = _left(progress, status.ends_s)
        lines += _labelled("left", left and f"about {left}")
    if progress["checkpoint_step"] is not None:
        age = f"step {progress['checkpoint_step']}, {_age(progress['checkpoint_s'])} old"
        lines += _labelled("saved", age)
    return [*lines, *_printed_lines(status)]


def _printed_lines(status: Status) -> list[str]:
    """What its output says: the step only of a script that logs none."""
    found, lines = status.printed, []
    if found is None:
        return []
    if (status.progress or {}).get("step") is None:
        words = found.words.removeprefix("step ")
        lines += _labelled("step", words and f"{words} ({found.source})")
    if found.line and found.printed_s is not None:
        when = f", {_age(found.printed_s)} ago" if status.phase == "running" else ""
        lines += [f"  prints     {cut(found.line, 66)}"]
        lines += _labelled("", f"(the newest line of rank {found.rank}{when})")
    return [*lines, *_labelled("not read", found.remark)]


def _attempts(status: Status) -> str:
    newest, several = status.attempts[-1], len(status.attempts) > 1
    count = f"{len(status.attempts)}" + (f", the newest is {newest}" if newest else "")
    why = (status.ending or {}).get("why")
    ended = "the last to end" if several else "it ended"
    return f"{count}; {ended}: {one_line(why)}" if why else count


def _task_lines(tasks: list[Task]) -> list[str]:
    """Of an array, the tasks that have started and not succeeded first."""
    ordered = sorted(tasks, key=lambda task: task.state.startswith("COMPLETED"))
    lines = []
    for task in ordered[:_MOST_TASKS]:
        progress = task.progress or {}
        step = f", step {progress['step']}" if progress.get("step") is not None else ""
        if not step and task.printed is not None and task.printed.words:
            step = f", {task.printed.words} ({task.printed.source})"
        step = f", {_copying(task)}" if _copying(task) else step
        failed = task.failure if task.state.startswith("FAILED") else None
        lines += _labelled(
            f"task {task.task}", f"{task.state}{step}" + (f": {failed.message}" if failed else "")
        )
        for remark in task.remarks:
            lines += hanging(remark, " " * 13, " " * 13)
    if len(tasks) > _MOST_TASKS:
        lines.append(f"  and {len(tasks) - _MOST_TASKS} tasks more: --json has them all")
    return lines


def _not_vouched_for(status: Status) -> bool:
    return status.phase == "unknown" and "UNKNOWN" in status.states.values()


def _failure_lines(status: Status) -> list[str]:
    """The first failure on record, else what the script itself complained of; where to look."""
    from fsdpkit.reporting.logs.errors import first_words

    told_last = {"COMPLETED": 3, "STOPPED": 2, "UNKNOWN": 1, None: 1}
    job_id = min(status.states, key=lambda i: told_last.get(status.states[i], 0), default=None)
    tasks = [task for task in status.tasks if task.job_id == job_id]
    failure = tasks[0].failure if tasks else status.failure
    words = f"{failure.message} (status {failure.status})" if failure else None
    lines = first_words(words, Path(status.dir) / f"slurm-{job_id}.log")
    return [*lines, f"why, and what to do: fsdpkit diagnose {status.run} --page"]


# Words for numbers


def _number(value: float | None, spelt: str, words: str = "{}") -> str:
    return "" if value is None else words.format(format(value, spelt))


def _moment(time_s: float | None) -> str:
    return "an unknown time" if time_s is None else second(time_s)


def _left(progress: dict[str, Any], limit_s: float | None = None) -> str:
    from fsdpkit.reporting.status.progress import TrainingProgress, left_s, limit_first

    now_s = time.time()
    left = left_s(TrainingProgress(**progress), now_s)
    first = limit_first(limit_s, left, now_s)
    return "" if left is None else roughly(left) + (f"; {first}" if first else "")


def _age(since_s: float) -> str:
    return roughly(time.time() - since_s)
