"""A program on a terminal of its own, for tests: what it shows, what is typed, and its end."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence

from tests.programs import until


class Terminal:
    """Runs a command on a pseudo-terminal."""

    def __init__(
        self,
        argv: Sequence[str],
        rows: int = 24,
        columns: int = 80,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.shown = ""
        self._pid, self._end = pty.fork()
        if self._pid == 0:
            try:
                os.execvpe(argv[0], list(argv), {**environ, "TERM": "xterm"})
            finally:
                os._exit(127)
        self.resize(rows, columns)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def wait_for(self, text: str) -> str:
        """Until `text` is shown; all that came up to it, which is then forgotten."""
        until(lambda: text in self.shown or self._look(), text)
        before, _, self.shown = self.shown.partition(text)
        return before + text

    def _look(self) -> None:
        if not select.select([self._end], [], [], 0.2)[0]:
            return
        try:
            data = os.read(self._end, 1 << 16)
        except OSError:
            data = b""
        assert data, f"it has ended: {self.shown}"
        self.shown += data.decode(errors="replace")

    def end(self, within_s: float = 300) -> int:
        """Its exit status, once it has ended by itself; it is killed after that time."""
        deadline = time.monotonic() + within_s
        while (found := os.waitpid(self._pid, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
            if select.select([self._end], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._end, 1 << 16).decode(errors="replace")
                except OSError:
                    time.sleep(0.05)
        os.close(self._end)
        return os.waitstatus_to_exitcode(found[1])
