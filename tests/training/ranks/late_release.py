"""A group's thread still lets go of a message when its rank has nothing left to do.

Two ranks; the group is one of its own and outlives the process group, as those of FSDP's meshes do.
argv[1]: a directory in which the threads mark that the message is through.
"""

from __future__ import annotations

import hashlib
import sys
import time
import weakref
from pathlib import Path

import torch
import torch.distributed as dist

from fsdpkit.training.distributed import process_group

HASH = (hashlib.pbkdf2_hmac, "sha256", b"", b"", 2_000_000)
"""Takes seconds, and lets go of the interpreter meanwhile."""
marks = [Path(sys.argv[1], f"through-{rank}") for rank in (0, 1)]


class SlowEnd:
    """Keeps the interpreter at its end: where a thread that asks for it is not given it."""

    def __del__(self) -> None:
        time.sleep(5)


slow_end = SlowEnd()
with process_group(240) as ranks:
    group = dist.new_group()
    message = torch.ones(1)
    # The later one is called first. No function of this file: its frame would keep `slow_end`.
    weakref.finalize(message, *HASH).atexit = False
    weakref.finalize(message, marks[ranks.rank].touch).atexit = False
    if not ranks.is_first:
        time.sleep(0.1)
    # The thread is the last to hold the tensor, and lets go of it when both have sent their part.
    dist.all_reduce(message, group=group, async_op=True)
    del message
    while not all(mark.exists() for mark in marks):
        time.sleep(0.01)
