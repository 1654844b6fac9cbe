"""A T5 job's work from its settings alone, by closed form: milliseconds, and called an estimate.

What `--tune` orders its candidates by, and what a plan says where the step cannot be recorded.
Offloading of activations is not counted here.
"""

from __future__ import annotations

from fsdpkit.config.training import TrainingSettings
from fsdpkit.planning.speed_layers import Recompute, Sharded
from fsdpkit.planning.speed_models import t5_work
from fsdpkit.planning.work import StepWork

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_RECOMPUTES: dict[str, Recompute] = {"full": "full", "selective": "selective"}


def work_of_settings(settings: TrainingSettings, nodes: int, gpus: int) -> StepWork:
    """Of one rank of `nodes` times `gpus`, on GPUs that have bfloat16. Raises what
    `ModelSettings.dimensions` raises."""
    sharding, precision = settings.sharding, settings.precision
    micro = micro_batch(settings)
    return t5_work(
        settings.model.dimensions(),
        sharded_of(settings, nodes, gpus),
        rows=micro,
        source=settings.data.source_length,
        target=settings.data.target_length,
        compiled=settings.compile is not False and not settings.deterministic,
        head_apart=sharding.engine == "fsdp2" and precision.master == "float32",
        chunked=settings.loss == "chunked",
    )


def micro_batch(settings: TrainingSettings) -> int:
    """Samples of one forward pass; `auto` begins with the whole batch."""
    micro = settings.micro_batch
    return micro if isinstance(micro, int) else settings.batch_size


def sharded_of(settings: TrainingSettings, nodes: int, gpus: int) -> Sharded:
    sharding, precision = settings.sharding, settings.precision
    in_float32 = precision.param == "float32"
    reshard = sharding.reshard_to
    limited = sharding.engine == "fsdp2" or sharding.limit_all_gathers
    return Sharded(
        ranks=nodes * gpus,
        ranks_per_node=gpus,
        strategy=sharding.strategy,
        shard_size=sharding.shard_size,
        reshard_to=gpus if reshard == "node" else reshard,
        recompute=_RECOMPUTES.get(sharding.activation_checkpointing, "none"),
        accumulation=max(1, settings.batch_size // micro_batch(settings)),
        weight_bytes=4 if in_float32 else 2,
        reduce_bytes=_BYTES[precision.reduce],
        master_bytes=_BYTES[precision.master],
        state_bytes=8 if precision.master == "float32" else 4,
        dtype="float32" if in_float32 else "bfloat16",
        gathers_ahead=2 if limited else None,
        offload=sharding.cpu_offload,
    )
