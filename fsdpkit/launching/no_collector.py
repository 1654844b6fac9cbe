"""Imports with garbage collection off.

Importing torch makes 300,000 objects, nearly all of which stay. Python runs the collector whenever
enough objects are new, and once more when the process ends, and it scans them again and again.
With torchelastic's objects that is a third of the processor time of an agent that is otherwise
idle.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collector() -> Iterator[None]:
    """Objects created within the block count as permanent, and are never scanned again.

    Afterwards the collector runs as before. After a fork, pages it need not scan stay shared.
    nanobind, by which Triton reaches C++, reports as leaks what is still there when Python has
    ended: with it, everything is scanned at the end once more (half a second in a forked rank).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if leaks_are_reported():
            atexit.register(gc.unfreeze)
        if collects:
            gc.enable()


def leaks_are_reported() -> bool:
    """Whether a library bound by nanobind is loaded: its metaclasses are there."""
    return any(each.__dict__.get("__module__") == "nanobind" for each in type.__subclasses__(type))
