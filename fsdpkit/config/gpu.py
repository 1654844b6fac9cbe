"""What a GPU of a compute capability can do: facts in, a decision out, no GPU and no torch needed.

The same answers for `fsdpkit submit`, which knows the capability from the site profile, for the
checks on the node, which ask the driver, and for the ranks, which ask torch. An unknown capability
(None, as of AMD's GPUs, whose numbers mean something else) forbids nothing.

Source: CUDA C++ Programming Guide, "Compute Capabilities" and "Application Compatibility".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Capability = tuple[int, int]
"""NVIDIA's compute capability: (7, 0) of a V100, (8, 0) of an A100, (9, 0) of an H100."""

_BFLOAT16, _TENSOR_CORES = (8, 0), (7, 0)
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def parse_capability(text: str) -> Capability:
    """The profile's "8.0" as (8, 0)."""
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def compute_type(param: str, *, on_gpu: bool, capability: Capability | None = None) -> str:
    """What training.precision.param stands for on a device; `auto` is bfloat16 if a GPU has it.
    float16 would be faster than float32 on older ones, but needs its loss scaled, which not every
    loop does, and T5's activations can leave its range: it is for a person to choose."""
    if param != "auto":
        return param
    return "bfloat16" if on_gpu and has_bfloat16(capability) else "float32"


def has_bfloat16(capability: Capability | None) -> bool:
    """Whether the GPU computes in bfloat16, rather than torch in its place, slowly."""
    return capability is None or capability >= _BFLOAT16


def type_problem(param: str, capability: Capability | None, gpu: str | None) -> str | None:
    """Why training.precision.param cannot be had of this GPU, with what to do; None if it can."""
    if param != "bfloat16" or capability is None or has_bfloat16(capability):
        return None
    half = (
        ' or "float16", which scales its loss and uses the tensor cores'
        if capability >= _TENSOR_CORES
        else ""
    )
    return (
        f"{_gpu(gpu, capability)} has no bfloat16, which begins with compute capability 8.0: set "
        f'training.precision.param = "float32"{half}.'
    )


def type_note(param: str, capability: Capability | None, gpu: str | None) -> str | None:
    """What a person should know of `auto` on this GPU."""
    if param != "auto" or capability is None or has_bfloat16(capability):
        return None
    note = f"{_gpu(gpu, capability)} has no bfloat16, so it trains in float32"
    if capability < _TENSOR_CORES:
        return note
    return f'{note}; training.precision.param = "float16", with its loss scaled, is faster'


def runs_on(capability: Capability, architectures: Sequence[str]) -> bool:
    """Whether code built for `architectures` (`torch.cuda.get_arch_list()`) runs on such a GPU.

    sm_XY is machine code for X.Y and later minors of X, compute_XY an intermediate form for
    everything from X.Y on. With an a behind it either is for X.Y alone, with an f for X.Y and later
    minors. An empty list says nothing.
    """
    return not architectures or any(_runs_on(capability, each) for each in architectures)


def _runs_on(capability: Capability, architecture: str) -> bool:
    match = _ARCHITECTURE.fullmatch(architecture)
    if match is None:
        return False
    kind, built, suffix = match[1], (int(match[2]), int(match[3])), match[4]
    if suffix == "a":
        return capability == built
    if kind == "compute" and not suffix:
        return capability >= built
    return capability[0] == built[0] and capability >= built


def build_problem(
    capability: Capability, gpu: str | None, torch: str, architectures: Sequence[str]
) -> str | None:
    """Why this torch has no code for this GPU, with what to do; None if it has some."""
    if runs_on(capability, architectures):
        return None
    return (
        f"{_gpu(gpu, capability)} is none that torch {torch} was built for "
        f"({', '.join(architectures)}): install a build that has "
        f"sm_{capability[0]}{capability[1]}, which older CUDA's builds have longest, or choose "
        "other nodes"
    )


def _gpu(name: str | None, capability: Capability) -> str:
    return f"{name or 'this GPU'} (compute capability {capability[0]}.{capability[1]})"
