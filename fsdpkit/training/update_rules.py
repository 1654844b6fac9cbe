"""Update rules that torch does not have: SGD with decoupled decay, and two for whole matrices.

Scaled AdamW and Adafactor need whole matrices, of which a rank holds some rows.
Adafactor's factors and the root mean square that scales an update belong to the whole matrix. The
ranks' shares are added up in one message for all parameters together, and every number stays on
the device. (`torch.optim.Adafactor` 2.13 raises on FSDP2's DTensors, which have no rule for its
in-place powers, and makes the host wait for two numbers of each parameter.)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from fsdpkit.training.shards import local_part, ranks_of


class Adam(torch.optim.Adam):
    """torch's Adam, over what this rank holds: its rule works element by element. By way of
    DTensors torch takes five lists apart on the host, tensor by tensor: 24 ms a step for T5
    v1.1-large, in which the GPU waits."""

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        has_complex: bool = super()._init_group(group, *lists)  # type: ignore[no-untyped-call]
        for tensors in lists:
            tensors[:] = map(local_part, tensors)
        return has_complex


class AdamW(Adam, torch.optim.AdamW):
    """The same with decoupled decay."""


class SGD(torch.optim.SGD):
    """torch's SGD, but weight decay is decoupled, as AdamW's is: weights shrink by lr · decay.
    torch adds decay to the gradient, from where it goes into the momentum (arXiv 1711.05101)."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update. `closure`, if any, is called first with gradients enabled."""
        loss = call(closure)
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            trained = [local_part(p) for p in group["params"] if p.grad is not None]
            if group["weight_decay"] and trained:
                torch._foreach_mul_(trained, 1 - float(group["lr"]) * group["weight_decay"])
            group["weight_decay"] = 0.0
        try:
            super().step()
        finally:
            for group, decay in zip(self.param_groups, decays, strict=True):
                group["weight_decay"] = decay
        return loss


class ScaledAdamW(torch.optim.Optimizer):
    """AdamW whose update of a matrix is multiplied by max(1e-3, root mean square of the matrix).
    T5's initial weights differ in size by orders of magnitude, and with plain AdamW its
    pre-training diverges; nanoT5 found this remedy. Decay is decoupled and not multiplied."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        foreach: bool = True,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )
        self._foreach = foreach

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update; a collective. `closure`, if any, is called first with gradients enabled."""
        loss = call(closure)
        trained = _trained(self)
        scales = dict(zip(trained, _root_mean_squares(trained), strict=True))
        for group, parameters in _batches(self, trained, self._foreach):
            self._update(group, parameters, [scales[p].clamp_(min=1e-3) for p in parameters])
        return loss

    def _update(
        self, group: dict[str, Any], parameters: list[Tensor], scales: list[Tensor]
    ) -> None:
        beta1, beta2 = group["betas"]
        lr = float(group["lr"])
        states = [self.state[p] for p in parameters]
        for state, parameter in zip(states, parameters, strict=True):
            if not state:
                state["step"] = torch.tensor(0.0)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        steps = _advance(states)
        weights = [local_part(p) for p in parameters]
        gradients = [_gradient(p) for p in parameters]
        means = [local_part(s["exp_avg"]) for s in states]
        squares = [local_part(s["exp_avg_sq"]) for s in states]

        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        updates = list(torch._foreach_sqrt(squares))
        torch._foreach_div_(updates, [math.sqrt(1 - beta2**t) for t in steps])
        torch._foreach_add_(updates, group["eps"])
        torch._foreach_reciprocal_(updates)
        torch._foreach_mul_(updates, means)
        torch._foreach_mul_(updates, [-lr / (1 - beta1**t) for t in steps])
        torch._foreach_mul_(updates, scales)
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        torch._foreach_add_(weights, updates)


class Adafactor(torch.optim.Optimizer):
    """Adafactor (arXiv 1804.04235), for sharded matrices.

    A matrix [R, C] keeps R + C averages of squared gradients instead of R · C; tensors of more
    dimensions are stacks of matrices, vectors and single numbers keep all. The step is relative,
    lr times max(`eps2`, root mean square of the weights), and an update whose own root mean square
    exceeds `clip` is scaled down to it. The schedule alone decides lr: `torch.optim.Adafactor`,
    otherwise the same, takes no more than 1/√t of it. Shards must be along the first dimension, as
    FSDP2's are.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        beta2_decay: float = -0.8,
        eps2: float = 1e-3,
        clip: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool = True,
    ) -> None:
        defaults = {"lr": lr, "beta2_decay": beta2_decay, "eps2": eps2, "clip": clip}
        super().__init__(params, {**defaults, "weight_decay": weight_decay})
        self._foreach = foreach

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update; two collectives. `closure`, if any, is called first, gradients enabled."""
        loss = call(closure)
        trained = _trained(self)
        batches = list(_batches(self, trained, self._foreach))
        for group, parameters in batches:
            for parameter in parameters:
                self._average_rows(parameter, group["beta2_decay"])
        shares = [self._shares(p) for p in trained]
        totals = dict(zip(trained, _sum_over_shards(shares, trained), strict=True))
        for group, parameters in batches:
            for parameter in parameters:
                self._average_columns(parameter, totals[parameter], group["beta2_decay"])

        # Updates are as large as the weights, and wanted before and after a sum over ranks: kept
        # in between, or made twice.
        kept = [self._updates(batch, totals) for _, batch in batches] if self._foreach else None
        shares = []
        for number, (_, parameters) in enumerate(batches):
            shares += _squares(kept[number] if kept else self._updates(parameters, totals))
        sizes = dict(zip(trained, _sum_over_shards(shares, trained), strict=True))
        for number, (group, parameters) in enumerate(batches):
            updates = kept[number] if kept else self._updates(parameters, totals)
            self._apply(group, parameters, updates, totals, sizes)
        return loss

    def _average_rows(self, parameter: Tensor, beta2_decay: float) -> None:
        """Count the step and take in what this rank can average alone."""
        state, gradient = self.state[parameter], _gradient(parameter)
        if not state:
            state["step"] = torch.tensor(0.0)
            if parameter.ndim > 1:
                shape = parameter.shape
                state["row_var"] = _zeros(parameter, (*shape[:-1], 1), spread=True)
                columns = (*shape[:-2], 1, shape[-1])
                state["col_var"] = _zeros(parameter, columns, spread=parameter.ndim > 2)
            else:
                state["variance"] = torch.zeros_like(parameter)
        state["step"] += 1
        new = float(state["step"]) ** beta2_decay
        if parameter.ndim > 1:
            local_part(state["row_var"]).lerp_(_mean_square(gradient, -1), new)
            if parameter.ndim > 2:  # a stack of matrices is cut between them: columns are whole
                local_part(state["col_var"]).lerp_(_mean_square(gradient, -2), new)
        else:
            local_part(state["variance"]).lerp_(gradient.square(), new)

    def _shares(self, parameter: Tensor) -> Tensor:
        """What this rank adds to [squared weights, row averages, squared gradients by column]."""
        weights = _squares([local_part(parameter)])[0].view(1)
        if parameter.ndim != 2:
            return weights
        columns = torch.linalg.vector_norm(_gradient(parameter), dim=0).square_()
        rows = local_part(self.state[parameter]["row_var"]).sum().view(1)
        return torch.cat([weights, rows, columns])

    def _average_columns(self, parameter: Tensor, total: Tensor, beta2_decay: float) -> None:
        if parameter.ndim == 2:
            state = self.state[parameter]
            new = float(state["step"]) ** beta2_decay
            local_part(state["col_var"]).lerp_((total[2:] / parameter.shape[0]).unsqueeze(0), new)

    def _updates(self, parameters: list[Tensor], totals: dict[Tensor, Tensor]) -> list[Tensor]:
        """Gradients over the root of their estimated squares, this rank's rows; new tensors."""
        tiny = torch.finfo(torch.float32).eps
        estimates = []
        for parameter in parameters:
            state = self.state[parameter]
            if parameter.ndim < 2:
                estimates.append(local_part(state["variance"]).clone())
                continue
            rows, columns = local_part(state["row_var"]), local_part(state["col_var"])
            if parameter.ndim == 2:
                mean = totals[parameter][1] / parameter.shape[0]
            else:
                mean = rows.mean(dim=-2, keepdim=True)
            estimates.append((rows @ columns).div_(mean.clamp(min=tiny)))
        torch._foreach_clamp_min_(estimates, tiny * tiny)
        torch._foreach_rsqrt_(estimates)
        torch._foreach_mul_(estimates, [_gradient(p) for p in parameters])
        return estimates

    def _apply(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        updates: list[Tensor],
        totals: dict[Tensor, Tensor],
        sizes: dict[Tensor, Tensor],
    ) -> None:
        lr, scales = float(group["lr"]), []
        for parameter in parameters:
            weight = (totals[parameter][0] / parameter.numel()).sqrt_().clamp_(min=group["eps2"])
            size = (sizes[parameter] / parameter.numel()).sqrt_()
            scales.append(weight.mul_(-lr).div_((size / group["clip"]).clamp_(min=1.0)))
        weights = [local_part(p) for p in parameters]
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        torch._foreach_mul_(updates, scales)
        torch._foreach_add_(weights, updates)


def call(closure: Callable[[], float] | None) -> float | None:
    """What `step` of an optimizer does first: compute the loss anew, if it is told how."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _trained(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Parameters that have a gradient, in an order that is the same on all ranks."""
    return [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]


def _batches(
    optimizer: torch.optim.Optimizer, trained: list[Tensor], together: bool
) -> Iterator[tuple[dict[str, Any], list[Tensor]]]:
    """(group, its trained parameters), in the order of `trained`; one by one if not `together`."""
    wanted = set(trained)
    for group in optimizer.param_groups:
        parameters = [p for p in group["params"] if p in wanted]
        if together and parameters:
            yield group, parameters
        elif not together:
            yield from ((group, [p]) for p in parameters)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return local_part(parameter.grad)


def _zeros(parameter: Tensor, shape: tuple[int, ...], *, spread: bool) -> Tensor:
    """Zeros [shape], cut along the first dimension as `parameter` is, or the same on all ranks."""
    if not isinstance(parameter, DTensor):
        return parameter.new_zeros(shape)
    rows = parameter.to_local().shape[0] if spread else shape[0]
    return DTensor.from_local(
        parameter.to_local().new_zeros((rows, *shape[1:])),
        parameter.device_mesh,
        parameter.placements if spread else [Replicate()] * parameter.device_mesh.ndim,
        run_check=False,
        shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
    )


def _mean_square(gradient: Tensor, dim: int) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(gradient, dim=dim, keepdim=True)
    return norm.square_().div_(gradient.shape[dim])


def _advance(states: list[dict[str, Any]]) -> list[float]:
    """Count a step in each state; the steps done. They are on the CPU: nobody waits."""
    for state in states:
        state["step"] += 1
    return [float(state["step"]) for state in states]


def _root_mean_squares(parameters: list[Tensor]) -> list[Tensor]:
    """Of each whole parameter, a float32 scalar on its device."""
    totals = _sum_over_shards(_squares([local_part(p) for p in parameters]), parameters)
    return [(t / p.numel()).sqrt_() for t, p in zip(totals, parameters, strict=True)]


def _squares(tensors: list[Tensor]) -> list[Tensor]:
    """The sum of squares of each tensor; a rank may hold no row of a small one."""
    filled = [t for t in tensors if t.numel()]
    norms = iter(torch._foreach_norm(filled) if filled else ())
    return [next(norms).square() if t.numel() else t.new_zeros(()) for t in tensors]


def _sum_over_shards(shares: list[Tensor], parameters: list[Tensor]) -> list[Tensor]:
    """Each share summed over the ranks that hold the parameter; one message per set of ranks."""
    members: dict[dist.ProcessGroup, list[int]] = defaultdict(list)
    for number, parameter in enumerate(parameters):
        if isinstance(parameter, DTensor):
            members[ranks_of(parameter)].append(number)
    totals = list(shares)
    for group, numbers in members.items():
        parts = [shares[number] for number in numbers]
        message = torch.cat([part.flatten() for part in parts])
        dist.all_reduce(message, group=group)
        cut = torch.split(message, [part.numel() for part in parts])
        for number, part, total in zip(numbers, parts, cut, strict=True):
            totals[number] = total.view_as(part)
    return totals
