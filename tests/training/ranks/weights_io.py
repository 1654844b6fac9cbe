"""On two ranks: fill sharded models from files, export them again, compare the bits.

folder: the one with the exports `untied` and `tied`.
"""

from __future__ import annotations

import weakref
from pathlib import Path

import torch
from model import T5, Block, T5Config
from weights import check, fill_from, hugging_face, load

from fsdpkit.config.training import PrecisionSettings, ShardingSettings
from fsdpkit.config.training.presets import read_config_json
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.checkpoint import Checkpointer
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.export import export_hugging_face
from fsdpkit.training.progress import Progress
from fsdpkit.training.sharding import shard
from fsdpkit.training.weight_files import Stored

HALF = PrecisionSettings(param="bfloat16")
CASES: dict[str, tuple[str, dict]] = {
    "fsdp2": ("untied", {}),
    "fsdp2 checkpointed": ("untied", {"activation_checkpointing": "full"}),
    "fsdp2 evaluated in bfloat16": ("tied", {"strategy": "shard_grad_op"}),
    "fsdp1": ("untied", {"engine": "fsdp1"}),
    "fsdp1 evaluated in bfloat16": ("untied", {"engine": "fsdp1", "strategy": "shard_grad_op"}),
    "fsdp1 tied": ("tied", {"engine": "fsdp1"}),
    "fsdp2 no_shard": ("tied", {"strategy": "no_shard"}),
    "fsdp1 no_shard": ("untied", {"engine": "fsdp1", "strategy": "no_shard"}),
}


def from_files(
    directory: Path, sharding: dict, precision: PrecisionSettings, ranks: Ranks
) -> tuple[torch.nn.Module, T5Config]:
    config = check(directory, T5Config(**read_config_json(directory / "config.json")))
    with torch.device("meta"):
        model = T5(config)
    sharded = shard(
        model, ShardingSettings(**sharding), precision, ranks,
        blocks=[Block], fill=fill_from(directory, config),
    )  # fmt: skip
    return sharded, config


def different(one: Path, other: Path) -> list[str]:
    a, b = load(one).state_dict(), load(other).state_dict()
    return [n for n in a.keys() | b.keys() if n not in b or not torch.equal(a[n], b[n])]


def main(ranks: Ranks, folder: Path) -> dict:
    read: list[weakref.ref] = []
    most = 0
    original = Stored.read

    def counted(self: Stored, *part: tuple) -> torch.Tensor:
        nonlocal most
        value = original(self, *part)
        read.append(weakref.ref(value))
        most = max(most, sum(there() is not None for there in read))
        return value

    found: dict = {}
    for name, (family, sharding) in CASES.items():
        Stored.read = counted if name == "fsdp2" else original
        evaluated = name.endswith("evaluated in bfloat16")
        precision = HALF if evaluated else PrecisionSettings()
        model, config = from_files(folder / family, sharding, precision, ranks)
        optimizer = torch.optim.SGD(model.parameters())
        if evaluated:  # leaves weights gathered, in bfloat16
            with torch.no_grad():
                ids = torch.ones(1, 4, dtype=torch.int64)
                model(ids, ids > 0, ids)
        paths = TaskPaths(folder / f"run of {name}")
        saves = Checkpointer(paths, ranks, model, optimizer, export=hugging_face(config))
        saves.save(Progress(step=1))
        saves.close()
        checkpoint = paths.checkpoints / "step-1"
        if ranks.is_first:
            export_hugging_face(checkpoint, folder / name)
            Stored.read = original
            found[name] = different(folder / family, folder / name)
    found["most read at once"] = most
    return found
