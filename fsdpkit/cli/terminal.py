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
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from fsdpkit.reporting.printable import one_line, printable

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
        if self.wraps and self.isatty():
            width = max(40, os.get_terminal_size(self.fileno()).columns or 80)
            text = "\n".join(_at_width(line, width) for line in text.split("\n"))
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
    r"""(?<!\S)(?:fsdpkit|pip|conda|module|scontrol|sinfo|scancel|dos2unix|export|cd)[ ].*?
        (?=[,;)]|[.:][ ]|[ ][a-z]+[ ](?:it|them|shows|lists|says|makes|continues)|[.]?$)
        |(?<!\S)--?\w\S*[ ][^\s-]\S* | (?<!\w)'[^'\n]*' | "[^"\n]*" """,
    re.VERBOSE,
)
"""A command, an option with its value, what stands in quotes: its spaces are no place to break."""


def wrap(line: str, width: int, first: str, rest: str) -> list[str]:
    """A sentence in lines of a terminal, the first behind `first`, others behind `rest`; what is to
    be copied stays in one piece."""
    if len(first) + len(line) <= width:
        return [first + line]
    import textwrap

    kept = _TO_COPY.sub(lambda found: found[0].replace(" ", "\0"), line)
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
    """What is indented is code or a command, to be copied."""
    return line if line.startswith(" ") else "\n".join(wrap(line, width, "", "  "))


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
    with Progress(*columns, console=console(err=True), transient=True) as bar:
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


def passing(text: str) -> None:
    """On a terminal's standard error a line that the next one takes the place of; empty: none."""
    err = _beneath(sys.stderr)
    columns = os.get_terminal_size(err.fileno()).columns or 80
    err.write(f"\r\x1b[K{one_line(text)[: columns - 1]}")
    err.flush()


def _wrapped(line: str, width: int) -> list[str]:
    return [line[at : at + width] for at in range(0, max(1, len(line)), width)]
