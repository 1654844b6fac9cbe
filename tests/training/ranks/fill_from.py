"""On some ranks: fill any model from safetensors, and see what each rank reads; or from rank 0.

folder: the one with the files `good` and `bad`.
"""

from __future__ import annotations

import weakref
from pathlib import Path

import torch
from foreign_net import LEFT_OUT, Block, Net
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor

from fsdpkit.errors import FsdpkitError
from fsdpkit.training import PrecisionSettings, Ranks, ShardingSettings, fill_from, shard
from fsdpkit.training.distributed import gather
from fsdpkit.training.weight_files import Stored

CASES: dict[str, dict] = {
    "fsdp2": {},
    "fsdp2 checkpointed": {"activation_checkpointing": "full"},
    "fsdp2 hybrid": {"strategy": "hybrid_shard", "shard_size": 1},
    "fsdp1": {"engine": "fsdp1"},
    "fsdp1 no_shard": {"engine": "fsdp1", "strategy": "no_shard"},
}


def rename(name: str) -> str | None:
    return None if name.startswith(LEFT_OUT) else name.removeprefix("transformer.")


class Reading:
    """What this rank reads: bytes in all, and the most that are in memory at once."""

    def __init__(self) -> None:
        self.bytes, self.most = 0, 0
        self._there: list[weakref.ref[torch.Tensor]] = []
        self._read = Stored.read

    def __enter__(self) -> Reading:
        reading = self

        def counted(stored: Stored, *part: tuple[slice, ...]) -> torch.Tensor:
            value = reading._read(stored, *part)
            reading.bytes += value.nbytes
            reading._there.append(weakref.ref(value))
            held = [each for ref in reading._there if (each := ref()) is not None]
            reading.most = max(reading.most, sum(each.nbytes for each in held))
            return value

        Stored.read = counted  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Stored.read = self._read  # type: ignore[method-assign]


def different(whole: dict[str, torch.Tensor], model: torch.nn.Module) -> list[str]:
    """What the sharded model has other values of."""
    state = {
        n: t.full_tensor() if isinstance(t, DTensor) else t
        for n, t in get_model_state_dict(model).items()
    }
    return [n for n in whole if not torch.equal(whole[n], state[n])]


def main(ranks: Ranks, folder: Path) -> dict:
    found: dict = {}
    whole = Net.drawn().state_dict()
    for name, sharding in CASES.items():
        with torch.device("meta"):
            model: torch.nn.Module = Net()
        with Reading() as reading:
            model = shard(
                model, ShardingSettings(**sharding), PrecisionSettings(), ranks,
                blocks=[Block], fill=fill_from(folder / "good", rename),
            )  # fmt: skip
        found[name] = {
            "read": gather(reading.bytes),
            "most": gather(reading.most),
            "different": different(whole, model),
        }
    for engine in ("fsdp2", "fsdp1"):
        own = Net.drawn(seed=3 + ranks.rank, seen=41 + ranks.rank)
        settings = ShardingSettings(engine=engine, sync_module_states=True)
        model = shard(own, settings, PrecisionSettings(), ranks, blocks=[Block])
        found[f"{engine} from rank 0"] = gather(different(whole, model))
    with torch.device("meta"):
        model = Net()
    try:
        fill = fill_from(folder / "bad", rename)
        shard(model, ShardingSettings(), PrecisionSettings(), ranks, blocks=[Block], fill=fill)
        told = "nothing"
    except FsdpkitError as error:
        told = str(error)
    found["bad"] = gather(told)
    return found
