"""GPUs that fsdpkit knows: memory, capability, peaks and bandwidths, one row a model. No torch.

Sources: the makers' data sheets; figures "with sparsity" are halved, since no training has zeros in
place of half its weights. AMD's MI250X has two dies, which are two devices to torch, with half the
card's figures each. Memory is what `nvidia-smi` (AMD: `rocm-smi`, one die) gives as the total;
makers' gigabytes are about as many GiB. Capability: NVIDIA, developer.nvidia.com/cuda-gpus.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fsdpkit.config.gpu import Capability


class GpuModel(NamedTuple):
    """Peaks are dense, in TFLOP/s; float32 without TF32. None: it has no such type."""

    name: str
    bfloat16: float | None
    float16: float
    float32: float
    memory_tb_s: float
    links_gb_s: float
    """A direction, to the other GPUs of its node."""
    capability: Capability | None = None
    cards: tuple[tuple[int, int], ...] = ()
    """Its sizes as (GB in its name, MiB of memory)."""

    @property
    def peak_tflops(self) -> float:
        """Of the types that train fast: what MFU divides by."""
        return self.bfloat16 or self.float16


# The first whose words are in a name counts, so longer names come first.
GPU_MODELS = (
    GpuModel("GH200", 989.4, 989.4, 66.9, 4.0, 450, (9, 0), ((96, 97871),)),
    GpuModel("H200 NVL", 835.5, 835.5, 60.0, 4.8, 450, (9, 0)),
    GpuModel("H200", 989.4, 989.4, 66.9, 4.8, 450, (9, 0), ((141, 143771),)),
    GpuModel("H100 PCIe", 756.5, 756.5, 51.2, 2.0, 300, (9, 0)),
    GpuModel("H100 NVL", 835.5, 835.5, 60.0, 3.9, 300, (9, 0)),
    GpuModel("H100", 989.4, 989.4, 66.9, 3.35, 450, (9, 0), ((80, 81559), (94, 95830))),
    GpuModel("GB200", 2500.0, 2500.0, 80.0, 8.0, 900, (10, 0)),
    GpuModel("B200", 2250.0, 2250.0, 80.0, 8.0, 900, (10, 0), ((180, 183359),)),
    GpuModel("A100 40", 312.0, 312.0, 19.5, 1.555, 300, (8, 0), ((40, 40960),)),
    GpuModel("A100", 312.0, 312.0, 19.5, 2.039, 300, (8, 0), ((80, 81920),)),
    GpuModel("A40", 149.7, 149.7, 37.4, 0.696, 56, (8, 6), ((48, 46068),)),
    GpuModel("A6000", 154.8, 154.8, 38.7, 0.768, 56, (8, 6), ((48, 49140),)),
    GpuModel("4090", 165.2, 165.2, 82.6, 1.008, 32, (8, 9), ((24, 24564),)),
    GpuModel("L40S", 362.05, 362.05, 91.6, 0.864, 32, (8, 9), ((48, 46068),)),
    GpuModel("V100 PCI", None, 112.0, 14.0, 0.9, 32, (7, 0)),
    GpuModel("V100", None, 125.0, 15.7, 0.9, 150, (7, 0), ((16, 16384), (32, 32768))),
    GpuModel("MI300X", 1307.4, 1307.4, 163.4, 5.3, 448, None, ((192, 196592),)),
    GpuModel("MI250", 181.0, 181.0, 45.3, 1.6, 150),
    GpuModel("MI250X", 191.5, 191.5, 47.9, 1.6, 150, None, ((64, 65520),)),
)


def gpu_model(name: str) -> GpuModel | None:
    """The row of a GPU as a driver, a profile or a person names it, such as "NVIDIA H100 80GB
    HBM3" or "h100-80"; None if there is none."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    for row in GPU_MODELS:
        model, *more = row.name.lower().split()
        if model in words and all(any(w.startswith(each) for w in words) for each in more):
            return row
    return None
