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
            "Xid",
            "the driver; only those numbers that NVIDIA's Xid Errors lays to the hardware",
            Level.OUTSIDE,
            by=("agent", "batch"),
            line=r"(?:NVRM: |\b)Xid (?:\([^)]*\): |error |code )"
            r"(?:48|62|64|74|79|92|94|95|110|119|120|122|136|140|143|144|145|149)\b",
        ),
        pattern(
            "fallen off the bus | GPU is lost | device handle …nknown Error | requires reset | "
            "amdgpu …uncorrectable hardware error",
            "the drivers and nvidia-smi, of a GPU that does not answer",
            Level.OUTSIDE,
            by=("agent", "batch"),
        ),
        pattern(
            "ncorrectable ECC | ncorrectable NVLink | ECC_UNCORRECTABLE | NVLink error | "
            "nvlink error | fallen off the bus | GPU is lost | "
            "CUDA-capable device(s) is/are busy or unavailable | CUDA unknown error | "
            "from cudaGetDeviceCount()…unknown error | Found no NVIDIA driver | "
            "No CUDA GPUs are available | No HIP GPUs are available | hipErrorNoDevice | "
            "CUDA driver initialization failed | no CUDA-capable device | "
            "no ROCm-capable device | system not yet initialized",
            "CUDA, HIP, NCCL, NVML and torch, of memory that has lost bits, a link or a driver; "
            "CUDA 802: the node's fabric manager is down",
        ),
        pattern(
            "CUDA error:  | CUDA failure | Cuda failure",
            "CUDA",
            quoted=True,
            line=r"(?i)CUDA (?:error|failure).{0,12}(?:hardware|ECC|unknown error|external|"
            r"Invalid access of peer GPU memory over nvlink|contained)",
        ),
    ),
)
