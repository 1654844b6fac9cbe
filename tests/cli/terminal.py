"""`fsdpkit` on a pseudo-terminal, as a person has it."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable


def on_terminal(
    *words: str,
    columns: int = 80,
    rows: int = 24,
    interrupt: bool = False,
    status: int = 0,
    answered: Callable[[str], str | None] = lambda said: None,
) -> str:
    """What the command prints on a terminal of this size, and that it ends with this status.

    interrupt: Ctrl-C once it has drawn twice. answered: what is typed next, by what was
    printed since something was typed."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "fsdpkit", *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
    )
    os.close(slave)
    said, heard = b"", 0
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # nobody has the other end any more
            break
        said += part
        if not part:
            break
        if (typed := answered(said[heard:].decode(errors="replace"))) is not None:
            heard = len(said)
            os.write(master, typed.encode())
        if interrupt and said.count(b"\x1b[H") >= 2:
            process.send_signal(signal.SIGINT)
            interrupt = False
    os.close(master)
    assert process.wait() == status, said.decode()
    return said.decode().replace("\r\n", "\n")
