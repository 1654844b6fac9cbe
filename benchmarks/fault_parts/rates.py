"""How often nodes fail, and of what: published counts, brought to failures per node and day.

A node is a machine with eight GPUs, which all of these runs had. A rate is one number for the whole
run: failures are taken to be independent of each other and equally likely at any time, on any node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DAY_S = 86_400.0


@dataclass(frozen=True)
class Published:
    """A run or cluster whose failures were counted."""

    name: str
    per_node_day: float
    source: str

    @property
    def per_node_s(self) -> float:
        return self.per_node_day / DAY_S


LLAMA3 = Published(
    "Llama 3 405B, 2,048 nodes of H100",
    419 / 54 / 2048,
    "419 unexpected interruptions in 54 days on 16,384 GPUs: Grattafiori et al., The Llama 3 Herd "
    "of Models, arXiv 2407.21783, section 3.3.4",
)
PUBLISHED = (
    LLAMA3,
    Published(
        "Meta RSC-1, 2,000 nodes of A100",
        6.50e-3,
        "6.50 failures in 1,000 node-days: Kokolis et al., Revisiting Reliability in Large-Scale "
        "Machine Learning Research Clusters, arXiv 2410.21680",
    ),
    Published("Meta RSC-2, 1,000 nodes of A100", 2.34e-3, "2.34 in 1,000 node-days: likewise"),
    Published(
        "BLOOM, 48 nodes of A100",
        1.5 / 7 / 48,
        "1 to 2 GPU failures a week, counted as 1.5: BigScience, BLOOM, arXiv 2211.05100, "
        "section 3.4",
    ),
)

Fault = Literal["crash", "hang", "device", "network", "node"]

# Table 5 of the Llama 3 paper, by what the run sees of it.
LLAMA3_CAUSES: dict[Fault, dict[str, int]] = {
    "crash": {"software bug": 54, "dependency": 2},
    "hang": {"NCCL watchdog timeout": 7},
    "device": {
        "faulty GPU": 148,
        "GPU HBM3 memory": 72,
        "GPU SRAM memory": 19,
        "GPU system processor": 17,
        "silent data corruption": 6,
        "GPU thermal interface and sensor": 6,
        "SSD": 3,
        "IO expansion board": 2,
    },
    "network": {"network switch or cable": 35, "network card": 7},
    "node": {
        "unplanned host maintenance": 32,
        "power supply": 3,
        "server chassis": 2,
        "CPU": 2,
        "system memory": 2,
    },
}


def shares(causes: dict[Fault, dict[str, int]] = LLAMA3_CAUSES) -> dict[Fault, float]:
    """Each fault's share of all; they add up to 1."""
    counts = {fault: sum(each.values()) for fault, each in causes.items()}
    total = sum(counts.values())
    return {fault: count / total for fault, count in counts.items()}
