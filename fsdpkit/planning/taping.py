"""From what was asked for to a tape; imports torch and runs the step, so once a process is best."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fsdpkit.config.training import TrainingSettings
from fsdpkit.errors import FsdpkitError, UsageError
from fsdpkit.planning.asked import AskedStep, resolved
from fsdpkit.planning.compiled import followed
from fsdpkit.planning.cuda_calls import cuda_is
from fsdpkit.planning.pretend import NAME, Kernels, backend, pretend, replaced
from fsdpkit.planning.recorder import Recorder
from fsdpkit.planning.subjects import Subject, of_model, of_trainer
from fsdpkit.planning.tape import Tape, Trust
from fsdpkit.planning.unknown import Side, place_in, place_of

STEPS = 2
"""The peak is reached in the second: the first has no optimizer state yet."""


def tape_of(
    asked: AskedStep,
    steps: int = STEPS,
    kernels: Kernels = "gpu",
    *,
    trust: Trust = "kernels",
    dump: str = "",
) -> tuple[Tape, tuple[str, ...]]:
    """The tape of rank 0, and what to know of it. Where values decide, `least` has the other side;
    where something could not be followed, the tape says so and is a lower bound.

    dump: where a kernel has ended the process that taped this before, with more `trust`.

    Raises FsdpkitError for what the trainer refuses.
    """
    settings, notes = resolved(asked)
    steps = 0 if trust == "nothing" else steps
    tape = _tape(asked, settings, steps, kernels, "most", trust)
    if not steps:
        tape.lacking.append(f"a kernel without a fake version ended the step{place_in(dump)}")
    if tape.assumed:
        least = _tape(asked, settings, steps, kernels, "least", trust)
        if not least.lacking or tape.lacking:
            tape.least = least
    return tape, notes


def _tape(
    asked: AskedStep,
    settings: TrainingSettings,
    steps: int,
    kernels: Kernels,
    side: Side,
    trust: Trust,
) -> Tape:
    if asked.model:
        build, vocabulary = of_model(asked.model, settings, asked.args, asked.rows, asked.length)
    else:
        build, vocabulary = of_trainer(asked.entry, settings)
    with pretend(asked.ranks, asked.gpus, asked.card.memory, kernels) as (ranks, _):
        recorder = Recorder(
            ranks.device,
            lambda: backend().current_stream().stream_id,
            vocabulary=vocabulary,
            side=side,
            trust=trust,
        )
        with ExitStack() as around:
            around.enter_context(recorder.recording())
            around.enter_context(followed(recorder, as_graphs=asked.compiled))
            around.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # of torch, about steps that nobody takes
            if asked.model:
                card = asked.card
                around.enter_context(cuda_is(ranks.device, card.memory, card.capability))
            if kernels == "gpu":
                around.enter_context(replaced(*_as_on_a_gpu()))
            try:
                subject = build(ranks)
            except FsdpkitError:
                raise
            except Exception as error:
                raise FsdpkitError(f"the model could not be built: {_said(error)}") from error
            recorder.model_is_built(subject.model)
            recorder.tape.samples, recorder.tape.tokens = subject.counts
            recorder.tape.parameters = subject.parameters
            recorder.tape.notes += subject.notes
            with closing(subject), _rows_unpacked():
                try:
                    for number in range(steps):
                        subject.step(number)
                        recorder.step_is_done()
                    if not steps:
                        _update_alone(subject)
                        recorder.step_is_done()
                except UsageError:
                    raise
                except Exception as error:
                    recorder.tape.lacking.append(f"the step ended early: {_said(error)}")
                    error.__traceback__ = None  # its frames hold activations
                    _update_alone(subject)
                    recorder.step_is_done()
            tape = recorder.tape
            del subject
    return tape


def _rows_unpacked() -> AbstractContextManager[None]:
    """transformers reads the values of positions to see whether rows are packed, and takes tensors
    without values for packed ones: attention then gets a mask, and slower kernels, that a run whose
    positions simply count up does without."""
    masks, name = sys.modules.get("transformers.masking_utils"), "find_packed_sequence_indices"
    if not hasattr(masks, name):
        return nullcontext()
    return replaced((masks, name, lambda position_ids: None))


def _update_alone(subject: Subject) -> None:
    """Gradients and the optimizer's state, which are there whatever forward does."""
    with suppress(Exception):
        # The optimizer's are the shards; the model's may be gathered where forward ended.
        for parameter in (p for group in subject.optimizer.param_groups for p in group["params"]):
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        subject.optimizer.step()


def _said(error: Exception) -> str:
    what = (str(error).strip().splitlines() or [""])[0][:160].rstrip(".")
    name = "" if isinstance(error, FsdpkitError) else f"{type(error).__name__}: "
    return f"{name}{what}{place_of(error)}"


_KEPT = {"lstm": 6, "gru": 5, "rnn_tanh": 1, "rnn_relu": 1}
"""Numbers of each unit that a step leaves for backward."""


def _as_on_a_gpu() -> list[tuple[Any, str, Any]]:
    """Recurrent layers, of which cuDNN takes a whole one and a fused kernel a step of `nn.GRUCell`:
    what to replace, as `pretend.replaced` takes it.

    Each layer is one product with its input and one with its states, of all steps together. What
    cuDNN keeps for its backward it does not say: taken are a step's gates and states, and a copy of
    the weights, which sharded ones need.
    """
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
