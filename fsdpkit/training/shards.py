"""What this rank holds of a tensor that is spread over ranks."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from fsdpkit.errors import FsdpkitError


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, sharing its memory; any other tensor itself."""
    part: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part


def shard_of(parameter: Tensor) -> int:
    """Which of a parameter's shards this rank holds; the same on all replicas of it."""
    if isinstance(parameter, DTensor):
        for dimension, placement in enumerate(parameter.placements):
            if isinstance(placement, Shard):
                return parameter.device_mesh.get_local_rank(dimension)
    return 0


def ranks_of(tensor: DTensor) -> dist.ProcessGroup:
    """The ranks that a tensor's rows are spread over; replicas of it are others."""
    for dimension, placement in enumerate(tensor.placements):
        if isinstance(placement, Shard):
            if placement.dim != 0:
                raise FsdpkitError(f"Shards along dimension {placement.dim}: expected 0.")
            group: dist.ProcessGroup = tensor.device_mesh.get_group(dimension)
            return group
    raise FsdpkitError("A DTensor without shards: expected what FSDP2 makes.")
