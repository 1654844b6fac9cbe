"""Ending a process without running torch's destructors.

torch's libraries free some hundred thousand objects, one by one, when exit(3) is called. That is
half of the cost of ending an idle process, and in a forked rank each page touched is copied first.
The kernel frees everything at once.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
from collections.abc import Mapping
from typing import NoReturn

_TOOLS = (
    *("LD_PRELOAD", "LD_AUDIT"),
    *("CUDA_INJECTION64_PATH", "HSA_TOOLS_LIB", "ROCP_TOOL_LIB", "ROCP_TOOL_LIBRARIES"),
    "OMP_TOOL_LIBRARIES",
)
"""By these, profilers get into a process, which write what they found in a destructor: by the
loader's, and by those of CUDA's, ROCm's and OpenMP's own libraries."""


def skip_destructors(environ: Mapping[str, str]) -> None:
    """End this process, and those forked from it, without the destructors of libraries loaded so
    far.

    Python ends as always before that: threads, `atexit`, `__del__`, files. Libraries loaded, and
    handlers registered with atexit(3), later on still run; C's open streams are flushed; the status
    is kept. No effect if a tool is loaded into each process, or the C library has no on_exit(3).
    """
    if any(environ.get(name) for name in _TOOLS):
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "on_exit"):
        return
    # The handler registered last is called first.
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)


def leave(status: int) -> NoReturn:
    """End an agent whose threads and files are done: only `atexit` handlers remain."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
