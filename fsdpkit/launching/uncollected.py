"""Imports without garbage collection.

An import of torch makes 300,000 objects, and nearly all stay. The collector, which Python starts
whenever enough are new, looks through them again and again, a last time when the process ends:
with torchelastic's a third of the processor time of an agent that has nothing else to do.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """What is made within the block is no garbage, and is never looked at again.

    Afterwards the collector is as it was. A fork leaves the pages shared that it need not look at.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
