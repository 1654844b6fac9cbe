"""What a device can do: what `auto` settings go by, and its peak.

The peak, dense, is what model FLOPs utilisation (MFU) divides by. Vendors advertise twice as much
for matrices with structured zeros; dividing by that halves everybody's MFU.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from fsdpkit.config.gpu_models import gpu_model
from fsdpkit.config.training.automatic import Device
from fsdpkit.training.device_code import capability_of

if TYPE_CHECKING:
    from fsdpkit.training.distributed import Ranks


def facts_of(ranks: Ranks) -> Device:
    """What `auto` settings go by on this rank's device."""
    compilers = os.environ.get("CC"), *map(shutil.which, ("gcc", "clang", "cc"))
    return Device(
        on_gpu=ranks.device.type == "cuda",
        capability=capability_of(ranks.device),
        triton=find_spec("triton") is not None and any(compilers),
        cores=_cores() // ranks.local_world_size,
    )


def _cores() -> int:
    """That this process may use: those of the task where its ranks share them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def peak_tflops(
    device: torch.device, dtype: torch.dtype, override: float | None = None
) -> float | None:
    """Dense peak of one device in TFLOP/s for products of `dtype`; None if it is not known.

    `override` (training.metrics.peak_tflops) goes before the table. float32 means float32: where
    `torch.set_float32_matmul_precision` lets TF32 in, products are faster than its peak.
    """
    if override is not None:
        return override
    if device.type != "cuda":
        return None  # depends on clock, vector width and cores, which no name tells
    return peak_of_name(torch.cuda.get_device_name(device), dtype)


def peak_of_name(name: str, dtype: torch.dtype) -> float | None:
    """The table's entry for a device named as torch names it, such as "NVIDIA H100 80GB HBM3"."""
    row = gpu_model(name)
    if row is None:
        return None
    peaks = {torch.float32: row.float32, torch.bfloat16: row.bfloat16, torch.float16: row.float16}
    return peaks.get(dtype)


def describe_peak(device: torch.device, dtype: torch.dtype, peak: float | None) -> str:
    """One line for the run's start: what MFU is divided by, or why there is none."""
    kind = str(dtype).removeprefix("torch.")
    if peak is None:
        return (
            f"no dense {kind} peak is known for this {device.type} device, so MFU is left out; "
            "training.metrics.peak_tflops sets it"
        )
    return f"MFU is a share of {peak:g} dense {kind} TFLOP/s per device"
