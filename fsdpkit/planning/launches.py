"""Launches of Triton kernels: noticed, and not made.

Without a GPU there is nothing to launch on, and a kernel makes no tensors: what it writes to is
there before. So a step goes on behind a launch as on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from fsdpkit.planning.pretend import replaced

Launched = Callable[[str, list[FakeTensor]], None]


@contextmanager
def not_launched(note: Launched) -> Iterator[None]:
    """`kernel[grid](…)` on tensors without values only calls `note`, with the kernel's name and the
    tensors. Of a program that has imported Triton before; any other launch is made, and fails."""
    if (jit := sys.modules.get("triton.runtime.jit")) is None:
        yield
        return
    usual = jit.KernelInterface.__getitem__

    def launcher(kernel: Any, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:
            # A TensorDescriptor has its tensor as `base`.
            given = [getattr(each, "base", each) for each in (*args, *kwargs.values())]
            tensors = [each for each in given if isinstance(each, FakeTensor)]
            if not tensors:
                return usual(kernel, grid)(*args, **kwargs)
            return note(_name_of(kernel), tensors)

        return launch

    with replaced((jit.KernelInterface, "__getitem__", launcher)):
        yield


def _name_of(kernel: Any) -> str:
    """Of one that may be wrapped, to be tuned or by heuristics."""
    while not hasattr(kernel, "__name__") and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return str(getattr(kernel, "__name__", "a kernel"))
