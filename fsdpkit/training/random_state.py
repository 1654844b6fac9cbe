"""The state of every random generator a rank may draw from, as a tensor for a checkpoint."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import numpy
import torch
from torch import Tensor


def random_state(device: torch.device) -> Tensor:
    """State of Python's, numpy's, torch's and, on a GPU, the device's generator; uint8 [n]."""
    version, python, python_gauss = random.getstate()
    kind, keys, position, has_gauss, gauss = numpy.random.get_state(legacy=True)
    state = {
        "python": [version, python, python_gauss],
        "numpy": [kind, [int(key) for key in keys], position, has_gauss, gauss],
        "torch": _text(torch.get_rng_state()),
    }
    if device.type == "cuda":
        state["cuda"] = _text(torch.cuda.get_rng_state(device))
    return torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)


def set_random_state(state: Tensor, device: torch.device) -> None:
    """Go on drawing where `random_state` was called; a device of another kind keeps its own."""
    found: dict[str, Any] = json.loads(bytes(state.tolist()))
    version, python, python_gauss = found["python"]
    random.setstate((version, tuple(python), python_gauss))
    kind, keys, *rest = found["numpy"]
    numpy.random.set_state((kind, numpy.array(keys, numpy.uint32), *rest))
    torch.set_rng_state(_tensor(found["torch"]))
    if device.type == "cuda" and "cuda" in found:
        torch.cuda.set_rng_state(_tensor(found["cuda"]), device)


def _text(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
