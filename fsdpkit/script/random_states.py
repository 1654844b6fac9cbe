"""A process's random numbers: the states of Python's, NumPy's and torch's generators."""

from __future__ import annotations

import random
import sys
from typing import Any


def random_state() -> dict[str, Any]:
    """Of this process, in tensors and numbers, which torch.load reads without unpickling more."""
    import torch

    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, list(internal), gauss],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = [str(name), [int(key) for key in keys], *(float(x) for x in rest)]
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Those of `random_state`, as far as this process has their generators."""
    import torch

    torch.set_rng_state(state["torch"].cpu())
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())
    if "numpy" in state and (numpy := sys.modules.get("numpy")) is not None:
        name, keys, place, has_gauss, cached = state["numpy"]
        numpy.random.set_state((name, keys, int(place), int(has_gauss), cached))
