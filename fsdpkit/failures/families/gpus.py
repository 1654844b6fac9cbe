"""Causes: a GPU that is broken or cannot be used."""

from __future__ import annotations

from fsdpkit.failures.cause import Cause
from fsdpkit.failures.patterns import pattern
from fsdpkit.runs.failures import Level

BAD_GPU = Cause(
    "bad-gpu",
    "A GPU of {who} is broken or cannot be used: {words}",
    retry="node-failure",
    again="yes, without that node",
    patterns=(
        pattern(
            ("ncorrectable ECC", "ncorrectable NVLink", "ECC_UNCORRECTABLE"),
            "CUDA, NCCL, the driver, of memory that has lost bits",
        ),
        pattern(
            "Xid",
            "the driver; only those numbers that NVIDIA's Xid Errors lays to the hardware",
            Level.OUTSIDE,
            by=("agent", "batch"),
            line=r"(?:NVRM: |\b)Xid (?:\([^)]*\): |error |code )"
            r"(?:48|62|64|74|79|92|94|95|110|119|120|122|136|140|143|144|145|149)\b",
        ),
        pattern("fallen off the bus", "the driver, Xid 79", Level.OUTSIDE, by=("agent", "batch")),
        pattern(("fallen off the bus", "GPU is lost"), "NVML, NCCL", by=("rank",)),
        pattern(
            ("Unable to determine the device handle for", "Failed to initialize NVML"),
            "nvidia-smi, of a GPU that does not answer",
            Level.OUTSIDE,
            by=("agent", "batch"),
            line=r"(?i)GPU is lost|device handle .*unknown error|requires reset|fallen off",
        ),
        pattern(("NVLink error", "nvlink error"), "the driver"),
        pattern(
            ("CUDA error: ", "CUDA failure", "Cuda failure"),
            "CUDA",
            quoted=True,
            line=r"(?i)CUDA (?:error|failure).{0,12}(?:hardware|ECC|unknown error|external|"
            r"Invalid access of peer GPU memory over nvlink|contained)",
        ),
        pattern("CUDA-capable device(s) is/are busy or unavailable", "CUDA"),
        pattern(
            (
                "CUDA unknown error",
                "Found no NVIDIA driver",
                "GPUs are available",
                "hipErrorNoDevice",
            ),
            "torch, of a driver",
            line=r"unknown error|no NVIDIA|No (?:\w+ )?GPUs are available|NoDevice",
        ),
        pattern("CUDA driver initialization failed", "torch"),
        pattern(("no CUDA-capable device", "no ROCm-capable device"), "CUDA and HIP"),
        pattern(
            ("uncorrectable hardware error", "hardware errors detected in"),
            "AMD's driver",
            Level.OUTSIDE,
            by=("agent", "batch"),
            line=r"amdgpu .*uncorrectable hardware error",
        ),
        pattern("system not yet initialized", "CUDA 802: the node's fabric manager is down"),
    ),
)
