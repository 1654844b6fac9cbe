"""The state of every random generator a rank may draw from, as a tensor for a checkpoint."""

from __future__ import annotations

import io

import torch
from torch import Tensor

from fsdpkit.script import random_states


def random_state() -> Tensor:
    """State of Python's, numpy's, torch's and, on a GPU, the device's generator; uint8 [n]."""
    written = io.BytesIO()
    torch.save(random_states.random_state(), written)
    return torch.frombuffer(written.getbuffer(), dtype=torch.uint8)


def set_random_state(state: Tensor) -> None:
    """Go on drawing where `random_state` was called; a device of another kind keeps its own."""
    found = torch.load(io.BytesIO(state.numpy().tobytes()), weights_only=True)
    random_states.set_random_state(found)
