"""On some ranks: begin with weights that another program wrote, under both engines.

folder: the one whose `good` and `bad` hold a start each by name.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import torch
from fill_from import different
from foreign_net import Block, Net

from fsdpkit.config.training import CheckpointSettings
from fsdpkit.errors import FsdpkitError
from fsdpkit.training import (
    Checkpointer,
    PrecisionSettings,
    Progress,
    Ranks,
    ShardingSettings,
    TaskPaths,
    shard,
)
from fsdpkit.training.distributed import gather

ENGINES = {
    "fsdp2": ShardingSettings(),
    "fsdp1": ShardingSettings(engine="fsdp1"),
    "fsdp1 no_shard": ShardingSettings(engine="fsdp1", strategy="no_shard"),
}


def begin(
    start: Path, run: Path, sharding: ShardingSettings, ranks: Ranks
) -> tuple[torch.nn.Module, Progress | None]:
    model = shard(Net.drawn(seed=9, seen=0), sharding, PrecisionSettings(), ranks, blocks=[Block])
    optimizer = torch.optim.AdamW(model.parameters())
    settings = CheckpointSettings(start=str(start))
    return model, Checkpointer(TaskPaths(run), ranks, model, optimizer, settings).resume()


def main(ranks: Ranks, folder: Path) -> dict:
    whole = Net.drawn().state_dict()
    found: dict = {"good": {}, "bad": {}}
    for start in sorted((folder / "good").iterdir()):
        for engine, sharding in ENGINES.items():
            name = f"{start.name} {engine}"
            with contextlib.redirect_stdout(io.StringIO()) as said:
                model, progress = begin(start, folder / "runs" / name, sharding, ranks)
            found["good"][name] = {
                "different": gather(different(whole, model)),
                "progress": progress == Progress(),
                "said": said.getvalue(),
            }
    for start in sorted((folder / "bad").iterdir()):
        try:
            begin(start, folder / "runs" / start.name, ShardingSettings(), ranks)
            told = "nothing"
        except FsdpkitError as error:
            told = str(error)
        found["bad"][start.name] = gather(told)
    return found
