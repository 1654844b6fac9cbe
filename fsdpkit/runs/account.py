"""What an attempt used of what it was granted: the account that every reader goes by.

    granted = nodes × (ended - began), in node-seconds; `used_s` splits it without a gap or overlap

Made by runs/accounting.py from what the run's directory has; kept as `account.json` by the batch
shell, and made again by whoever looks where that was killed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from fsdpkit.runs.record import Count, Number, Time

Use = Literal[
    "training",
    "loading",
    "waiting",
    "open",
    "startup",
    "staging",
    "repeated",
    "checkpoints",
    "pauses",
    "lost",
    "idle",
    "unused",
    "unknown",
]

USES: dict[Use, tuple[str, str]] = {
    "training": (
        "computing",
        "time per step × steps that count: done once, or the last time they were done; without "
        "what ranks waited in them, where that was measured",
    ),
    "loading": (
        "loading data",
        "in those steps, the seconds for which the first rank waited for its data loader",
    ),
    "waiting": (
        "waiting for the slowest rank",
        "in those steps, its computing less the ranks' mean, where ranks were compared",
    ),
    "open": ("in progress", "since the newest logged step; not known yet"),
    "startup": (
        "start-up",
        "from the allocation, or from a restart, to the first step: checks, imports, loading",
    ),
    "staging": (
        "copying to the nodes' disks",
        "before the ranks start, until every node has what [stage] names",
    ),
    "repeated": ("repeated steps", "time per step × steps that were repeated later"),
    "checkpoints": ("checkpoints", "seconds for which training paused to save"),
    "pauses": ("evaluation and end", "evaluations, the last writes, export and shutdown"),
    "lost": (
        "lost after failures",
        "after the last logged step up to the restart or the end, launches that reached no step, "
        "and steps that no known checkpoint holds",
    ),
    "idle": (
        "idle nodes",
        "standby nodes, and lost nodes, beside those that trained; of a hold all: runs on it have "
        "accounts of their own",
    ),
    "unused": ("unused GPUs", "a program that logs no steps, while no kernel ran on its GPUs"),
    "unknown": ("unaccounted", "the rest of a program that logs no steps"),
}
"""For each use its name and its formula in words, in the order of telling."""

Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Amount = Annotated[float, Meta(ge=0, le=1e18)]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the samples of all nodes measured, added up over nodes and GPUs. None: not measured."""

    gpu_s: Seconds = 0.0
    """GPU-seconds that were sampled."""
    busy_s: Seconds | None = None
    """Of them, in which a kernel ran; a rank that waits in NCCL runs one, too."""
    active_s: Seconds | None = None
    """Of those GPU-seconds, weighted by the share of multiprocessors that worked (NVML's GPM)."""
    energy_j: Amount | None = None
    """Of the GPUs, by their total energy counters."""
    host_energy_j: Amount | None = None
    """Of processors and memory, by RAPL."""
    gpu_memory_bytes: Amount | None = None
    """The peak of the fullest GPU."""
    gpu_memory_total_bytes: Amount | None = None
    memory_bytes: Amount | None = None
    """The peak of the job's processes on the fullest node, with what the kernel keeps for them."""
    memory_total_bytes: Amount | None = None
    """What the job had there."""
    cpu_s: Seconds | None = None
    """Core-seconds of the job's processes."""
    core_s: Seconds | None = None
    """Core-seconds that it had."""
    nodes: Annotated[int, Meta(ge=0)] = 0
    """That have samples."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Of one attempt."""

    schema: Literal["fsdpkit.account/1"] = "fsdpkit.account/1"
    attempt: Number
    began_s: Time
    """Unix time, as the next."""
    ended_s: Time
    """Of an attempt that runs: when the account was made."""
    nodes: Count
    """That were granted, standby nodes included."""
    gpus: Annotated[int, Meta(ge=0, le=1024)]
    """Per node; 0: without a GPU."""
    used_s: dict[Use, Seconds]
    """Node-seconds; what is nothing is left out."""
    gpu: Annotated[str, Meta(max_length=80)] | None = None
    """Its name by NVML."""
    measured: Measured | None = None
    asked_s: Seconds | None = None
    """The time limit."""
    queued_s: Seconds | None = None
    """From the submission, or from the attempt before, to the beginning."""
    tflops_per_gpu: Amount | None = None
    """Mean over the steps that count."""
    mfu: Annotated[float, Meta(ge=0, le=10)] | None = None

    @property
    def granted_s(self) -> float:
        """Node-seconds."""
        return self.nodes * (self.ended_s - self.began_s)

    @property
    def gpu_hours(self) -> float:
        """That were granted; of a run without a GPU, node-hours."""
        return self.granted_s * max(1, self.gpus) / 3600

    def hours(self, use: Use) -> float:
        """GPU-hours of one use; of a run without a GPU, node-hours."""
        return self.used_s.get(use, 0.0) * max(1, self.gpus) / 3600


class SeenJobs(NamedTuple):
    """Ids of jobs, as the scheduler knows them."""

    running: Collection[str] = ()
    succeeded: Collection[str] = ()
