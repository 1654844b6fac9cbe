"""A process's end without taking apart what torch has made.

Torch's libraries free some hundred thousand objects, one by one, when exit(3) is called: half of
what the end of an idle process costs, and in a forked rank each page that is touched is copied
first. The kernel takes all of it back at once.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
from collections.abc import Mapping
from typing import NoReturn

_TOOLS = ("LD_PRELOAD", "LD_AUDIT")
"""By these, profilers get into a process, which write what they found in a destructor."""


def skip_destructors(environ: Mapping[str, str]) -> None:
    """End this process, and those forked from it, without those of the libraries loaded so far.

    Python ends as always before that: threads, `atexit`, `__del__`, files. What is loaded or
    registered with atexit(3) later on is heard; C's open streams are flushed; the status stays. No
    effect where a tool is loaded into each process, or where this C library has no on_exit(3).
    """
    if any(environ.get(name) for name in _TOOLS):
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "on_exit"):
        return
    # The last to be registered is the first to be called.
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)


def leave(status: int) -> NoReturn:
    """End an agent, whose threads are over and whose files are written: nothing is left but what
    was registered with `atexit`."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
