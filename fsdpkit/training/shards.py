"""What this rank holds of a tensor that is spread over ranks."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard


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
