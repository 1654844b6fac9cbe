"""One line that says how far something is, kept up to date where it is shown.

In a notebook through IPython's display, on a terminal over itself, elsewhere a line whenever what
it says has changed. Whatever others wrote into it is made printable.
"""

from __future__ import annotations

import shutil
import sys
from importlib import import_module
from typing import Any

from fsdpkit.reporting.printable import printable


class ProgressLine:
    """Use it with `with`: a terminal's line stays when it is left."""

    def __init__(self) -> None:
        self._notebook = _has_notebook()
        self._handle: Any = None
        self._terminal = not self._notebook and sys.stderr.isatty()
        self._shown = ""

    def show(self, what: str, since: str = "") -> None:
        """`what` is printed when it changes, `since` only where the line can be drawn anew."""
        what, since = (printable(text).replace("\n", " ") for text in (what, since))
        if self._notebook:
            self._display(what + since)
        elif self._terminal:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r{(what + since)[:width]}\x1b[K")
            sys.stderr.flush()
        elif what != self._shown:
            sys.stderr.write(f"{what}\n")
        self._shown = what

    def _display(self, text: str) -> None:
        display: Any = import_module("IPython.display").display
        data = {"text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._terminal and self._shown:
            sys.stderr.write("\n")


def _has_notebook() -> bool:
    """Whether this is a kernel, which shows what it is handed; IPython in a terminal is none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
