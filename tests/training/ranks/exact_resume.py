"""On any number of ranks: go on from checkpoints of a run, and compare with the run itself.

folder: the one with pairs.jsonl. On two ranks it makes the runs
there; on another number it goes on from them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import fsdp_t5
import numpy
import torch
import torch.distributed as dist
from data import Batch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader

from fsdpkit.config.training import load_settings
from fsdpkit.runs.checkpoints import checkpoints_in
from fsdpkit.runs.events import read_json_lines
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.checkpoint import Checkpointer
from fsdpkit.training.checkpoint_files import CheckpointReader, LoadPlanner
from fsdpkit.training.distributed import Ranks, gather, on_first
from fsdpkit.training.progress import Progress

STEPS = 6
EVERY = (1, 5)
GLOBAL_BATCH = 12
WRITERS = 2
SMALL = [
    "model.d_model=16", "model.d_ff=24", "model.num_layers=1", "model.num_decoder_layers=1",
    "model.num_heads=2", "model.d_kv=8", f"steps={STEPS}", "metrics.every_steps=1",
    "evaluation.batches=0", "checkpoint.every_steps=3", "checkpoint.keep_last=9",
    "optimizer.warmup_steps=2", "data.task=pairs", "data.held_out=0.05",
]  # fmt: skip
# Continued on as many ranks: the same bits, each setting in one case, together with others that
# keep nothing in the same place. "every step" is continued from several of its checkpoints.
SAME = {
    "every step": ["model.dropout_rate=0.1", "checkpoint.every_steps=1"],
    "fsdp1, buckets": [
        "model.dropout_rate=0.1", "sharding.engine=fsdp1", "data.buckets=4", "data.multiple=8",
    ],
    "groups, packed": [
        "sharding.strategy=hybrid_shard", "sharding.shard_size=1", "data.packing=true",
    ],
    "fsdp1 no_shard, spans, sgd": [
        "sharding.engine=fsdp1", "sharding.strategy=no_shard", "data.task=span-corruption",
        "optimizer.name=sgd", "optimizer.lr=0.1",
    ],
    # The scale has come down when the run is stopped.
    "float16": ["precision.param=float16", "precision.loss_scale=524288", "non_finite=skip"],
    "bfloat16, a scheduler of torch": [
        "precision.param=bfloat16",
        "optimizer.schedule=StepLR", "optimizer.schedule_arguments={step_size=2, gamma=0.5}",
    ],
    "micro batches, recomputed": [
        "micro_batch=2", "sharding.activation_checkpointing=selective", "model.dropout_rate=0.1",
    ],
    "bfloat16 weights": [
        "precision.master=bfloat16", "optimizer.rounding=compensated", "sharding.shard_size=1",
        "sharding.strategy=hybrid_shard",
    ],
    "fsdp1 ignored, not in the background": [
        'sharding.ignore=["lm_head.*"]', "sharding.engine=fsdp1", "checkpoint.background=false",
    ],
    # Held-out losses rise from the second step on; the fourth of them ends the run.
    "patient": [
        "evaluation.every_steps=1", "evaluation.patience=4", "evaluation.batches=2",
        "optimizer.lr=2", "grad_clip=0", "optimizer.schedule=constant",
        "optimizer.warmup_steps=0",
    ],
    # Eight steps, of which the rate depends; the checkpoint lies in the middle of an epoch.
    "epochs": ["steps=0", "epochs=2", "model.dropout_rate=0.1"],
}  # fmt: skip
# Continued by another engine or strategy: the same samples, losses to rounding.
OTHER = {
    "fsdp1": ["sharding.engine=fsdp1"],
    "no_shard": ["sharding.strategy=no_shard"],
    "hybrid": ["sharding.strategy=hybrid_shard", "sharding.shard_size=2"],
    "micro batches": ["micro_batch=1"],
}


ON = {3: ["fsdp1"], 4: ["no_shard", "hybrid"]}  # elsewhere all of them


def train(ranks: Ranks, folder: Path, *sets: str) -> dict:
    """One training in `folder`: losses and norms by step, and a digest of each step's samples."""
    seen: dict[int, list[str]] = {}
    settings = load_settings(
        {},
        [
            *SMALL,
            f"batch_size={GLOBAL_BATCH // ranks.world_size}",
            f"data.source={folder.parent / 'pairs.jsonl'}",
            *sets,
        ],
    )
    with watched(seen), contextlib.redirect_stdout(io.StringIO()):
        assert fsdp_t5.train(settings, TaskPaths(folder), ranks) == 0
    dist.barrier()
    everyone = gather(seen)
    samples = {step: sorted(row for rank in everyone for row in rank[step]) for step in everyone[0]}
    lines = [line for line in read_json_lines(TaskPaths(folder).metrics) if "grad_norm" in line]
    return {
        "numbers": {x["step"]: [x.get("loss"), x["grad_norm"], x["tokens"]] for x in lines},
        "samples": {step: hashlib.sha256("".join(rows).encode()).hexdigest()
                    for step, rows in samples.items()},
    }  # fmt: skip


@contextlib.contextmanager
def watched(seen: dict[int, list[str]]) -> Iterator[None]:
    """Takes down each training sample that this rank computes on, by step."""
    step = 0
    seed_step, original = fsdp_t5.seed_step, Batch.to

    def at_step(seed: int, done: int, rank: int) -> None:
        nonlocal step
        step = done + 1
        seen.setdefault(step, [])
        seed_step(seed, done, rank)

    def to(batch: Batch, device: torch.device) -> Batch:
        if torch.is_grad_enabled():
            rows = zip(batch.source, batch.source_mask, batch.labels, strict=True)
            seen[step] += [str((s[m].tolist(), t[t >= 0].tolist())) for s, m, t in rows]
        return original(batch, device)

    fsdp_t5.seed_step, Batch.to = at_step, to
    try:
        yield
    finally:
        fsdp_t5.seed_step, Batch.to = seed_step, original


def go_on(ranks: Ranks, source: Path, step: int, target: Path, *sets: str) -> dict:
    """Train in `target` from the checkpoint of `step` that the run in `source` has."""

    def copy() -> None:
        name = f"checkpoints/step-{step}"
        shutil.copytree(source / name, target / name)

    on_first(ranks, copy)
    return train(ranks, target, *sets)


def tensors(checkpoint: Path) -> dict[str, Tensor]:
    """All that a checkpoint holds, whole."""
    index = CheckpointReader(checkpoint).read_metadata()
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in index.state_dict_metadata.items()
        if hasattr(entry, "properties")
    }
    state_dict_loader.load(
        state, storage_reader=CheckpointReader(checkpoint), planner=LoadPlanner(), no_dist=True
    )
    return state


def stored(checkpoint: Path) -> tuple[object, ...]:
    """The files of its tensors, and which of these lies where in them."""
    index = CheckpointReader(checkpoint).read_metadata()
    files = {path.name: path.read_bytes() for path in checkpoint.glob("*.distcp")}
    return files, index.state_dict_metadata, index.storage_data


def different(one: Path, other: Path) -> list[str]:
    """Names of the tensors of the last checkpoints that are not equal bit for bit."""
    last = [checkpoints_in(run / "checkpoints")[-1] for run in (one, other)]
    if stored(last[0]) == stored(last[1]):  # which costs less than reading them
        return []
    a, b = map(tensors, last)
    return sorted({*a} ^ {*b}) + [n for n in a if n in b and not torch.equal(a[n], b[n])]


def same_ranks(ranks: Ranks, folder: Path) -> dict:
    found: dict = {}
    for name, sets in SAME.items():
        whole = folder / name
        reference = train(ranks, whole, *sets)
        for step in EVERY if name == "every step" else (3,):
            target = folder / f"{name} from {step}"
            continued = go_on(ranks, whole, step, target, *sets)
            if ranks.is_first:
                found[f"{name} from {step}"] = {
                    "reference": reference,
                    "continued": continued,
                    "different": different(whole, target),
                }
    return found


def generators(ranks: Ranks, folder: Path) -> dict:
    """Draws after a resume, beside those that the run itself went on with."""

    def draw() -> list[float]:
        return [random.random(), float(numpy.random.random()), float(torch.rand(()))]

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(ranks.rank)
    draw()
    saves = Checkpointer(TaskPaths(folder), ranks, model, optimizer)
    saves.save(Progress(step=1))
    went_on = draw()
    saves.close()
    draw()
    Checkpointer(TaskPaths(folder), ranks, model, optimizer).resume()
    return {"went on": gather(went_on), "resumed": gather(draw())}


def main(ranks: Ranks, folder: Path) -> dict:
    plain = folder / "plain"
    found: dict = {}
    if ranks.world_size == WRITERS:
        found["plain"] = train(ranks, plain)
        found["same"] = same_ranks(ranks, folder)
        found["generators"] = generators(ranks, folder / "generators")
    found["other"] = {
        name: go_on(ranks, plain, 3, folder / f"{name} on {ranks.world_size}", *sets)
        for name, sets in OTHER.items()
        if name in ON.get(ranks.world_size, OTHER)
    }
    return found
