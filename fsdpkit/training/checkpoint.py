"""Checkpoints that either exist in full or not at all, and resuming from the newest.

Sharded, through `torch.distributed.checkpoint`: each rank writes what it holds, and another world
size or engine can read it. A checkpoint is written under a name with a leading dot and renamed when
everything is in place. Saving and loading are collectives: call them on every rank.

    checkpoints/step-<s>/progress.json      Progress: where the run stood
    checkpoints/step-<s>/.metadata, *.distcp  weights under plain names, optimizer state
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fsdpkit.errors import StorageError
from fsdpkit.runs.layout import TaskPaths, write_atomically
from fsdpkit.training.distributed import Ranks

_COMPLETE = re.compile(r"step-(\d+)")


@dataclass
class Progress:
    """How far a run has come. With the seed it also determines data order and random numbers."""

    step: int = 0  # optimizer steps done
    epoch: int = 0
    position: int = 0  # samples of this epoch that all ranks together have consumed
    group: int = 0  # samples in a global batch when the epoch began; decides its order in buckets
    tokens: int = 0  # target tokens trained on
    skipped: int = 0  # steps left out because their gradient was not finite
    best_loss: float | None = None  # lowest held-out loss so far
    worse: int = 0  # evaluations since then
    loss_scale: dict[str, Any] = field(default_factory=dict)  # float16's, as its scaler gives it


def checkpoints(paths: TaskPaths) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = [
        (int(match[1]), path)
        for path in paths.checkpoints.glob("step-*")
        if (match := _COMPLETE.fullmatch(path.name))
        and (path / ".metadata").exists()
        and (path / "progress.json").exists()
    ]
    return [path for _, path in sorted(found)]


def save(
    paths: TaskPaths,
    ranks: Ranks,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    *,
    keep_last: int,
) -> Path:
    """Write `checkpoints/step-<progress.step>`, remove all but the newest `keep_last`.

    Raises StorageError when the directory cannot be written; older checkpoints then still stand.
    """
    # Imported on use: a second of start-up that a run does not need before its first checkpoint.
    from torch.distributed.checkpoint import state_dict_saver
    from torch.distributed.checkpoint.api import CheckpointException

    final = paths.checkpoints / f"step-{progress.step}"
    temporary = paths.checkpoints / f".{final.name}.tmp"
    try:
        if ranks.is_first:
            # What an attempt left that was killed while saving, perhaps at another step.
            for leftover in paths.checkpoints.glob(".step-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            temporary.mkdir(parents=True)
        dist.barrier()
        state_dict_saver.save(_state(model, optimizer), checkpoint_id=temporary)
        if ranks.is_first:
            write_atomically(temporary / "progress.json", json.dumps(asdict(progress)))
            if final.exists():
                _discard(final)
            os.rename(temporary, final)
            for old in checkpoints(paths)[:-keep_last]:
                _discard(old)
    except (OSError, CheckpointException) as error:
        raise StorageError(f"Checkpoint {final} could not be written: {_cause(error)}.") from error
    dist.barrier()
    return final


def resume(
    paths: TaskPaths, ranks: Ranks, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Progress | None:
    """Load the newest complete checkpoint into `model` and `optimizer`; None if there is none.

    Raises StorageError when it cannot be read or belongs to another model.
    """
    chosen: list[Any] = [None]
    if ranks.is_first:  # one rank looks: a shared file system may show nodes different listings
        found = checkpoints(paths)
        chosen = [str(found[-1]) if found else None]
    dist.broadcast_object_list(chosen)
    if chosen[0] is None:
        return None

    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import (
        set_model_state_dict,
        set_optimizer_state_dict,
    )

    path = Path(chosen[0])
    state = _state(model, optimizer)
    try:
        state_dict_loader.load(state, checkpoint_id=path)
        progress = Progress(**json.loads((path / "progress.json").read_text()))
    except (OSError, ValueError, TypeError, RuntimeError, CheckpointException) as error:
        raise StorageError(
            f"Checkpoint {path} could not be loaded: {_cause(error)}. "
            "Does it belong to another model? Then move it away, or start another run."
        ) from error
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    return progress


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict,
        get_optimizer_state_dict,
    )

    return {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }


def _cause(error: BaseException) -> str:
    """What went wrong, in a line; a CheckpointException's own text holds every rank's traceback."""
    failures = getattr(error, "failures", None)
    if not failures:
        return str(error)
    return "; ".join(dict.fromkeys(str(cause).rstrip(".") for cause, _ in failures.values()))


def _discard(path: Path) -> None:
    """Remove a checkpoint such that a reader never takes a half-removed one for whole."""
    doomed = path.with_name(f".{path.name}.old")
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
