"""On two ranks: the trainer's own loop under many settings, one process start for all of them.

Found, per scenario: the lines of metrics.jsonl, what was printed, the
status, and what the run directory holds.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import math
import tempfile
from pathlib import Path

import fsdp_t5
import torch
import torch.distributed as dist
from data import Batch
from torch.utils._python_dispatch import TorchDispatchMode

from fsdpkit.config.training import TrainingSettings, load_settings
from fsdpkit.data import python_docs
from fsdpkit.errors import FsdpkitError
from fsdpkit.runs.events import read_json_lines
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.debugging import prepare
from fsdpkit.training.distributed import Ranks

SCENARIOS = {
    "plain": [],
    "micro batches": ["micro_batch=1"],
    "auto": ["micro_batch=auto"],
    "fsdp1": ["sharding.engine=fsdp1", "micro_batch=2"],
    "zero2 in groups": ["sharding.strategy=hybrid_shard_zero2", "sharding.shard_size=2"],
    "recomputed": ["sharding.activation_checkpointing=selective"],
    "math": ["model.attention=math"],
    "spans": ["data.task=span-corruption"],
    "buckets": ["data.task=docstring", "data.buckets=4", "data.multiple=8", "steps=6"],
    "packed": ["data.packing=true", "data.target_length=96", "data.source_length=256"],
    "adafactor": ["optimizer.name=adafactor", "optimizer.lr=0.01"],
    "scaled": ["optimizer.name=adamw-scaled", "optimizer.lr=0.02"],
    "float16": ["precision.param=float16"],
    "deterministic": ["deterministic=true"],
    "dropout": ["model.dropout_rate=0.1"],
    "evaluated": ["evaluation.every_steps=2", "evaluation.batches=2", "steps=5"],
    "scored": [
        "evaluation.every_steps=2", "evaluation.batches=2", "steps=5", "evaluation.rouge=true",
    ],
    "patient": [
        "evaluation.every_steps=1", "evaluation.patience=2", "evaluation.batches=2",
        "optimizer.lr=50", "grad_clip=0",
        "steps=20", "optimizer.schedule=constant", "optimizer.warmup_steps=0",
    ],
    "best exported": [
        "evaluation.every_steps=1", "evaluation.patience=2", "evaluation.batches=2",
        "optimizer.lr=50", "optimizer.schedule=constant", "optimizer.warmup_steps=0", "grad_clip=0",
        "steps=20", "checkpoint.keep_last=1",
        "checkpoint.at_end=true", "checkpoint.export=true", "checkpoint.every_steps=1",
    ],
    "exported": ["checkpoint.export=true"],
    "chunked": ["loss=chunked"],
    "by the clock": ["checkpoint.every_minutes=0.000001", "checkpoint.keep_last=9"],
}  # fmt: skip


# Two files that `main` writes; an epoch of the 20 rows is three steps.
EPOCHS = [
    "steps=0", "epochs=2", "data.task=pairs", "data.limit=20", "data.source_prefix=summarize: ",
    "checkpoint.every_epochs=1", "checkpoint.keep_last=9",
    "evaluation.every_epochs=1", "evaluation.batches=2",
]  # fmt: skip


def settings_of(*sets: str) -> TrainingSettings:
    small = [
        "model.d_model=16", "model.d_ff=24", "model.num_layers=1", "model.num_decoder_layers=1",
        "model.num_heads=2", "model.d_kv=8", "batch_size=4", "steps=4", "metrics.every_steps=1",
        "evaluation.batches=0", "checkpoint.every_steps=0", "checkpoint.at_end=false",
    ]  # fmt: skip
    return load_settings({}, [*small, *sets])


def new_folder(ranks: Ranks) -> Path:
    """An empty directory that all ranks share."""
    folder: list = [tempfile.mkdtemp() if ranks.is_first else None]
    dist.broadcast_object_list(folder)
    return Path(folder[0])


def run(ranks: Ranks, *sets: str, folder: Path | None = None) -> dict:
    """One training in `folder`, or a new one."""
    paths = TaskPaths(folder or new_folder(ranks))
    printed, settings = io.StringIO(), settings_of(*sets)
    if settings.deterministic:
        prepare(settings.debug, paths, deterministic=True)
    with contextlib.redirect_stdout(printed):
        status = fsdp_t5.train(settings, paths, ranks)
    torch.use_deterministic_algorithms(False)
    dist.barrier()
    return {
        "status": status,
        "lines": list(read_json_lines(paths.metrics)),
        "printed": printed.getvalue(),
        "files": sorted(
            p.relative_to(paths.dir).as_posix() for p in paths.dir.rglob("*") if p.is_file()
        ),
        "dir": str(paths.dir),
    }


class HostReads(TorchDispatchMode):
    """Counts what makes a host wait for a GPU: reading a number out of a tensor."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "_local_scalar_dense" in str(function):
            self.count += 1
        return function(*args, **(kwargs or {}))


def host_reads(ranks: Ranks, *sets: str) -> list[int]:
    """Distinct numbers of reads in the trainer's own steps between two logged ones."""
    marks: list[int] = []
    reads = HostReads()
    original = fsdp_t5.seed_step

    def marking(*arguments: int) -> None:
        marks.append(reads.count)
        original(*arguments)

    fsdp_t5.seed_step = marking
    with tempfile.TemporaryDirectory() as folder, reads:
        settings = settings_of("steps=6", "metrics.every_steps=6", *sets)
        fsdp_t5.train(settings, TaskPaths(Path(folder)), ranks)
    fsdp_t5.seed_step = original
    return sorted({b - a for a, b in itertools.pairwise(marks[1:])})


def local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def not_finite(ranks: Ranks, policy: str, *sets: str) -> dict:
    """Rank 1's loss becomes infinite in step 3; the weights before and after that step."""
    seen: list[list[torch.Tensor]] = []
    original = fsdp_t5.token_loss_sum
    calls = 0

    def poisoned(model: torch.nn.Module, batch: Batch, how: str) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls in (3, 4):
            seen.append([local(p).detach().clone() for p in model.parameters()])
        loss = original(model, batch, how)
        return loss * math.inf if calls == 3 and ranks.rank == 1 else loss

    fsdp_t5.token_loss_sum = poisoned
    message, result = "no error", {}
    try:
        result = run(ranks, "steps=5", f"non_finite={policy}", *sets)
    except FsdpkitError as error:
        message = str(error)
    fsdp_t5.token_loss_sum = original
    unchanged = len(seen) < 2 or all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
    return {"message": message, "weights unchanged": unchanged, **result}


def changed(ranks: Ranks, *sets: str) -> dict:
    """Two steps, then four with other settings in the same directory: what is said."""
    folder = new_folder(ranks)
    run(ranks, "steps=2", "checkpoint.at_end=true", folder=folder)
    try:
        return run(ranks, *sets, folder=folder)
    except FsdpkitError as error:
        return {"message": str(error)}


def write_csv(path: Path, rows: int) -> str:
    lines = (f"count to {i}, {i} for short" for i in range(rows))
    path.write_text("source,target\n" + "".join(f'"{line}",{line[:9]}\n' for line in lines))
    return str(path)


def epochs(ranks: Ranks) -> list[str]:
    """Settings of a run over epochs of one file, evaluated on another."""
    folder: list = [tempfile.mkdtemp() if ranks.is_first else None]
    dist.broadcast_object_list(folder)
    sources = [Path(folder[0]) / name for name in ("train.csv", "other.csv")]
    if ranks.is_first:
        for path in sources:
            write_csv(path, 30)
    dist.barrier()
    return [*EPOCHS, f"data.source={sources[0]}", f"data.held_out_source={sources[1]}"]


def main(ranks: Ranks, folder: Path) -> dict:
    docstrings = python_docs.docstrings  # half a second of parsing that no scenario changes
    vars(python_docs).update(docstrings=functools.cache(lambda: [*docstrings()]))
    found: dict = {name: run(ranks, *sets) for name, sets in SCENARIOS.items()}
    found["epochs"] = run(ranks, *epochs(ranks))
    found["host reads"] = host_reads(ranks)
    found["host reads, fsdp1"] = host_reads(ranks, "sharding.engine=fsdp1")
    for policy in ("stop", "skip"):
        found[f"not finite, {policy}"] = not_finite(ranks, policy)
    meant = 'checkpoint.may_differ=["data", "seed"]'
    found["other seed"] = changed(ranks, "seed=43")
    found["other data"] = changed(ranks, "data.held_out=0.25")
    found["both, as meant"] = changed(ranks, "seed=43", "data.held_out=0.25", meant)
    found["other batch"] = changed(ranks, "batch_size=2")
    return found
