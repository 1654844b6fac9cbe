"""Which GPU a device is, and whether this torch was built with code for it."""

from __future__ import annotations

import torch

from fsdpkit.config.gpu import Capability, build_problem
from fsdpkit.errors import FsdpkitError


def capability_of(device: torch.device) -> Capability | None:
    """NVIDIA's compute capability of a GPU; None for other devices."""
    if device.type != "cuda" or torch.version.hip:
        return None
    return torch.cuda.get_device_capability(device)


def name_of(device: torch.device) -> str | None:
    """A GPU's name; None for other devices."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def require_code_for(device: torch.device) -> None:
    """Raise FsdpkitError for a GPU that this torch was not built for."""
    capability = capability_of(device)
    if capability is None:
        return
    architectures = torch.cuda.get_arch_list()
    if problem := build_problem(capability, name_of(device), torch.__version__, architectures):
        raise FsdpkitError(f"{problem}.")
