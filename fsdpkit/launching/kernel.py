"""What agents, the fork server and ranks ask of the Linux kernel about processes: prctl(2).

Raises OSError if the kernel refuses, and on other systems.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

_SET_PDEATHSIG, _SET_MM, _SET_MM_MAP, _SET_CHILD_SUBREAPER = 1, 35, 14, 36
_SET_PTRACER = 0x59616D61
_NO_EXECUTABLE = 0xFFFFFFFF


def adopt_orphans(on: bool = True) -> None:
    """Become the parent of every orphaned descendant, in place of process 1; off: no longer."""
    _prctl(_SET_CHILD_SUBREAPER, int(on))


def die_with_parent(parent: int) -> None:
    """Be killed when the process `parent` ends, or now if it has ended."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def be_traced_by(tracer: int) -> None:
    """Let the process `tracer` and its descendants inspect this one, if the kernel's Yama lets only
    ancestors do so (prctl(2), PR_SET_PTRACER); a later exec keeps that."""
    _prctl(_SET_PTRACER, tracer)


def show_as(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Show this command line and this environment in /proc, as if they had been executed. The
    kernel gets new addresses for both; nothing that a library keeps is overwritten."""
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    variables = b"".join(os.fsencode(f"{k}={v}") + b"\0" for k, v in environ.items())
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    area = mmap.mmap(-1, len(words) + len(variables) + 1, flags=private)
    area.write(words + variables)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    middle, end = start + len(words), start + len(words) + len(variables)
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        stat = file.read().rpartition(") ")[2].split()

    def field(number: int) -> int:
        """As proc_pid_stat(5) counts them; the first two have been cut off."""
        return int(stat[number - 3])

    libc = _libc()
    libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
    # struct prctl_mm_map of linux/prctl.h; an auxiliary vector of size 0 stays as it is.
    places = (
        *(field(26), field(27), field(45), field(46), field(47), libc.sbrk(0), field(28)),
        *(start, middle, middle, end),
        *(0, _NO_EXECUTABLE << 32),
    )
    table = (ctypes.c_uint64 * len(places))(*places)
    _prctl(_SET_MM, _SET_MM_MAP, ctypes.addressof(table), ctypes.sizeof(table))
    _shown.append(area)  # the kernel reads it as long as the process lives


_shown: list[mmap.mmap] = []


@cache
def _libc() -> Any:
    if not sys.platform.startswith("linux"):
        raise OSError(errno.ENOSYS, f"no prctl on {sys.platform}")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    return libc


def _prctl(option: int, *arguments: int) -> None:
    padded = (*arguments, 0, 0, 0, 0)[:4]
    if _libc().prctl(option, *padded):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
