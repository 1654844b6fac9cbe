"""Which optimizer a sharded model gets: its update rule, its parameter groups, what is decayed.

AdamW and Adam are torch's: they work element by element, so shards do not concern them. SGD with
decoupled decay, and two rules that need whole matrices, are in `fsdpkit.training.update_rules`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fsdpkit.config.training import OptimizerSettings
from fsdpkit.errors import ConfigError, FsdpkitError
from fsdpkit.training.rounding import CompensatedAdamW, RoundingAdamW
from fsdpkit.training.schedules import check_schedule
from fsdpkit.training.sharding import DIMENSIONS, plain_name
from fsdpkit.training.update_rules import SGD, Adafactor, Adam, AdamW, ScaledAdamW


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The optimizer of `settings` over the parameters of a sharded model.

    Parameters fall into groups by `settings.groups`; only matrices are decayed, no norms and no
    biases, unless a group says so. A group's rate is `settings.lr` times its `lr_scale`, until
    `set_learning_rate` sets another. Parameters of a group whose scale is 0 are frozen: they have
    no gradient, no part in its norm and no state. Loading a checkpoint brings the state back, while
    rates and decays stay those of `settings`.

    Args:
        model: What `shard` has returned.
        settings: `[training.optimizer]`: update rule, rates, groups.

    Returns:
        torch's AdamW, Adam or SGD, or a rule of `fsdpkit.training.update_rules`.

    Raises:
        ConfigError: No parameter belongs to a group, all are frozen, or torch refuses the schedule.
        FsdpkitError: The model is not sharded yet, so its parameters are about to be replaced.
    """
    _refuse_unsharded(model)
    check_schedule(settings)
    groups = _groups(model, settings)
    optimizer = _RULES[settings.name](groups, settings)
    own = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]

    def keep_settings(loaded: torch.optim.Optimizer) -> None:
        for group, values in zip(loaded.param_groups, own, strict=True):
            group.update(values)

    optimizer.register_load_state_dict_post_hook(keep_settings)
    return optimizer


def _refuse_unsharded(model: nn.Module) -> None:
    sharded = isinstance(model, FSDPModule | FullyShardedDataParallel | DistributedDataParallel)
    on_meta = any(p.is_meta for p in model.parameters())
    hides_dimensions = isinstance(model, FullyShardedDataParallel) and not hasattr(
        model, DIMENSIONS
    )
    if on_meta or hides_dimensions or (dist.is_initialized() and not sharded):
        raise FsdpkitError(
            "The optimizer was asked for before the model was sharded: it would update parameters "
            "that nobody uses any more. Call make_optimizer with what shard() returns."
        )


def _groups(model: nn.Module, settings: OptimizerSettings) -> list[dict[str, Any]]:
    """Parameter groups of equal decay and rate, without frozen parameters."""
    # torch updates a group in one operation, which takes shards or whole parameters.
    chosen: dict[tuple[float, float, bool], list[nn.Parameter]] = defaultdict(list)
    frozen: list[nn.Parameter] = []
    used: set[str] = set()
    for name, parameter, decays in _parameters(model):
        scale, decay = 1.0, settings.weight_decay if decays else 0.0
        group = next((g for g in settings.groups if fnmatchcase(name, g.match)), None)
        if group is not None:
            used.add(group.match)
            scale = group.lr_scale
            decay = decay if group.weight_decay is None else group.weight_decay
        if scale == 0:
            frozen.append(parameter)
        elif parameter.requires_grad:
            chosen[decay, scale, isinstance(parameter, DTensor)].append(parameter)

    for group in settings.groups:
        if group.match not in used:
            raise ConfigError(
                f"training.optimizer.groups: no parameter is left for match = {group.match!r}. "
                "Patterns see whole names, such as encoder.block.0.layer.0.layer_norm.weight, and "
                "the first that fits counts."
            )
    if not chosen:
        raise ConfigError("training.optimizer.groups freezes every parameter: nothing would learn.")
    _freeze(model, frozen)
    return [
        {"params": parameters, "lr": settings.lr * scale, "lr_scale": scale, "weight_decay": decay}
        for (decay, scale, _), parameters in chosen.items()
    ]


def _freeze(model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
    if isinstance(model, DistributedDataParallel) and any(p.requires_grad for p in parameters):
        raise ConfigError(
            "training.optimizer.groups: DistributedDataParallel waits for the gradients of all "
            "parameters that it was given. Freeze them by requires_grad_(False) before you wrap "
            "the model, or shard it."
        )
    for parameter in parameters:
        parameter.requires_grad_(False)


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, bool]]:
    """Plain name, parameter, whether it is decayed; each parameter once."""
    dimensions = getattr(model, DIMENSIONS, {})
    seen: set[nn.Parameter] = set()
    for prefix, module in model.named_modules():
        for last, parameter in module.named_parameters(recurse=False):
            if parameter not in seen:
                seen.add(parameter)
                name = plain_name(f"{prefix}.{last}" if prefix else last)
                yield name, parameter, _decays(module, last, dimensions.get(name, parameter.ndim))


def _decays(module: nn.Module, name: str, dimensions: int) -> bool:
    """Whether the parameter `name` of `module` is a matrix that multiplies what goes through it.

    Biases are not, whatever their shape or class, nor vectors, nor what a normalisation scales by.
    """
    return dimensions > 1 and not isinstance(module, _NORMS) and "bias" not in name.split("_")


_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)

Groups = list[dict[str, Any]]


def _adamw(groups: Groups, settings: OptimizerSettings) -> torch.optim.Optimizer:
    if settings.rounding == "compensated":
        return CompensatedAdamW(groups, **_of_adam(settings))
    if settings.rounding is not None:
        return RoundingAdamW(groups, **_of_adam(settings), rounding=settings.rounding)
    return AdamW(groups, **_of_adam(settings), **_kernels(settings))


def _adam(groups: Groups, settings: OptimizerSettings) -> torch.optim.Optimizer:
    return Adam(groups, **_of_adam(settings), **_kernels(settings))


def _sgd(groups: Groups, settings: OptimizerSettings) -> torch.optim.Optimizer:
    if any(isinstance(p, DTensor) for group in groups for p in group["params"]):
        if settings.implementation == "fused":
            raise ConfigError(
                "torch has no fused sgd for fsdp2's shards: set "
                'training.optimizer.implementation to "auto" or "foreach".'
            )
        kernels = {"foreach": settings.implementation != "loop"}
    else:
        kernels = _kernels(settings)
    return SGD(groups, lr=settings.lr, momentum=settings.beta1, **kernels)


def _of_adam(settings: OptimizerSettings) -> dict[str, Any]:
    """What every rule with Adam's two averages takes."""
    return {"lr": settings.lr, "betas": (settings.beta1, settings.beta2), "eps": settings.eps}


def _kernels(settings: OptimizerSettings) -> dict[str, Any]:
    """torch's own switches; auto is fused, which CPUs and GPUs both have."""
    kind = settings.implementation
    return {"fused": kind in ("auto", "fused"), "foreach": kind == "foreach"}


def _adamw_scaled(groups: Groups, settings: OptimizerSettings) -> torch.optim.Optimizer:
    return ScaledAdamW(groups, **_of_adam(settings), foreach=settings.implementation != "loop")


def _adafactor(groups: Groups, settings: OptimizerSettings) -> torch.optim.Optimizer:
    return Adafactor(groups, lr=settings.lr, foreach=settings.implementation != "loop")


_RULES: dict[str, Callable[[Groups, OptimizerSettings], torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "adamw-scaled": _adamw_scaled,
    "adafactor": _adafactor,
    "adam": _adam,
    "sgd": _sgd,
}
