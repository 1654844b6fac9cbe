"""What one rank does in one optimizer step, in the order in which its host issues it. No torch.

This is where the two halves of a plan meet: the tape of a step fills a `StepWork`, and `speed.py`
says how long a machine takes for it. It says what is done and in which order, never when: times,
overlap and efficiency are the machine's.

An operation is a computation on the GPU (or the host), a collective of a process group, or a copy
between host and GPU. Nobody writes dependencies down: they are FSDP's, and follow from the order
(`speed_schedule.py` says which wait for what). A collective that is issued in the optimizer's
phase, or under no unit (`unit` None: a count of tokens, a norm), waits for what was computed
before it; in the optimizer's phase what comes after waits for it. A copy to the GPU is for the
next gather or computation of its unit; one to the host follows what came before of its unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

Phase = Literal["forward", "backward", "recompute", "optimizer"]
"""`recompute`: what activation checkpointing computes again in backward."""

ComputationKind = Literal["matmul", "attention", "biased attention", "other"]
"""`attention`: a fused kernel, forward or backward. `other`: bound by memory, such as norms, gates,
casts, FSDP's copies in and out, the loss and an optimizer's update."""

CollectiveKind = Literal["all_gather", "reduce_scatter", "all_reduce"]


class Computation(msgspec.Struct, frozen=True, kw_only=True, tag="computation"):
    """Kernels of one kind that follow one another; neighbours may be put together."""

    unit: str
    """Path of the FSDP unit whose weights it uses; "" is the root's."""
    phase: Phase
    kind: ComputationKind
    flops: int = 0
    """Of matrix products and attention, a multiply-add as two; 0 of `other`."""
    bytes: int = 0
    """Read and written in the GPU's memory by all kernels, if no cache held anything."""
    dtype: str = "bfloat16"
    """torch's name of the type it computes in, without `torch.`."""
    kernels: int = 1
    """Launches by the host; a compiled or captured stretch has few."""
    on_host: bool = False
    """Whether the CPU computes it, as it does an offloaded optimizer."""


class Collective(msgspec.Struct, frozen=True, kw_only=True, tag="collective"):
    """One message that the ranks of a process group exchange."""

    kind: CollectiveKind
    bytes: int
    """Of the whole tensor in the type that is sent, after an all-gather, before a reduction."""
    group_size: int
    group_per_node: int
    """How many of the group's ranks share a node: equal to `group_size` inside a node, 1 where each
    node has one of them, as in the replicas of a hybrid."""
    unit: str | None = None
    """Path of the FSDP unit that it is for, "" the root; None: the step's own, such as the norm."""
    phase: Phase


class Copy(msgspec.Struct, frozen=True, kw_only=True, tag="copy"):
    """Between host and GPU, over PCIe: offloaded weights, gradients or activations."""

    to: Literal["gpu", "host"]
    bytes: int
    unit: str
    phase: Phase


Operation = Computation | Collective | Copy


class StepWork(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer step of one rank, with every micro-batch of its accumulation."""

    operations: tuple[Operation, ...]
    tokens: int
    """Of one rank in one step, as `tokens_per_s` counts: padding too; sources and targets."""
    samples: int
    """Sequences of one rank in one step."""
    model_flops: int
    """Of one rank in one step, as MFU counts: products and attention; nothing recomputed."""
    ranks: int
    ranks_per_node: int
    gathers_ahead: int | None = 2
    """Units whose gathered weights may wait for their computations in forward; None: no limit, as
    under FSDP1 without limit_all_gathers."""

    @property
    def nodes(self) -> int:
        return -(-self.ranks // self.ranks_per_node)

    def computations(self) -> Iterator[Computation]:
        return (one for one in self.operations if isinstance(one, Computation))

    def collectives(self) -> Iterator[Collective]:
        return (one for one in self.operations if isinstance(one, Collective))
