"""Look at whole weights of a sharded model, one at a time, while it trains.

What torch calls to summon full parameters, for both engines, and in the type of the shards: what
FSDP2 gathers for a forward pass is in the type of the computation.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from fsdpkit.training.units import plain_name


def whole_weights(model: nn.Module, match: str = "*") -> Iterator[tuple[str, Tensor]]:
    """Look at whole weights of a sharded model, one at a time; a collective.

    All ranks go through it to the end, between two steps. One weight is gathered at a time (FSDP1:
    one unit), so that no rank holds the model.

    Args:
        model: What `shard` has returned.
        match: Pattern of plain names, such as `"encoder.*"` (`fnmatch`).

    Yields:
        (plain name, a copy of the whole weight in its shape and the shards' type), on every rank.
    """
    if isinstance(model, FullyShardedDataParallel):
        yield from _of_fsdp1(model, match)
        return
    for name, parameter in model.named_parameters():
        if fnmatchcase(plain := plain_name(name), match):
            weight = parameter.detach()
            yield plain, weight.full_tensor() if isinstance(weight, DTensor) else weight.clone()


def _of_fsdp1(model: nn.Module, match: str) -> Iterator[tuple[str, Tensor]]:
    for path, unit in model.named_modules():
        if not isinstance(unit, FullyShardedDataParallel):
            continue
        with FullyShardedDataParallel.summon_full_params(unit, recurse=False, writeback=False):
            copies = [
                (name, parameter.detach().clone())
                for name, parameter in _own_parameters(unit, path)
                if fnmatchcase(name, match)
            ]
        yield from copies


def _own_parameters(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Parameter]]:
    """Those in no unit further in."""
    for last, parameter in module.named_parameters(recurse=False):
        yield plain_name(f"{path}.{last}" if path else last), parameter
    for last, child in module.named_children():
        if not isinstance(child, FullyShardedDataParallel):
            yield from _own_parameters(child, f"{path}.{last}" if path else last)
