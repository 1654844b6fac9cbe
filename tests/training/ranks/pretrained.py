"""On some ranks: a model of transformers from its files, trained, saved and exported again.

folder: has a directory for each kind of model. cases: as
JSON: pairs of a kind and a way to shard.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from fill_from import Reading
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1]))
from small_transformers import loaded

from fsdpkit.training import (
    Checkpointer,
    PrecisionSettings,
    Progress,
    Ranks,
    ShardingSettings,
    TaskPaths,
    pretrained,
    shard,
)
from fsdpkit.training.distributed import gather
from fsdpkit.training.export import export_hugging_face

CASES: dict[str, dict[str, Any]] = {
    "fsdp2": {},
    "fsdp2 checkpointed": {"activation_checkpointing": "full"},
    "fsdp1": {"engine": "fsdp1"},
}
STEPS = 2


def inputs(ranks: Ranks) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, 260, (2, 12), generator=generator)
    return {"input_ids": ids.to(ranks.device), "labels": ids.flip(0).to(ranks.device)}


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict) -> list[float]:
    losses = []
    for _ in range(STEPS):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def scores(model: nn.Module, batch: dict) -> torch.Tensor:
    return model(**batch).logits


def one(kind: str, case: str, folder: Path, ranks: Ranks) -> dict[str, Any]:
    source, batch = folder / kind, inputs(ranks)
    whole = loaded(source, kind)
    found = pretrained(source)
    with Reading() as reading:
        model = shard(
            found.model, ShardingSettings(**CASES[case]), PrecisionSettings(), ranks,
            fill=found.fill,
        )  # fmt: skip
    # Before the first forward pass, which leaves the root's weights gathered: not shards.
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = (scores(model, batch) - scores(whole, batch)).abs().max().item()
    losses = trained(model, optimizer, batch)
    theirs = trained(whole, torch.optim.SGD(whole.parameters(), 0.1), batch)

    paths = TaskPaths(folder / f"run {kind} {case} {ranks.world_size}")
    saves = Checkpointer(paths, ranks, model, optimizer, export=found.export)
    saves.save(Progress(step=1))
    saves.close()
    after = scores(model, batch)
    exported = paths.dir / "export"
    if ranks.is_first:
        export_hugging_face(paths.checkpoints / "step-1", exported, max_file_bytes=60_000)
    torch.distributed.barrier()
    return {
        "before": before,
        "losses": losses,
        "theirs": theirs,
        "after": (after - scores(loaded(exported, kind), batch)).abs().max().item(),
        "export": str(exported),
        "read": gather(reading.bytes),
    }


def main(ranks: Ranks, folder: Path, cases: str) -> list:
    return [[kind, case, one(kind, case, folder, ranks)] for kind, case in json.loads(cases)]
