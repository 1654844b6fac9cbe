"""What either engine is handed to shard a model: all that does not depend on which one it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from fsdpkit.config.training import PrecisionSettings, ShardingSettings
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.initialisation import Start
from fsdpkit.training.units import ShardedUnit


@dataclass(frozen=True)
class EngineSetup:
    """Decided by `fsdpkit.training.sharding`, carried out by `fsdp1` and `fsdp2`."""

    sharding: ShardingSettings
    precision: PrecisionSettings
    ranks: Ranks
    mesh: DeviceMesh
    units: Sequence[ShardedUnit]
    """In order of definition; the rest of the model is the root unit."""
    ignored: set[nn.Parameter]
    """Parameters that stay whole on every rank."""
    start: Start | None
    """What gives a model on the meta device its values."""
    memory_bytes: int
    """Of this rank's GPU; 0 on a host."""
