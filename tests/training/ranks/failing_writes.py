"""On two ranks: what a save and a resume tell everybody; then one cannot write its part.

folder: gets the checkpoints.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from fsdpkit.config.training import PrecisionSettings, ShardingSettings
from fsdpkit.errors import StorageError
from fsdpkit.runs.checkpoints import checkpoints_in, problems_of
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.save_requests import answer_to, ask
from fsdpkit.training import checkpoint_files
from fsdpkit.training.checkpoint import Checkpointer
from fsdpkit.training.distributed import Ranks, gather
from fsdpkit.training.progress import Progress
from fsdpkit.training.sharding import shard


def limit_files(ranks: Ranks, size: int) -> None:
    """From now on rank 1 can write no more than `size` bytes to a file."""
    if ranks.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def counted(module: object, name: str) -> Any:
    """Counts the calls of what a module has, which is called all the same."""
    return mock.patch.object(module, name, wraps=getattr(module, name))


def main(ranks: Ranks, folder: Path) -> dict:
    paths = TaskPaths(folder)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    model = shard(model, ShardingSettings(), PrecisionSettings(), ranks, blocks=[torch.nn.Linear])
    optimizer = torch.optim.AdamW(model.parameters())
    saves = Checkpointer(paths, ranks, model, optimizer)
    told_all = counted(dist, "all_gather_object")
    with told_all as to_all, counted(checkpoint_files, "_HarmlessUnpickler") as indexes:
        saves.save(Progress(step=1))
        saves.wait()
        saves = Checkpointer(paths, ranks, model, optimizer)
        saves.resume()
    counts = gather([to_all.call_count, indexes.call_count])
    limit_files(ranks, 2000)
    asked = ask(paths) if ranks.is_first else ""
    saves.save(Progress(step=2))
    messages = []
    with contextlib.suppress(StorageError):
        saves._save.written.result()
    told = answer_to(paths, asked)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        saves.report()
        saves.report()  # is not said twice
    try:
        saves.save(Progress(step=3))
    except StorageError as error:
        messages = gather(str(error))
    left = sorted(os.listdir(paths.checkpoints))
    dist.barrier()
    limit_files(ranks, resource.RLIM_INFINITY)
    saves.save(Progress(step=4))
    saves.close()
    # One failure is made up for by the next save.
    limit_files(ranks, 2000)
    saves.save(Progress(step=5))
    with contextlib.suppress(StorageError):
        saves._save.written.result()
    dist.barrier()
    limit_files(ranks, resource.RLIM_INFINITY)
    saves.save(Progress(step=6))
    saves.close()
    return {
        "counts": counts,
        "messages": messages,
        "said": said.getvalue(),
        "left": left,
        "answer": told and told.problem,
        "after": {p.name: problems_of(p) for p in checkpoints_in(paths.checkpoints)},
    }
