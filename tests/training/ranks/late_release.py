"""A group's thread still has a message in hand when its rank has nothing left to do.

Two ranks; the group is one of its own and outlives the process group, as those of FSDP's meshes do.
"""

from __future__ import annotations

import hashlib
import time
import weakref

import torch
import torch.distributed as dist

from fsdpkit.training.distributed import process_group

BLOCK = bytes(1_000_000_000)  # about a second's hashing, which lets go of the interpreter


class SlowEnd:
    """Keeps the interpreter at its end: where a thread that asks for it is not given it."""

    def __del__(self) -> None:
        time.sleep(3)


slow_end = SlowEnd()
with process_group(60) as ranks:
    group = dist.new_group()
    if not ranks.is_first:
        time.sleep(0.1)
    message = torch.ones(1)
    weakref.finalize(message, hashlib.sha256, BLOCK).atexit = False
    # The thread is the last to hold the tensor, and lets go of it after the other rank's part.
    dist.all_reduce(message, group=group, async_op=True)
    del message
