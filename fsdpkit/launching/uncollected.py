"""Imports with garbage collection off.

Importing torch makes 300,000 objects, nearly all of which stay. Python runs the collector whenever
enough objects are new, and once more when the process ends, and it scans them again and again.
With torchelastic's objects that is a third of the processor time of an agent that is otherwise
idle.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Objects created within the block count as permanent, and are never scanned again.

    Afterwards the collector runs as before. After a fork, pages it need not scan stay shared.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
