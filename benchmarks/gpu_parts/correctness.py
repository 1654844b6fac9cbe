"""Every kernel's numbers against float64, and lengths at which one has failed.

The oracle is the readable path, attention "math", uncompiled, in float64 on the same weights. Each
way of computing is compared by two errors over the loss and every parameter's gradient: the
largest difference over the largest number, and the norm of the difference over the norm.

A way passes when no tensor is off by more than its bound: a fixed one for the readable path in the
same type, and for the others twice what the readable path is off by, or a small fixed number where
that is less. A kernel may round at other places, not more.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor, nn

from benchmarks.gpu_parts.part import Part, Row
from benchmarks.gpu_parts.trial import (
    IGNORE,
    T5,
    Batch,
    Lengths,
    Plan,
    attention_of,
    build,
    guard_kernels,
    init_parameter,
    made_up,
    plan,
    whole,
)

BOUNDS = {"float32": (1e-4, 1e-5), "bfloat16": (0.1, 0.02)}
"""Of the norm of the difference over the norm: the readable path's, and the others' at least."""

KINDS = ("math", "sdpa", "flex")
OWN_KINDS = ("math", "triton")
"""Of a part of its own: an illegal access in our kernel ends the process's CUDA context."""

WIDTHS = {
    "small": ("model.d_model=512", "model.d_ff=1024", "model.num_heads=6"),
    "base": ("model.d_model=768", "model.d_ff=2048", "model.num_heads=12"),
}
FEW_LAYERS = ("model.num_layers=3", "model.num_decoder_layers=3", "model.vocab_size=4096")
LENGTHS_OF_CUDNN = (64, 128, 192, 448, 512, 576)
"""Some are 64 more than a multiple of 128, where cuDNN has returned NaN (pytorch#196678)."""

Found = dict[str, Tensor]
"""The loss, and each parameter's gradient by name; float64, on the device."""


def run(part: Part) -> None:
    for width in ("base",) if part.dry else WIDTHS:
        compare(part, width, KINDS)
    for kind in KINDS:
        check(part, "finite", kind)
    part.measure(
        "finite with cuDNN let in, sdpa",
        functools.partial(finite, part, "sdpa", guarded=False),
        needs_s=needs_s("sdpa"),
    )
    for kind in KINDS:
        check(part, "repeats", kind)


def run_triton(part: Part) -> None:
    for width in ("base",) if part.dry else WIDTHS:
        compare(part, width, OWN_KINDS)
    check(part, "finite", "triton")
    check(part, "repeats", "triton")


def needs_s(kind: str, compiled: bool = False) -> float:
    """What a row takes at most; FlexAttention is always compiled."""
    return 25 if kind == "flex" else 20 if compiled else 5


def check(part: Part, what: str, kind: str) -> None:
    action: Callable[[Part, str], dict[str, Any]]
    if what == "finite":
        name, action = f"finite at {', '.join(map(str, LENGTHS_OF_CUDNN))}", finite
    else:
        name, action = "gradients twice the same", repeats
    part.measure(
        f"{name}, {kind}",
        functools.partial(action, part, kind),
        needs_s=needs_s(kind),
        lacks=part.device.lacks(kind),
    )


def compare(part: Part, width: str, kinds: tuple[str, ...]) -> None:
    """Each kind, type and loss of one width; compiled only at width base, with the whole loss."""
    dimensions = () if part.dry else (*WIDTHS[width], *FEW_LAYERS)
    task = plan("t5-v1.1-base", *dimensions, "model.dropout_rate=0", dry=part.dry)
    batch = with_padding(made_up(task, 4, part.device.torch))
    for dtype in ("float32", "bfloat16"):
        weights = first_weights(task, getattr(torch, dtype))
        exact = float64(task, weights, batch)
        plain: dict[str, float] = {}
        for kind in kinds:
            for loss in ("whole", "chunked"):
                for compiled in (False, True):
                    if compiled and (loss == "chunked" or kind == "math" or width == "small"):
                        continue
                    if part.dry and kind == "triton" and (compiled or loss == "chunked"):
                        continue  # its interpreter takes a minute for each
                    way = f"{kind}, {loss} loss{', compiled' if compiled else ''}"
                    words = (
                        f"model.attention={kind}",
                        f"loss={loss}",
                        f"precision.param={dtype}",
                        f"compile={str(compiled).lower()}",
                    )
                    action = functools.partial(
                        errors, part, task.and_(*words), weights, batch, exact, plain
                    )
                    part.measure(
                        f"{width}, {dtype}, {way}",
                        action,
                        needs_s=needs_s(kind, compiled),
                        lacks=part.device.lacks(kind, dtype),
                    )


def first_weights(task: Plan, dtype: torch.dtype) -> Mapping[str, Tensor]:
    """T5's initial values, rounded to `dtype`; float32, on the CPU."""
    config = task.config
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in T5(config).named_parameters()}
    weights = {}
    for number, (name, shape) in enumerate(shapes.items()):
        weights[name] = torch.empty(shape)
        init_parameter(config, name, weights[name], Generator().manual_seed(number))
        weights[name] = weights[name].to(dtype).float()
    return weights


def with_padding(batch: Batch) -> Batch:
    """The same with another length in every row but the first."""
    source, mask, labels = (tensor.clone() for tensor in batch)
    for row in range(1, len(source)):
        mask[row, source.shape[1] * row // len(source) :] = False
        labels[row, labels.shape[1] * row // len(source) :] = IGNORE
    return Batch(source, mask, labels)


def float64(task: Plan, weights: Mapping[str, Tensor], batch: Batch) -> Found:
    """What the readable path finds when all of it is float64."""
    model = T5(task.config, "math")
    model.load_state_dict(weights)
    model.to(batch.source.device, torch.float64)
    with float_means_double():
        return loss_and_gradients(model, batch, "whole")


@contextmanager
def float_means_double() -> Iterator[None]:
    """Inside, what the model takes in float32 whatever its type (`Tensor.float`) is float64."""
    float_ = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.float = float_  # type: ignore[method-assign]


def sharded(part: Part, task: Plan, weights: Mapping[str, Tensor]) -> nn.Module:
    def fill(name: str, tensor: Tensor, _: Generator) -> None:
        tensor.copy_(weights[name])

    return build(task, part.ranks, fill)


def loss_and_gradients(model: nn.Module, batch: Batch, loss: str) -> Found:
    """Of the mean over target tokens; `model` is left without gradients."""
    value = (model(*batch, loss=loss) / (batch.labels != IGNORE).sum()).squeeze()
    torch.autograd.backward(value)
    found = {"loss": value.detach()}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        found[name] = whole(parameter.grad)
        parameter.grad = None
    return {name: tensor.double() for name, tensor in found.items()}


def errors(
    part: Part,
    task: Plan,
    weights: Mapping[str, Tensor],
    batch: Batch,
    exact: Found,
    plain: dict[str, float],
) -> Row:
    """The two errors, the tensor that is nearest to its bound, and whether all keep theirs.

    `plain` are the errors of the readable path, or empty: then this is it, and fills it.
    """
    settings = task.settings
    found = loss_and_gradients(sharded(part, task, weights), batch, settings.loss)
    part.device.free()
    relative, largest = {}, {}
    for name, tensor in exact.items():
        difference = found[name] - tensor
        relative[name] = float(difference.norm() / tensor.norm())
        largest[name] = float(difference.abs().max() / tensor.abs().max())
    of_plain, least = BOUNDS[settings.precision.param]
    bounds = {name: max(least, 2 * plain[name]) if plain else of_plain for name in exact}
    used = {name: relative[name] / bounds[name] for name in exact}
    worst = max(used, key=lambda name: math.inf if math.isnan(used[name]) else used[name])
    if not plain:
        plain.update(relative)
    return {
        "relative": relative[worst],
        "largest": largest[worst],
        "worst": worst,
        "bound": bounds[worst],
        "loss_error": relative["loss"],
        "passed": used[worst] <= 1,
        "attention": attention_of(task, part.device),
    }


def one_layer(part: Part, kind: str, length: int) -> Plan:
    words = ("model.num_layers=2", "model.num_decoder_layers=2", "model.vocab_size=512")
    task = plan("t5-v1.1-base", *words, "model.dropout_rate=0", dry=part.dry)
    task = task.and_(f"model.attention={kind}", "precision.param=bfloat16")
    return Plan(task.words, Lengths(length, length))


def finite(part: Part, kind: str, *, guarded: bool = True) -> dict[str, Any]:
    """Whether loss and gradients are finite in bfloat16, at lengths that have failed elsewhere."""
    wrong = []
    for length in LENGTHS_OF_CUDNN[:2] if part.dry else LENGTHS_OF_CUDNN:
        task = one_layer(part, kind, length)
        model = sharded(part, task, first_weights(task, torch.bfloat16))
        if not guarded:
            torch.backends.cuda.enable_cudnn_sdp(True)
        batch = with_padding(made_up(task, 4, part.device.torch))
        found = loss_and_gradients(model, batch, "whole")
        if not all(tensor.isfinite().all() for tensor in found.values()):
            wrong.append(length)
    found_ = {"not_finite_at": wrong, "attention": attention_of(task, part.device)}
    guard_kernels(part.device.torch)
    part.device.free()
    return {**found_, "passed": not wrong} if guarded else found_


def repeats(part: Part, kind: str) -> dict[str, Any]:
    """Whether two backward passes over the same batch give the same bits; triton promises it."""
    task = one_layer(part, kind, 64 if part.dry else 512)
    model = sharded(part, task, first_weights(task, torch.bfloat16))
    batch = with_padding(made_up(task, 8, part.device.torch))
    once, again = (loss_and_gradients(model, batch, "whole") for _ in range(2))
    part.device.free()
    differ = [name for name in once if not torch.equal(once[name], again[name])]
    of_bias = [name for name in differ if "relative_attention_bias" in name]
    found = {
        "differ": len(differ),
        "bias_differs": bool(of_bias),
        "attention": attention_of(task, part.device),
    }
    return {**found, "passed": not of_bias} if kind == "triton" else found
