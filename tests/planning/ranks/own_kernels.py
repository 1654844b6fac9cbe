"""Models that call kernels of their own, in Triton, C and C++. $KERNELS holds what is compiled."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE, COMPILED = Path(__file__).parent, Path(os.environ["KERNELS"])
sys.path[:0] = [str(HERE), str(COMPILED)]

from models import Layer, mlp_of  # noqa: E402


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Any) -> Tensor:
        ctx.kernel = kernel
        return kernel(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.kernel(grad), None


def in_c(x: Tensor) -> Tensor:
    import twice

    y = x.clone()
    twice.twice(y)
    return y


def in_cpp(x: Tensor) -> Tensor:
    return torch.ops.fsdpkit_tests_cpp.twice(x)


def at_no_address(x: Tensor) -> Tensor:
    ctypes.memset(8, 0, 8)
    return x * 2


def in_triton(x: Tensor) -> Tensor:
    from on_triton import double

    y = torch.empty_like(x)
    double[(1,)](x, y, x.numel(), BLOCK=128)
    return y


def in_triton_without_brackets(x: Tensor) -> Tensor:
    from on_triton import double

    y = torch.empty_like(x)
    double.run(x, y, x.numel(), BLOCK=128, grid=(1,), warmup=False)
    return y


def in_torch(x: Tensor) -> Tensor:
    return x * 2


def planned_with(kernel: Any) -> dict[str, Any]:
    class Own(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return Function.apply(super().forward(x), kernel)

    return mlp_of(Own)


def c() -> dict[str, Any]:
    return planned_with(in_c)


def cpp() -> dict[str, Any]:
    torch.ops.load_library(str(COMPILED / "operator.so"))
    return planned_with(in_cpp)


def crashing() -> dict[str, Any]:
    return planned_with(at_no_address)


def triton() -> dict[str, Any]:
    return planned_with(in_triton)


def triton_without_brackets() -> dict[str, Any]:
    return planned_with(in_triton_without_brackets)


def plain() -> dict[str, Any]:
    return planned_with(in_torch)
