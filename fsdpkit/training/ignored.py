"""Parameters that are not sharded: whole on every rank, and still one model.

Both engines leave ignored parameters alone altogether, gradients included, so that each rank would
train its own copy. Here their gradients are averaged over all ranks, as the engines average those
of shards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fsdpkit.errors import ConfigError
from fsdpkit.training.initialisation import Fill, seeded_generator
from fsdpkit.training.units import plain_name, unwrapped, walk

_KEY = "training.sharding.ignore"


def ignored_parameters(model: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters that one of `patterns` fits, by plain name; a tied one under its first.

    Raises ConfigError for a pattern that fits nothing, and when nothing would be left to shard.
    """
    named = {plain_name(name): parameter for name, parameter in model.named_parameters()}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise ConfigError(
                f"{_KEY}: {pattern!r} fits no parameter of {type(model).__name__}. They are named "
                f"like {', '.join(list(named)[:4])}."
            )
    found = {n: p for n, p in named.items() if any(fnmatchcase(n, each) for each in patterns)}
    if found and len(found) == len(named):
        raise ConfigError(
            f"{_KEY} fits every parameter, so nothing would be sharded: use strategy "
            '"no_shard", or narrower patterns.'
        )
    return found


def modules_of(model: nn.Module, ignored: Collection[nn.Parameter]) -> list[str]:
    """Paths of the modules that hold `ignored`. Raises ConfigError for one that holds others, too:
    it could not compute in a single type."""
    paths = []
    for path, module in walk(model):
        own = [p for p in unwrapped(module)._parameters.values() if p is not None]
        among = [p for p in own if any(p is each for each in ignored)]
        if among and len(among) < len(own):
            raise ConfigError(
                f"{_KEY}: {path} has other parameters, too, which would compute in another type: "
                f'ignore all of it ("{path}.*"), or set training.precision.param = "float32".'
            )
        if among:
            paths.append(path)
    return paths


def fill_ignored(
    model: nn.Module,
    ignored: Mapping[str, nn.Parameter],
    fill: Fill,
    seed: int,
    device: torch.device,
) -> dict[str, nn.Parameter]:
    """`ignored` with memory on `device` and the values that `fill` gives them, put into `model`."""
    filled: dict[str, nn.Parameter] = {}
    for name, parameter in ignored.items():
        whole = torch.empty_like(parameter, device=device)
        with torch.no_grad():
            fill(name, whole, seeded_generator(name, seed, device))
        filled[name] = nn.Parameter(whole, requires_grad=parameter.requires_grad)
    by_empty = {id(parameter): filled[name] for name, parameter in ignored.items()}
    for module in model.modules():
        for last, held in module._parameters.items():
            module._parameters[last] = by_empty.get(id(held), held)
    return filled


def keep_equal(ignored: Collection[nn.Parameter], device: torch.device) -> None:
    """Put them on `device`; from now on their gradients are the average over all ranks.

    Each time that one was added to, so that gradients may also be accumulated: the average of what
    is the same everywhere and of what was added is the average of both.
    """
    for parameter in ignored:
        parameter.data = parameter.data.to(device)
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_average)  # type: ignore[no-untyped-call]


def _average(parameter: Tensor) -> None:
    assert parameter.grad is not None
    dist.all_reduce(parameter.grad)
    parameter.grad.div_(dist.get_world_size())
