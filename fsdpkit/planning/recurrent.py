"""Recurrent layers as a GPU computes them: cuDNN takes a whole `nn.LSTM`, `nn.GRU` or `nn.RNN`, and
a fused kernel one step of `nn.GRUCell`.

Each layer is one product with its input and one with its states, of all steps together. What cuDNN
keeps for its backward it does not say: taken are a step's gates and states, and a copy of the
weights, which sharded ones need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fsdpkit.planning.pretend import NAME

_KEPT = {"lstm": 6, "gru": 5, "rnn_tanh": 1, "rnn_relu": 1}
"""Numbers of each unit that a step leaves for backward."""


def as_on_a_gpu() -> list[tuple[Any, str, Any]]:
    """What to replace, as `pretend.replaced` takes it."""
    changes: list[tuple[Any, str, Any]] = [
        (torch._VF, name, partial(_layers, getattr(torch._VF, name), kept_each))
        for name, kept_each in _KEPT.items()
    ]
    return [*changes, (torch._VF, "gru_cell", partial(_gru_cell, torch._VF.gru_cell))]


def _layers(usual: Callable[..., Any], kept_each: int, x: Tensor, *args: Any) -> Any:
    """(states, weights, bias, layers, dropout, training, bidirectional, …); of a packed sequence
    its sizes come first."""
    if x.device.type != NAME:
        return usual(x, *args)
    at = next(n for n, each in enumerate(args) if isinstance(each, list))
    first, *others = args[at - 1] if isinstance(args[at - 1], tuple) else (args[at - 1],)
    directions = 2 if args[at + 5] else 1
    result = _Layers.apply(x, first, kept_each, directions, *args[at])  # type: ignore[no-untyped-call]
    return (*result, *map(torch.empty_like, others))


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, states: Tensor, kept_each: int, directions: int, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        count, width = states.shape[0], states.shape[-1]
        rows = x.numel() // x.shape[-1]
        _products(rows, weights)
        kept = x.new_empty(rows * count * kept_each * width)
        copied = x.new_empty(sum(each.numel() for each in weights))
        output = x.new_empty((*x.shape[:-1], directions * width))
        ctx.save_for_backward(x, states, output, kept, copied, *weights)
        return output, torch.empty_like(states)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Tensor | None, ...]:
        x, states, _, _, _, *weights = ctx.saved_tensors
        for _gradients in ("of what it was given", "of weights"):
            _products(x.numel() // x.shape[-1], weights)
        gradients = map(torch.empty_like, weights)
        return torch.empty_like(x), torch.empty_like(states), None, None, *gradients


def _products(rows: int, weights: Sequence[Tensor]) -> None:
    for each in weights:
        if each.ndim == 2:  # no bias
            torch.mm(each.new_empty((rows, each.shape[-1])), each.t())


def _gru_cell(
    usual: Callable[..., Any], x: Tensor, state: Tensor, w_x: Tensor, w_state: Tensor, *biases: Any
) -> Any:
    if x.device.type != NAME:
        return usual(x, state, w_x, w_state, *biases)
    given, kept = F.linear(x, w_x), F.linear(state, w_state)
    return _FusedGru.apply(given, kept, state, *biases)  # type: ignore[no-untyped-call]


class _FusedGru(torch.autograd.Function):
    """Keeps five numbers a unit, as CUDA's `_thnn_fused_gru_cell` does."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, kept: Tensor, state: Tensor, *biases: Any) -> Tensor:
        ctx.save_for_backward(state.new_empty((state.shape[0], 5 * state.shape[1])), *biases)
        return torch.empty_like(state)

    @staticmethod
    def backward(ctx: Any, of_state: Tensor) -> tuple[Tensor | None, ...]:
        _, *biases = ctx.saved_tensors
        gates = of_state.new_empty((of_state.shape[0], 3 * of_state.shape[1]))
        of_biases = (None if each is None else torch.empty_like(each) for each in biases)
        return gates, torch.empty_like(gates), torch.empty_like(of_state), *of_biases
