"""Who takes part in training.py: our trainer's parts in several settings, and its peers."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Contestant:
    """A script of benchmarks/peers, the Python that runs it and what the tables call it."""

    name: str
    shown: str
    python: str
    script: str
    words: tuple[str, ...] = ()
    rounds: bool = False  # its weights have fewer bits: losses are near those of the others


def ours(
    *words: str, name: str = "ours", shown: str = "fsdpkit", rounds: bool = False
) -> Contestant:
    return Contestant(name, shown, sys.executable, "fsdpkit_t5.py", words, rounds)


def contestants(peers: str) -> list[Contestant]:
    """`peers` is the Python of their environment."""
    shown = "Hugging Face T5, Accelerate FSDP2"
    return [
        ours("sharding.engine=fsdp2", name="fsdp2", shown="fsdpkit, FSDP2"),
        ours("sharding.engine=fsdp1", name="fsdp1", shown="fsdpkit, FSDP1"),
        Contestant("accelerate", shown, peers, "accelerate_t5.py"),
        Contestant("lightning", "Hugging Face T5, Lightning FSDP1", peers, "lightning_t5.py"),
    ]


PAIRS = (("fsdp2", "accelerate"), ("fsdp1", "lightning"), ("fsdp2", "lightning"))
"""The same engine side by side, and our default beside both peers."""


def strategies() -> list[Contestant]:
    """The founding guide's table, in its order, and what saves more."""
    full = "sharding.strategy=full_shard"
    return [
        ours("ddp", name="ddp", shown="DDP (torch)"),
        ours("sharding.strategy=no_shard", name="no_shard", shown="NO_SHARD"),
        ours("sharding.strategy=shard_grad_op", name="shard_grad_op", shown="SHARD_GRAD_OP"),
        ours(full, name="full_shard", shown="FULL_SHARD"),
        ours(
            full,
            "sharding.activation_checkpointing=full",
            name="checkpointing",
            shown="FULL_SHARD, activation checkpointing",
        ),
        ours(
            full,
            "sharding.activation_checkpointing=offload",
            name="activation_offload",
            shown="FULL_SHARD, activations offloaded",
        ),
        *(
            ours(
                *(full, "precision.master=bfloat16", f"optimizer.rounding={rounding}"),
                name=f"bfloat16-{rounding}",
                shown=f"FULL_SHARD, bfloat16 weights, {rounding}",
                rounds=True,
            )
            for rounding in ("stochastic", "compensated")
        ),
        ours(full, "sharding.cpu_offload=true", name="offload", shown="FULL_SHARD, CPU offload"),
    ]
