"""Frames on the terminal's other screen: `watch` and `top`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

Frame = tuple["Callable[[int, int], Sequence[Text]]", float]
"""The lines for a width and a height, and for how many seconds they are shown."""


def can_draw() -> bool:
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    terminal = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    return sys.stdout.isatty() and terminal and encoding.startswith("utf")


def show(frames: Iterable[Frame]) -> None:
    """One after the other, drawn anew at another size; the terminal is as before in the end."""
    from rich.console import Group
    from rich.live import Live

    from fsdpkit.cli.terminal import console

    screen = console()
    with _until_resized() as wait, Live(console=screen, screen=True, auto_refresh=False) as live:
        for draw, seconds in frames:
            until_s = time.monotonic() + seconds
            while (left_s := until_s - time.monotonic()) > 0:
                live.update(Group(*draw(screen.size.width, screen.size.height)), refresh=True)
                wait(left_s)


@contextlib.contextmanager
def _until_resized() -> Iterator[Callable[[float], None]]:
    """Waits so many seconds, or until the terminal's size has changed. A SIGTERM ends Python in
    order, so that the terminal is put right."""
    # The signal itself writes, at C's level: a handler in Python may have to wait until `select`
    # is over, if the signal comes between the interpreter's last look and the call.
    told, tell = os.pipe()
    for end in (told, tell):
        os.set_blocking(end, False)
    written_before = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)

    def wait(timeout_s: float) -> None:
        if select.select([told], [], [], timeout_s)[0]:
            os.read(told, 4096)

    before = {
        signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)),
    }
    try:
        yield wait
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(written_before)
        os.close(told)
        os.close(tell)
