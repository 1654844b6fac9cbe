"""AdamW over bfloat16 weights without a float32 copy: what is rounded away must not be lost.

bfloat16 has 8 bits, so an update below a 512th of its weight disappears when the sum is rounded to
nearest, and training stalls. Two remedies. Stochastic rounding goes up or down by chance, in
proportion, so that the expected weight is the exact one. Compensated summation (Kahan) keeps what
was rounded away in a second bfloat16 and adds it the next time. The two averages of AdamW lie in
bfloat16, rounded stochastically: a mean of squares that decays by less than a 512th a step would
never fall.

Bytes a parameter, gradient included: 16 in float32, 8 stochastic, 10 compensated.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from fsdpkit.training.shards import local_part, shard_of
from fsdpkit.training.update_rules import call

Rounding = Literal["stochastic", "compensated", "nearest"]


class RoundingAdamW(torch.optim.Optimizer):
    """AdamW (decay decoupled) that computes in float32 and keeps all it holds in bfloat16.
    Parameters of another type are updated as usual. The random bits are a function of the step, the
    parameter and the shard alone: a resumed run draws the same, and replicas stay equal."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        rounding: Rounding = "stochastic",
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )
        self._rounding = rounding
        self._generators: dict[torch.device, Generator] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update. `closure`, if any, is called first with gradients enabled."""
        loss = call(closure)
        number = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(group, parameter, number)
                number += 1
        return loss

    def _update(self, group: dict[str, Any], parameter: Tensor, number: int) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
            if self._rounding == "compensated" and parameter.dtype is torch.bfloat16:
                state["rounded_off"] = torch.zeros_like(parameter)
        state["step"] += 1
        step, (beta1, beta2) = int(state["step"]), group["betas"]
        random = self._generator(parameter, step, number)

        assert parameter.grad is not None
        gradient = local_part(parameter.grad).float()
        mean = _float32_copy(state["exp_avg"]).lerp_(gradient, 1 - beta1)
        square = _float32_copy(state["exp_avg_sq"]).mul_(beta2)
        square.addcmul_(gradient, gradient, value=1 - beta2)
        self._store(local_part(state["exp_avg"]), mean, random)
        self._store(local_part(state["exp_avg_sq"]), square, random)

        size = square.sqrt_().div_(math.sqrt(1 - beta2**step)).add_(group["eps"])
        change = mean.div_(size).mul_(-group["lr"] / (1 - beta1**step))
        weight = local_part(parameter)
        exact = weight.float()
        if group["weight_decay"]:
            change.add_(exact, alpha=-group["lr"] * group["weight_decay"])
        if "rounded_off" in state:
            _add_compensated(weight, exact, change, local_part(state["rounded_off"]))
        else:
            self._store(weight, exact + change, random)

    def _store(self, into: Tensor, values: Tensor, random: Generator) -> None:
        """`values` (float32) into a tensor that may have fewer bits."""
        if into.dtype is torch.bfloat16 and self._rounding != "nearest":
            values = round_stochastically(values, random)
        into.copy_(values)

    def _generator(self, parameter: Tensor, step: int, number: int) -> Generator:
        device = local_part(parameter).device
        if device not in self._generators:
            self._generators[device] = Generator(device)
        # A hash, because on a CPU a generator takes no more than 32 bits of its seed.
        seed = zlib.crc32(f"{step} {number} {shard_of(parameter)}".encode())
        return self._generators[device].manual_seed(seed)


class CompensatedAdamW(RoundingAdamW):
    """With another state, and so another optimizer to whoever resumes from a checkpoint."""

    def __init__(self, params: Iterable[Any], lr: float, **arguments: Any) -> None:
        super().__init__(params, lr, rounding="compensated", **arguments)


def round_stochastically(values: Tensor, random: Generator) -> Tensor:
    """`values` (float32) as one of the two bfloat16 around each, still as float32; a new tensor.

    The nearer the likelier, so that the mean over many draws is the value. What bfloat16 has stays.
    """
    bits = values.view(torch.int32)
    noise = torch.empty_like(bits).random_(0, 1 << 16, generator=random)
    return noise.add_(bits).bitwise_and_(-(1 << 16)).view(torch.float32)


def _add_compensated(weight: Tensor, exact: Tensor, change: Tensor, rounded_off: Tensor) -> None:
    """Kahan's sum: `weight` + `rounded_off` follows the exact weight to twice as many bits."""
    change.add_(rounded_off)
    weight.copy_(exact + change)
    rounded_off.copy_(change.sub_(weight.float().sub_(exact)))


def _float32_copy(tensor: Tensor) -> Tensor:
    return local_part(tensor).to(torch.float32, copy=True)
