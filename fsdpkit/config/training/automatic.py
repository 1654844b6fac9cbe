"""What `auto` stands for on a device: facts in, settings out, no GPU and no torch needed.

On a CPU everything is as plain as can be. On a GPU lengths are padded to few shapes that its matrix
units like, blocks are compiled, and batches are loaded ahead. An explicit value always stays.

Attention is torch's own. By itself FlexAttention is twice as fast on an H100 at 512 tokens and half
as fast at 128; a whole step of T5 v1.1-large was 4 % faster with it, which is within what blocks of
steps differed by (benchmarks/README.md), and it has no dropout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from fsdpkit.config.gpu import Capability
from fsdpkit.config.training.data import DataSettings
from fsdpkit.config.training.settings import TrainingSettings

AUTO = "auto"

_BUCKETS, _WORKERS = 4, 2
_MULTIPLE, _SHORT_MULTIPLE = 64, 8
_TRITON = (7, 0)


class Device(msgspec.Struct, frozen=True):
    """What a rank computes on. `capability` is NVIDIA's and None elsewhere; `triton`, whether
    Triton and the C compiler that it calls are there; `cores`, CPU cores of one rank."""

    on_gpu: bool = False
    capability: Capability | None = None
    triton: bool = False
    cores: int = 1

    @property
    def compiles(self) -> bool:
        return self.triton and self.capability is not None and self.capability >= _TRITON


CPU = Device()


def for_device(
    settings: TrainingSettings, device: Device, earlier: Mapping[str, Any] | None = None
) -> TrainingSettings:
    """`settings` with a value for each `auto` that depends on the device.

    `earlier` are the settings of the checkpoint that training goes on from: its buckets and
    multiple stay, whatever the device, because they decide which samples share a batch.

    Raises what `ModelSettings.dimensions` raises.
    """
    data = _data(settings.data, device, (earlier or {}).get("data", {}))
    compile_, attention = settings.compile, settings.model.attention
    if compile_ == AUTO:
        compile_ = _compiles(settings, device)
    if attention == AUTO:
        attention = "sdpa"
    model = replace(settings.model, attention=attention)
    return replace(settings, data=data, compile=compile_, model=model)


def _data(data: DataSettings, device: Device, earlier: Mapping[str, Any]) -> DataSettings:
    shortest = min(data.source_length, data.target_length)
    multiple, buckets, workers = 1, 0, 0
    if device.on_gpu:
        # Rows of short texts would be padding for the most part.
        multiple = _MULTIPLE if shortest >= _MULTIPLE else _SHORT_MULTIPLE
        buckets = 1 if data.packing else _BUCKETS  # packed rows are full
        workers = max(0, min(_WORKERS, device.cores - 1))  # the rank itself has a core, too
    of_device = {"multiple": multiple, "buckets": buckets, "workers": workers}
    kept = {k: v for k, v in earlier.items() if k != "workers" and isinstance(v, int)}
    chosen = {k: kept.get(k, v) for k, v in of_device.items() if getattr(data, k) == AUTO}
    return replace(data, **chosen)


def _compiles(settings: TrainingSettings, device: Device) -> bool:
    """Only blocks that nothing is gathered inside of; compiling chooses code by what it times."""
    whole_blocks = settings.sharding.wrap == "class" and not settings.precision.keep_float32
    return device.compiles and whole_blocks and not settings.deterministic


def in_words(given: TrainingSettings, chosen: TrainingSettings) -> str:
    """One line: what `auto` has become, each with its key; empty where nothing was left to it."""
    pairs = [
        ("data.multiple", given.data.multiple, chosen.data.multiple),
        ("data.buckets", given.data.buckets, chosen.data.buckets),
        ("data.workers", given.data.workers, chosen.data.workers),
        ("compile", given.compile, str(chosen.compile).lower()),
        ("model.attention", given.model.attention, chosen.model.attention),
    ]
    return ", ".join(f"{key} {value}" for key, before, value in pairs if before == AUTO)
