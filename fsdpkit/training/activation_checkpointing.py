"""Trade compute for memory: keep each block's input only and run the block again in backward.

Applied on every rank alike (a rank that keeps its activations runs out of memory as if nothing had
been done) and to whole blocks (between a block's children there would be as much left to keep).
"""

from __future__ import annotations

from collections.abc import Collection

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
    checkpoint_wrapper,
)


def checkpoint_activations(model: nn.Module, blocks: Collection[type[nn.Module]]) -> int:
    """Wrap every block of the given classes in place; returns how many.

    Call it before sharding, so that a block is recomputed inside its FSDP unit, while the unit's
    weights are gathered for backward anyway; `fsdpkit.training.sharding.shard` does.
    """
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, tuple(blocks)) and not isinstance(parent, CheckpointWrapper):
                setattr(parent, name, checkpoint_wrapper(child))
                count += 1
    return count
