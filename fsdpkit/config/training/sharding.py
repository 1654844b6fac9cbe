"""`[training.sharding]`: how the model is spread over the ranks, and what each strategy means.

What a strategy implies is said here once, for the checks of a job, the memory that it needs and the
engines of `fsdpkit.training`.
"""

from typing import Annotated, Literal

import msgspec

from fsdpkit.config.fields import Count, doc
from fsdpkit.config.training.model import Name

Strategy = Literal["full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "no_shard"]


class ShardingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.sharding]`: how the model is spread over the ranks."""

    engine: Annotated[
        Literal["fsdp2", "fsdp1"],
        doc("fsdp2: fully_shard; fsdp1: the older FullyShardedDataParallel class."),
    ] = "fsdp2"
    strategy: Annotated[
        Strategy,
        doc(
            "full_shard saves most memory; shard_grad_op keeps weights gathered until "
            "backward; the hybrids do either in a group and replicate across; no_shard is DDP."
        ),
    ] = "full_shard"
    shard_size: Annotated[
        Count | None, doc("Ranks in one group of a hybrid; unset takes the ranks of one node.")
    ] = None
    reshard_to: Annotated[
        Count | Literal["node"] | None,
        doc(
            "After forward, keep each unit spread over this many ranks only (or one "
            "node's), so that backward gathers nearby; fsdp2's full_shard."
        ),
    ] = None
    wrap: Annotated[
        Literal["class", "size", "names"],
        doc(
            "Units are the instances of the block classes, or modules of at least "
            "wrap_parameters, or those that wrap_names lists."
        ),
    ] = "class"
    wrap_parameters: Annotated[
        int, doc("Minimum number of parameters of a unit when wrap is size.", ge=1)
    ] = 1_000_000
    wrap_names: Annotated[
        tuple[Name, ...], doc('Modules to wrap when wrap is names, such as "encoder.block.*".')
    ] = ()
    blocks_per_unit: Annotated[
        Count, doc("Neighbouring blocks gathered together; more means fewer, larger messages.")
    ] = 1
    limit_all_gathers: Annotated[
        bool, doc("Keep at most two units gathered ahead of the computation; fsdp2 always does.")
    ] = True
    prefetch: Annotated[
        int,
        doc(
            "Units gathered ahead by name, forward and backward; 0 leaves it to the "
            "engine, which gathers one ahead.",
            ge=0,
            le=16,
        ),
    ] = 0
    backward_prefetch: Annotated[
        Literal["pre", "post", "none"],
        doc(
            "When backward gathers the next unit: pre, before a unit's gradients are "
            "computed, is fastest; post after them; none not ahead. fsdp2 always does pre."
        ),
    ] = "pre"
    ignore: Annotated[
        tuple[Name, ...],
        doc(
            "Parameters that are not sharded but replicated on every rank, by name "
            "pattern, "
            'such as "lm_head.*".'
        ),
    ] = ()
    activation_checkpointing: Annotated[
        Literal["none", "full", "selective", "offload"],
        doc(
            "full: keep only each block's input and recompute the rest in backward; "
            "selective: also keep attention and every second matrix product; offload: recompute "
            "nothing, keep what backward needs in host memory."
        ),
    ] = "none"
    checkpoint_every: Annotated[
        Count, doc("Activation checkpointing or offload on every n-th block only.")
    ] = 1
    cpu_offload: Annotated[
        bool,
        doc(
            "Keep shards of weights, gradients and optimizer in host memory; "
            "saves the most memory, and is slow."
        ),
    ] = False
    sync_module_states: Annotated[
        bool,
        doc(
            "Broadcast rank 0's initial weights and buffers, for a model that was built with "
            "values; otherwise they must be equal on all ranks, which is checked."
        ),
    ] = False

    @property
    def hybrid(self) -> bool:
        """Whether ranks shard in groups, and groups replicate."""
        return self.strategy in _WITHIN_GROUP

    @property
    def within_group(self) -> Strategy:
        """The strategy of one group by itself."""
        return _WITHIN_GROUP.get(self.strategy, self.strategy)

    @property
    def frees_after_forward(self) -> bool:
        """Whether backward gathers a unit's weights anew, rather than keeping them gathered."""
        return self.within_group == "full_shard"

    def shard_ranks(self, ranks: int, ranks_per_node: int) -> int:
        """Over how many of the ranks weights, gradients and optimizer state are spread.

        Args:
            ranks: Number of ranks in the job.
            ranks_per_node: The size of a hybrid's groups unless `shard_size` gives one.

        Returns:
            Their number; 1 where each rank holds everything.
        """
        if self.strategy == "no_shard":
            return 1
        return (self.shard_size or ranks_per_node) if self.hybrid else ranks


_WITHIN_GROUP: dict[Strategy, Strategy] = {
    "hybrid_shard": "full_shard",
    "hybrid_shard_zero2": "shard_grad_op",
}
