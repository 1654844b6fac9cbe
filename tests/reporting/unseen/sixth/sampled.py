"""What no process says and the samples of a node show."""

from __future__ import annotations

import json
from typing import Any

from tests.reporting.unseen.build import FIRST_END_S
from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.third.common import failing
from tests.reporting.unseen.words import aborted, watchdog

_GIB = 2**30


def _samples(node: int, *told: dict[str, Any]) -> dict[str, str]:
    """The node's file of samples, the last of them five seconds before the end."""
    first_s = FIRST_END_S - 10.0 * len(told) + 5.0
    lines = [json.dumps({"time_s": first_s + 10.0 * n, **one}) + "\n" for n, one in enumerate(told)]
    return {f"attempt-0/node-{node}.samples.jsonl": "".join(lines)}


def _port(state: str = "ACTIVE", **counters: int) -> dict[str, Any]:
    return {"infiniband": [{"port": "mlx5_2/1", "state": state, **counters}]}


def _gpus(*errors: int) -> dict[str, Any]:
    return {"gpus": [{"ecc_uncorrected": count} for count in errors]}


CASES = [
    Case(
        name="a-port-went-down-and-all-ranks-waited",
        source="sysfs-class-infiniband",
        nodes=4,
        gpus=4,
        others=Rank(err=watchdog(0), status=134),
        files=_samples(2, _port(), _port("DOWN"), _port("DOWN")),
        want=wanted("node-failure", node="node3", forbid="perhaps"),
    ),
    Case(
        name="a-link-flapped-and-ranks-lost-each-other",
        source="sysfs-class-infiniband",
        nodes=2,
        gpus=4,
        others=aborted(0),
        files=_samples(0, _port(link_downed=3), _port(link_downed=4)),
        want=wanted("node-failure", node="node1"),
    ),
    failing(
        "a-port-went-down-after-a-missing-key",
        "sysfs-class-infiniband",
        "exception",
        "KeyError: 'labels'",
        files=_samples(1, _port(), _port("DOWN")),
        forbid="mlx5",
    ),
    failing(
        "lost-bits-and-an-illegal-address",
        "NVML",
        "bad-gpu",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        rank=5,
        files=_samples(1, _gpus(0, 0, 0, 0), _gpus(0, 2, 0, 0)),
    ),
    Case(
        name="a-bus-error-and-no-room-in-dev-shm",
        source="statvfs(3)",
        nodes=2,
        gpus=4,
        ranks={6: Rank(err="step 1200 loss 2.11\n", status=135)},
        others=aborted(0),
        files=_samples(
            1, {"temporary": {"/dev/shm": {"total_bytes": 32 * _GIB, "free_bytes": 4096}}}
        ),
        want=wanted("disk-full", rank=6, node="node2"),
    ),
]
