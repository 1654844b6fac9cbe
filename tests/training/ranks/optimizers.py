"""Each update rule on shards against the same rule on whole matrices, and what it sends.

Gradients are made up, the same on all ranks, so that only the rule is compared. Some matrices have
fewer rows than there are ranks. On 4 ranks.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from fsdpkit.config.training import OptimizerSettings, PrecisionSettings, ShardingSettings
from fsdpkit.config.training.optimizer import ParameterGroup
from fsdpkit.errors import FsdpkitError
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.optimizers import make_optimizer
from fsdpkit.training.schedules import set_learning_rate
from fsdpkit.training.sharding import plain_name, shard

STEPS = 4


class Net(nn.Module):
    """Matrices of 9, 3 and 1 rows, a stack of matrices, vectors; weights of very unequal size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 9), nn.Linear(9, 3, bias=False)
        self.norm, self.last = nn.LayerNorm(3), nn.Linear(3, 1)
        self.stack = nn.Conv1d(4, 6, 3)
        with torch.no_grad():
            self.second.weight.mul_(30)
            self.last.weight.mul_(1e-4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.stack(x.new_ones(1, 4, 3)).mean()
        return self.last(self.norm(self.second(self.first(x)))) + seen


def give_gradients(model: nn.Module, step: int) -> None:
    for number, parameter in enumerate(model.parameters()):
        generator = torch.Generator().manual_seed(1000 * step + number)
        whole = torch.randn(parameter.shape, generator=generator) * 10.0 ** (number % 3 - 1)
        if isinstance(parameter, DTensor):
            whole = distribute_tensor(
                whole, parameter.device_mesh, parameter.placements, src_data_rank=None
            )
        parameter.grad = whole


def whole_weights(model: nn.Module) -> list[torch.Tensor]:
    return [
        (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for p in model.parameters()
    ]


def difference(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    """Largest relative difference of any matrix."""
    return max(((x - y).norm() / y.norm()).item() for x, y in zip(a, b, strict=True))


def scaled_adamw_by_hand(model: nn.Module, settings: OptimizerSettings, state: dict) -> None:
    """The rule as nanoT5 words it, one matrix at a time, decay not scaled."""
    lr, b1, b2 = settings.lr, settings.beta1, settings.beta2
    for name, p in model.named_parameters():
        s = state.setdefault(name, {"t": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)})
        s["t"] += 1
        s["m"] = b1 * s["m"] + (1 - b1) * p.grad
        s["v"] = b2 * s["v"] + (1 - b2) * p.grad**2
        size = max(1e-3, p.norm().item() / math.sqrt(p.numel()))
        update = (s["m"] / (1 - b1 ** s["t"])) / (
            (s["v"] / (1 - b2 ** s["t"])).sqrt() + settings.eps
        )
        decay = 0.0 if "norm" in name or name.endswith("bias") else settings.weight_decay
        with torch.no_grad():
            p -= lr * decay * p + lr * size * update


def sgd_by_hand(model: nn.Module, settings: OptimizerSettings, state: dict) -> None:
    """Momentum of gradients alone; weights shrink by lr · decay before."""
    for name, p in model.named_parameters():
        mean = state[name] = settings.beta1 * state.get(name, torch.zeros_like(p)) + p.grad
        decay = 0.0 if "norm" in name or name.endswith("bias") else settings.weight_decay
        with torch.no_grad():
            p.mul_(1 - settings.lr * decay).sub_(settings.lr * mean)


def two_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """What make_optimizer promises by default, found another way: matrices decay, the rest not."""
    plain = [n for n, _ in model.named_parameters() if "norm" in n or n.endswith("bias")]
    named = dict(model.named_parameters())
    return [
        {"params": [p for n, p in named.items() if n not in plain], "weight_decay": weight_decay},
        {"params": [named[n] for n in plain], "weight_decay": 0.0},
    ]


def reference(whole: nn.Module, settings: OptimizerSettings) -> list[torch.Tensor]:
    groups = two_groups(whole, settings.weight_decay)
    optimizer = {
        "adamw": lambda: torch.optim.AdamW(
            groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), eps=settings.eps
        ),
        "adam": lambda: torch.optim.Adam(
            groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), eps=settings.eps
        ),
        "sgd": lambda: None,
        "adafactor": lambda: torch.optim.Adafactor(groups, lr=settings.lr),
        "adamw-scaled": lambda: None,
    }[settings.name]()
    state: dict = {}
    for step in range(STEPS):
        give_gradients(whole, step)
        if optimizer is None:
            by_hand = sgd_by_hand if settings.name == "sgd" else scaled_adamw_by_hand
            by_hand(whole, settings, state)
        else:
            optimizer.step()
    return whole_weights(whole)


class PreNormBlock(nn.Module):
    """A matrix of its own in a class whose name says norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, add_bias_kv=True)
        self.mix, self.gain = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.ones(8))
        self.scale = nn.LayerNorm([3, 8])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(self.attention(x, x, x)[0] @ self.mix * self.gain)


class Foreign(nn.Module):
    """What torch and others name in their own way."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.gru = PreNormBlock(), nn.GRU(8, 8)
        self.norm = nn.BatchNorm1d(8)


def decayed(model: nn.Module) -> list[str]:
    """Names of the parameters that make_optimizer decays."""
    optimizer = make_optimizer(model, OptimizerSettings(weight_decay=0.1))
    names = {p: plain_name(n) for n, p in model.named_parameters()}
    return sorted(
        names[p] for g in optimizer.param_groups for p in g["params"] if g["weight_decay"]
    )


def main(ranks: Ranks, folder: Path) -> dict:
    found: dict = {"difference": {}, "messages": {}}
    flat = init_device_mesh("cpu", (4,))
    hybrid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))

    def sharded(mesh: dist.DeviceMesh = flat) -> nn.Module:
        torch.manual_seed(3)
        model = Net()
        fully_shard(model.first, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    messages = 0
    all_reduce = dist.all_reduce

    def counted(*args, **kwargs):
        nonlocal messages
        messages += 1
        return all_reduce(*args, **kwargs)

    cases = [(n, "auto", flat) for n in ("adamw", "adam", "sgd", "adafactor", "adamw-scaled")]
    cases += [("adamw", i, flat) for i in ("foreach", "loop")] + [("sgd", "foreach", flat)]
    cases += [(n, "loop", flat) for n in ("adafactor", "adamw-scaled")]
    cases += [(n, "auto", hybrid) for n in ("adafactor", "adamw-scaled")]
    for name, implementation, mesh in cases:
        settings = OptimizerSettings(
            name=name, implementation=implementation, lr=0.02, weight_decay=0.1
        )
        torch.manual_seed(3)
        expected = reference(Net(), settings)
        model = sharded(mesh)
        optimizer = make_optimizer(model, settings)
        for step in range(STEPS):
            give_gradients(model, step)
            dist.all_reduce, messages = counted, 0
            optimizer.step()
            dist.all_reduce = all_reduce
        key = f"{name} {implementation} {'hybrid' if mesh is hybrid else 'flat'}"
        found["difference"][key] = difference(whole_weights(model), expected)
        found["messages"][key] = messages

    # State goes through a checkpoint's dictionaries; the settings in force are the new ones.
    found["restored"] = {}
    for name in ("adamw", "adafactor", "adamw-scaled"):
        settings = OptimizerSettings(name=name, lr=0.02, weight_decay=0.1)
        model = sharded()
        optimizer = make_optimizer(model, settings)
        for step in range(2):
            give_gradients(model, step)
            optimizer.step()
        saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
        weights = copy.deepcopy(model.state_dict())
        give_gradients(model, 2)
        optimizer.step()
        after = whole_weights(model)

        again = sharded()
        again.load_state_dict(weights)
        fresh = make_optimizer(again, settings)
        set_optimizer_state_dict(again, fresh, saved)
        give_gradients(again, 2)
        fresh.step()
        found["restored"][name] = difference(whole_weights(again), after)

    found["decayed"] = {
        engine: decayed(
            shard(
                Foreign(), ShardingSettings(engine=engine, sync_module_states=True),
                PrecisionSettings(), ranks, blocks=[PreNormBlock],
            )
        )
        for engine in ("fsdp2", "fsdp1")
    }  # fmt: skip

    # Groups: a frozen layer under a real backward, a slower one, and what is refused.
    model = sharded()
    before = dict(zip([n for n, _ in model.named_parameters()], whole_weights(model), strict=True))
    settings = OptimizerSettings(
        lr=0.01,
        warmup_steps=0,
        schedule="constant",
        groups=(
            ParameterGroup(match="first.*", lr_scale=0),
            ParameterGroup(match="*.weight", lr_scale=0.5, weight_decay=0.0),
        ),
    )
    optimizer = make_optimizer(model, settings)
    for step in range(2):
        set_learning_rate(optimizer, settings, step, 2)
        model(torch.ones(2, 5) * (ranks.rank + 1)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    after = dict(zip(before, whole_weights(model), strict=True))
    found["moved"] = {n: (after[n] - before[n]).abs().max().item() for n in before}
    found["frozen_have_state"] = any(p in optimizer.state for p in model.first.parameters())
    saved = get_optimizer_state_dict(model, optimizer)
    set_optimizer_state_dict(model, optimizer, saved)

    try:
        make_optimizer(Net(), OptimizerSettings())
    except FsdpkitError as error:
        found["not_sharded"] = str(error)
    return found
