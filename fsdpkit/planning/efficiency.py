"""How fast a machine computes and communicates: values, each with its source and its doubt.

A value that nobody measured here is a data sheet's or an assumption, and says so; one that
`fsdpkit check --nodes` has measured takes its place (`speed_learned.py`). The model of speed reads
`Rates`, plain numbers; the range of its answer comes from each value's `factor`, which it might be
off by either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from fsdpkit.config.gpu_models import gpu_model

GB = 1e9
ASSUMED = "assumption"
UNKNOWN_NETWORK = "from 10 Gb/s Ethernet to four adapters of 400 Gb/s a node"


class UncertainValue(msgspec.Struct, frozen=True):
    """A number of a machine. The truth lies within value / factor and value × factor, as a rule."""

    value: float
    factor: float
    source: str


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What the simulation of a step reads. Bytes are bytes, rates are a second's, times seconds."""

    peak_flops: float
    """Dense, of bfloat16 and float16: MFU's denominator."""
    float32_flops: float
    matmul_share: float
    """Of the peak, that a large product reaches."""
    matmul_ramp_flops: float
    """FLOPs of one product at which half of that is reached: small ones fill a GPU badly."""
    attention_share: float
    """Of the peak, that a fused attention kernel reaches."""
    biased_attention_share: float
    """The same where scores have a bias or a mask that is a tensor."""
    memory_bytes: float
    """Read and written a second by kernels that do little else."""
    kernel_s: float
    """The least that a kernel takes on the GPU."""
    launch_s: float
    """Of the host, a kernel: Python and torch between two launches."""
    collective_s: float
    """Of the host, a collective, with the hooks around it."""
    in_node_bytes: float
    """Bus bandwidth of a GPU to those of its node."""
    in_node_latency_s: float
    """Of one hop."""
    node_bytes: float
    """Bus bandwidth out of one node, over all its adapters."""
    network_latency_s: float
    """Of one hop between nodes."""
    host_copy_bytes: float
    """Between host and GPU, one direction."""
    host_bytes: float
    """Read and written a second by what a rank computes on the host."""


NAMES = Rates.__struct_fields__


class MachineRates(msgspec.Struct, frozen=True):
    """`Rates` with their sources: every field of `Rates` by its name."""

    gpu: str
    values: Mapping[str, UncertainValue]

    def rates(self) -> Rates:
        """Plain numbers."""
        return Rates(**{name: one.value for name, one in self.values.items()})

    def replace(self, **values: UncertainValue) -> MachineRates:
        """Raises KeyError for what is no rate."""
        for name in values:
            if name not in NAMES:
                raise KeyError(name)
        return MachineRates(self.gpu, {**self.values, **values})


_SHEET = "data sheet"
UNPUBLISHED = "no published figure"
_NOMINAL = 312.0, 19.5, 2.0, 100.0
"""An A100's, by `GpuModel.rates`."""
_ATTENTION = {
    "A100": UncertainValue(
        0.6, 1.25, "FlashAttention-2 at 50-73 % of an A100's peak, arXiv 2307.08691"
    ),
    "H100": UncertainValue(
        0.35, 1.4, "FlashAttention-2 at 35 % of an H100's peak, arXiv 2407.08608"
    ),
}
"""Of the GPUs that have published figures, H200 and GH200 with the H100's cores; of others 0.4."""
_MEASURED = "benchmarks/results/gpu-h100.json"
_BIASED = UncertainValue(0.075, 1.4, f"T5 v1.1-large on an H100, {_MEASURED}")
_BEST_PRODUCT = {"A100": 0.87, "H100": 0.8, "B200": 0.78, "MI25": 0.77, "MI30": 0.6}
"""Of the peak, that the best product found on such a GPU reached: the table of maximum achievable
matmul FLOPS in stas00/ml-engineering, compute/accelerator/README.md. Others, such as an RTX 4090
in mag-/gpu_benchmark, hold their data sheets'."""
_OF_BEST = 0.75
"""What the products of a step reach of that."""
_BUS_SHARE = 0.75
"""Of the links' rate that a collective of some hundred megabytes reaches as bus bandwidth."""
NETWORK_SHARE = 0.85
"""The same of a node's links to others."""


def family_of(gpu: str) -> str:
    """The GPU of the table that `gpu` names, in whatever spelling, or the name itself."""
    row = gpu_model(gpu)
    return row.name if row else gpu.lower().removeprefix("nvidia ")


def kind_of_gpu(gpu: str) -> Literal["common", "AMD", "other"]:
    """common: many published runs on such GPUs were looked at."""
    name = family_of(gpu) or ""
    if name.startswith(("A100", "H100", "H200", "GH200")):
        return "common"
    return "AMD" if name.startswith("MI") else "other"


def machine_for(gpu: str, network_gb_s: float | None = None) -> MachineRates:
    """Published figures and assumptions for a GPU by its name, "h100-80" or "NVIDIA H100 NVL".

    `network_gb_s`: bus bandwidth of an all-reduce between nodes, in 10^9 bytes a second, as a
    site's profile has it; None: not known, and its doubt reaches from 10 to 1,600 Gb/s a node. A
    GPU without published figures gets an A100's in such doubt that a finished run decides (source:
    `UNPUBLISHED`).
    """
    found = gpu_model(gpu)
    published, doubt, sheet = found.rates if found else None, 1.0, _SHEET
    if published is None:
        published, doubt, sheet = _NOMINAL, 8.0, UNPUBLISHED
    tflop_s, float32_tflop_s, memory_tb_s, links_gb_s = published
    network = (
        UncertainValue(network_gb_s * GB, 1.25, "the site's profile")
        if network_gb_s
        else UncertainValue(NETWORK_SHARE * 15.8 * GB, 7.2, UNKNOWN_NETWORK)
    )
    peak = tflop_s * 1e12
    family = found.name[:4] if found else ""
    family = "H100" if family in ("H200", "GH20") else family
    return MachineRates(
        gpu,
        {
            "peak_flops": UncertainValue(peak, doubt, sheet),
            "float32_flops": UncertainValue(float32_tflop_s * 1e12, doubt, sheet),
            "matmul_share": UncertainValue(
                _OF_BEST * _BEST_PRODUCT.get(family, 1.0), 1.25, f"of the best product, {ASSUMED}"
            ),
            "matmul_ramp_flops": UncertainValue(10e-6 * peak, 2.0, f"10 µs at peak, {ASSUMED}"),
            "attention_share": _ATTENTION.get(family, UncertainValue(0.4, 1.5, ASSUMED)),
            "biased_attention_share": _BIASED
            if family == "H100"
            else UncertainValue(
                0.15, 2.0, f"twice an H100's, whose kernel is an A100's, {ASSUMED}"
            ),
            "memory_bytes": UncertainValue(0.95e12 * memory_tb_s, 1.25 * doubt, f"95 % of {sheet}"),
            "kernel_s": UncertainValue(3e-6, 1.5, ASSUMED),
            "launch_s": UncertainValue(
                15e-6, 2.4, f"{ASSUMED}; 9 µs on a bare node, 45 µs on a virtual one, {_MEASURED}"
            ),
            "collective_s": UncertainValue(150e-6, 2.0, ASSUMED),
            "in_node_bytes": UncertainValue(
                _BUS_SHARE * links_gb_s * GB, 1.25 * doubt, f"{100 * _BUS_SHARE:.0f} % of {sheet}"
            ),
            "in_node_latency_s": UncertainValue(2e-6, 2.0, ASSUMED),
            "node_bytes": network,
            "network_latency_s": UncertainValue(10e-6, 2.0, ASSUMED),
            "host_copy_bytes": UncertainValue(20 * GB, 1.5, ASSUMED),
            "host_bytes": UncertainValue(10 * GB, 2.0, ASSUMED),
        },
    )


def product_rate(rates: Rates, flops_per_kernel: float, dtype: str) -> float:
    """FLOPs a second of a matrix product of that size, in torch's type `dtype`."""
    peak = rates.float32_flops if dtype in ("float32", "float64") else rates.peak_flops
    filled = flops_per_kernel / (flops_per_kernel + rates.matmul_ramp_flops)
    return peak * rates.matmul_share * filled
