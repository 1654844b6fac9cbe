"""A forked rank becomes the process that its command would have started: same number, new program.

Signals, files and output are as at its first start; what it has printed to its own files is taken
back, for its script is going to print it again.
"""

from __future__ import annotations

import os
import posix
import signal
import stat
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from fsdpkit.launching import fork_safety
from fsdpkit.launching.at_start.sitecustomize import WARNINGS


@dataclass(frozen=True)
class RankStart:
    """How a rank was started."""

    command: tuple[str, ...]
    """What torchelastic would have executed."""
    environ: dict[str, str]
    directory: str
    pid: int
    ignored: frozenset[int]
    """Signals that it ignored."""
    blocked: frozenset[int]
    umask: int
    written: dict[int, tuple[int, int, int]]
    """Of standard output and error, where they are files: device, number and length."""

    @classmethod
    def now(cls, command: Sequence[str], environ: Mapping[str, str], directory: str) -> RankStart:
        os.umask(umask := os.umask(0o22))
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        return cls(
            tuple(command),
            dict(environ),
            directory,
            os.getpid(),
            frozenset(_ignored()),
            frozenset(blocked),
            umask,
            {number: found for number in (1, 2) if (found := _file(number))},
        )

    def again(self) -> NoReturn:
        """Replace this process by a new start. Its threads end, its connections close, and so do
        the processes that it has started. Raises OSError."""
        fork_safety.end_children()
        for number in fork_safety.open_files():
            with suppress(OSError):
                os.set_inheritable(number, False)
        for number, (*before, length) in self.written.items():
            if (found := _file(number)) and [*found[:2]] == before:
                os.ftruncate(number, length)
                os.lseek(number, length, os.SEEK_SET)
        if threading.current_thread() is threading.main_thread():
            for number in set(_ignored()) - self.ignored:
                signal.signal(number, signal.SIG_DFL)
            for number in WARNINGS:
                signal.signal(number, signal.SIG_IGN)
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)
        os.umask(self.umask)
        with suppress(OSError):  # it has been removed: the script fails, or does without
            os.chdir(self.directory)
        # Not os.execve: that keeps the rank's signals by a detour of its own.
        posix.execve(self.command[0], self.command, self.environ)


def _ignored() -> list[int]:
    found = (number for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
    return [int(number) for number in found if signal.getsignal(number) is signal.SIG_IGN]


def _file(number: int) -> tuple[int, int, int] | None:
    with suppress(OSError):
        found = os.fstat(number)
        if stat.S_ISREG(found.st_mode):
            return found.st_dev, found.st_ino, found.st_size
    return None
