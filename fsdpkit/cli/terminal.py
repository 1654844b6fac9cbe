"""The edge: everything a command prints leaves through here, without control sequences of others.

`guard` puts a stream in front of standard output and standard error that makes all text printable
(reporting/printable.py), whether a command, click, a traceback or a warning. What we add
ourselves, colours and a screen drawn anew, is made here, around text that was made printable.
`tests/cli/test_terminal.py` lets no other module reach the streams beneath.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from fsdpkit.reporting.printable import one_line, printable
from fsdpkit.reporting.words import duration

if TYPE_CHECKING:
    from rich.console import Console


class ReaderGoneError(Exception):
    """Whoever read the output has closed it. Of an OSError click would make status 1."""


class _Guarded(io.TextIOBase):
    """A text stream in front of another. It has no `buffer` that could be written past it."""

    def __init__(self, beneath: TextIO, *, wraps: bool = False) -> None:
        """wraps: long sentences at a terminal's width."""
        self.beneath = beneath
        self.wraps = wraps

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.beneath.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self.beneath.errors

    def write(self, data: str | bytes) -> int:
        """Bytes, too: click writes completions so."""
        text = data if isinstance(data, str) else data.decode(self.encoding, "replace")
        if self.wraps and text.endswith("\n") and self.isatty():  # a question stays as it is
            width = max(40, os.get_terminal_size(self.fileno()).columns or 80)
            text = "\n".join(_at_width(line, width) for line in text.split("\n"))
        _passing.make_room(text)
        with self._told_once():
            self.beneath.write(printable(text))
        return len(data)

    def flush(self) -> None:
        with self._told_once():
            self.beneath.flush()

    @contextlib.contextmanager
    def _told_once(self) -> Iterator[None]:
        """What cannot be written (a full disk) is an error once, and not again while it is told."""
        try:
            yield
        except BrokenPipeError:
            raise ReaderGoneError from None
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.beneath.fileno())
            raise

    def fileno(self) -> int:
        return self.beneath.fileno()

    def isatty(self) -> bool:
        return self.beneath.isatty()

    def writable(self) -> bool:
        return True


_TO_COPY = re.compile(
    r"""(?<![^\s(])(?:fsdpkit|pip|conda|module(?=[ ](?:avail|load|spider|use))|scontrol|sinfo
        |scancel|sacctmgr|dos2unix|export|cd)[ ].*?
        (?=[,;)]|[.:][ ]|[ ][a-z]+[ ](?:it|them|shows|lists|says|makes|continues)|[.]?$)
        |(?<!\S)--?\w\S*[ ][^\s-]\S* | (?<!\w)'[^'\n]*' | "[^"\n]*" """,
    re.VERBOSE,
)
"""A command, an option with its value, what stands in quotes: its spaces are no place to break."""


def wrap(
    line: str, width: int, first: str = "", rest: str = "", whole: re.Pattern[str] = _TO_COPY
) -> list[str]:
    """A sentence in lines of so many columns, the first behind `first`, others behind `rest`; what
    `whole` finds, such as a command to be copied, stays in one piece."""
    if len(first) + len(line) <= width:
        return [first + line]
    import textwrap

    kept = whole.sub(lambda found: found[0].replace(" ", "\0"), line)
    lines = textwrap.wrap(
        kept,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in lines]


def _at_width(line: str, width: int) -> str:
    """What is indented is code or a command, to be copied; a difference is shown as it is."""
    return line if line.startswith((" ", "+", "-", "@")) else "\n".join(wrap(line, width, "", "  "))


def guard() -> None:
    """Put the guard in front of this process's standard streams."""
    for name in ("stdout", "stderr"):  # closed by whoever called
        if getattr(sys, name) is None:
            setattr(sys, name, io.StringIO())
    if not isinstance(sys.stdout, _Guarded):
        sys.stdout = _Guarded(_whole(sys.stdout))
    if not isinstance(sys.stderr, _Guarded):
        sys.stderr = _Guarded(sys.stderr, wraps=True)


def _whole(stream: TextIO) -> TextIO:
    """Standard output with a buffer, which writes all of a text: with PYTHONUNBUFFERED Python loses
    the rest of one whose writing was interrupted, as by Ctrl-Z. A character that the terminal's
    encoding lacks becomes `?`."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return stream
    stream.flush()
    return open(number, "w", encoding=stream.encoding, errors="replace", closefd=False)


def let_go() -> None:
    """The reader (head, less) has gone; keep Python from complaining when it flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _beneath(stream: TextIO) -> TextIO:
    return getattr(stream, "beneath", stream)


def console(*, err: bool = False) -> Console:
    """rich's console, whose colours are ours and whose text is printable."""
    from rich.console import Console
    from rich.segment import Segment

    class Printable(Console):
        def render(self, *words: Any, **options: Any) -> Iterable[Segment]:
            for text, style, control in super().render(*words, **options):
                yield Segment(text if control else printable(text), style, control)

    beneath = _beneath(sys.stderr if err else sys.stdout)
    return Printable(file=beneath, highlight=False, markup=False, emoji=False)


@contextlib.contextmanager
def reading_bar() -> Iterator[Callable[[Path, int], object] | None]:
    """Draws how many bytes of a checkpoint were read, on a terminal's standard error; else None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    name = TextColumn("reading {task.description}", markup=False)
    columns = name, BarColumn(None), DownloadColumn(), TimeRemainingColumn()
    drawn = Progress(*columns, console=console(err=True), transient=True)
    with at_work(""), drawn as bar:
        tasks: dict[Path, Any] = {}

        def read(path: Path, count: int) -> None:
            if path not in tasks:
                tasks[path] = bar.add_task(f"{path.parent.parent.name}/{path.name}", total=None)
                with contextlib.suppress(OSError):  # it may be on its way out
                    total = sum(file.stat().st_size for file in path.glob("*"))
                    bar.update(tasks[path], total=total)
            bar.advance(tasks[path], count)

        yield read


def redraw(text: str) -> None:
    """`text` over what was on the terminal before, as much of it as the terminal holds."""
    width, height = os.get_terminal_size()
    lines = [row for line in printable(text).split("\n") for row in _wrapped(line, width)]
    if len(lines) >= height:
        lines = [*lines[: height - 2], f"… {len(lines) - height + 2} lines more"]
    out = _beneath(sys.stdout)
    out.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
    out.flush()


def cut(text: str, most: int) -> str:
    """No more than so many cells of a terminal."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= most else set_cell_size(text, most - 1).rstrip() + "…"


_SILENT_S = 8.0


class _Passing:
    """On a terminal's standard error a line that says what goes on. What is printed next takes its
    place, and it never interrupts a line, such as a question."""

    def __init__(self) -> None:
        self.at_work: list[tuple[str | Callable[[], str], float]] = []
        self._stands, self._whole_line, self._printed_s = False, True, time.monotonic()

    def make_room(self, text: str) -> None:
        """Before that is printed."""
        self._printed_s = time.monotonic()  # first: `look` may interrupt this
        if self._stands:
            with contextlib.suppress(OSError):  # the terminal has gone
                self._draw("")
        self._whole_line = text.endswith("\n") or (self._whole_line and not text)

    def look(self, *_: object) -> None:
        """Once a second, in a signal's handler."""
        now_s = time.monotonic()
        words, since_s = self.at_work[-1]
        if self._whole_line and words and now_s - self._printed_s > _SILENT_S:
            # It may be in the midst of anything, such as an import; it looks again in a second.
            with contextlib.suppress(Exception):
                said = words if isinstance(words, str) else words()
                self._draw(f"{duration(now_s - since_s)}: {said}")

    def _draw(self, text: str) -> None:
        number = _beneath(sys.stderr).fileno()
        line = cut(one_line(text), (os.get_terminal_size(number).columns or 80) - 1)
        self._stands = bool(line)
        os.write(number, f"\r\x1b[K{line}".encode(errors="replace"))


_passing = _Passing()


@contextlib.contextmanager
def at_work(words: str | Callable[[], str]) -> Iterator[None]:
    """While this lasts, a terminal where nothing is printed for some seconds shows these words in a
    line that passes; empty: nothing. Of several such, the innermost counts."""
    _passing.at_work.append((words, time.monotonic()))
    outermost = len(_passing.at_work) == 1 and _shows_what_passes()
    if outermost:
        before = signal.signal(signal.SIGALRM, _passing.look)
        signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
    try:
        yield
    finally:
        if outermost:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
        _passing.make_room("")
        _passing.at_work.pop()


def _shows_what_passes() -> bool:
    """Not beside a pager or a filter, which print to the same terminal."""
    with contextlib.suppress(OSError, ValueError):
        return sys.stderr.isatty() and not stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    return False


def _wrapped(line: str, width: int) -> list[str]:
    return [line[at : at + width] for at in range(0, max(1, len(line)), width)]
