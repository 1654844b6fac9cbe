"""The ranks of checkpoints.py: `torchrun … checkpoint_ranks.py save|resume DIRECTORY ROUNDS STEPS`.

Each writes `<what>-<world size>-rank-<n>.json` into DIRECTORY: lists of samples.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.checkpoint_loop import Cost, Loop
from benchmarks.gpu_parts.device import Device
from benchmarks.gpu_parts.trial import Lengths, Plan, Trial
from fsdpkit.config.training import CheckpointSettings
from fsdpkit.runs.checkpoints import checkpoints_in, problems_of
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.checkpoint import Checkpointer
from fsdpkit.training.distributed import process_group

ON_CPU = (2, Lengths(64, 32))
ON_GPU = (16, Lengths(512, 128))
"""Rows of a batch, and their lengths."""


def main() -> None:
    what, directory, rounds, steps, *words = sys.argv[1:]
    with process_group() as ranks:
        device = Device(ranks.device)
        rows, lengths = ON_GPU if device.on_gpu else ON_CPU
        loop = Loop(Trial(Plan(tuple(words), lengths), ranks), device, rows)
        found: dict[str, Any] = {
            "parameters": sum(p.numel() for p in loop.trial.model.parameters())
        }
        if what == "save":
            found |= save(loop, Path(directory), int(rounds), int(steps))
        else:
            found |= resume(loop, Path(directory), int(rounds))
        name = f"{what}-{ranks.world_size}-rank-{ranks.rank}.json"
        (Path(directory) / name).write_text(json.dumps(found), "utf-8")


def checkpointer(loop: Loop, run: Path, *, background: bool) -> Checkpointer:
    trial = loop.trial
    settings = CheckpointSettings(background=background, keep_last=1)
    return Checkpointer(TaskPaths(run), trial.ranks, trial.model, trial.optimizer, settings)


def save(loop: Loop, directory: Path, rounds: int, steps: int) -> dict[str, list[dict[str, Any]]]:
    """Samples of each way to save; undisturbed steps before each, the order reversed each round.

    A round before the first, not recorded, makes what later ones find: process groups, directories,
    the optimizer's state.
    """
    ours = {
        kind: checkpointer(loop, directory / kind, background=kind == "background")
        for kind in ("background", "waiting")
    }
    group = dist.new_group(backend="gloo")
    plainly = directory / "plain"
    ways: dict[str, Callable[[], Cost]] = {
        "background": lambda: loop.save(ours["background"]),
        "plain_background": lambda: loop.save_plainly(plainly, group, True),
        "waiting": lambda: loop.save(ours["waiting"]),
        "plain_waiting": lambda: loop.save_plainly(plainly, group, False),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        order = list(ways) if round_ % 2 == 0 else list(reversed(ways))
        for name in order:
            before = loop.undisturbed(steps)
            cost = ways[name]()
            if round_:
                found[name].append({"before": asdict(before), **asdict(cost)})
    for saves in ours.values():
        saves.close()
    return found


def resume(loop: Loop, directory: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds to read every byte in one process, and to resume, which does so on all ranks."""
    run = directory / "background"
    verified, resumed = [], []
    for _ in range(rounds):
        newest = checkpoints_in(TaskPaths(run).checkpoints)[-1]
        if loop.trial.ranks.is_first:
            forget(newest)
            verified.append(timed(partial(problems_of, newest)))
            forget(newest)
        dist.barrier()
        saves = checkpointer(loop, run, background=True)
        resumed.append(timed(saves.resume))
        saves.close()
    return {"verify_s": verified, "resume_s": resumed}


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def forget(checkpoint: Path) -> None:
    """Drop its files from the page cache, so that they are read from where they are kept."""
    for file in checkpoint.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


if __name__ == "__main__":
    main()
