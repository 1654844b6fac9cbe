"""Saving and resuming T5 v1.1-large on a GPU: bytes, seconds, and whether it goes on exactly.

With dropout, in bfloat16, and with deterministic operations throughout, so that two runs of the
same steps can be compared bit by bit; undisturbed steps are measured in the same mode.
"""

from __future__ import annotations

import functools
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.gpu_parts.part import Part, Row
from benchmarks.gpu_parts.saving import Cost, Loop
from benchmarks.gpu_parts.steps import best_words
from benchmarks.gpu_parts.trial import Plan, Trial, attention_of, plan, whole
from fsdpkit.config.training import CheckpointSettings
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.checkpoint import Checkpointer


@dataclass
class Run:
    """The trial that is saved, made when it is first asked for."""

    part: Part
    task: Plan
    directory: Path
    undisturbed_s: float = 0.0

    @functools.cached_property
    def loop(self) -> Loop:
        loop = Loop(Trial(self.task, self.part.ranks), self.part.device, 2 if self.part.dry else 16)
        loop.undisturbed(3)
        self.undisturbed_s = statistics.median(loop.undisturbed(6).steps_s)
        return loop

    @functools.cached_property
    def saves(self) -> Checkpointer:
        return checkpointer(self.directory / "run", self.loop.trial, background=True)

    @functools.cached_property
    def group(self) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.new_group(backend="gloo")
        return group

    def row(self, cost: Cost) -> Row:
        slow = statistics.fmean(cost.steps_s) / self.undisturbed_s if cost.steps_s else None
        parameters = sum(p.numel() for p in self.loop.trial.model.parameters())
        return {
            "bytes": cost.bytes,
            "bytes_per_parameter": cost.bytes / parameters,
            "blocked_s": cost.blocked_s,
            "written_s": cost.written_s,
            "slowdown": slow,
            "undisturbed_s": self.undisturbed_s,
            "host_peak_bytes": cost.host_peak_bytes,
            "steps": len(cost.steps_s),
            "attention": attention_of(self.task, self.part.device),
        }


def run(part: Part) -> None:
    words = (*best_words(part.context), "model.dropout_rate=0.1", "compile=false")
    task = plan("t5-v1.1-large", *words, dry=part.dry)
    if task.settings.model.attention == "flex":  # without dropout, and not deterministic
        task = task.and_("model.attention=sdpa")
    torch.use_deterministic_algorithms(True)
    # Costs time, and no result depends on it.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    of = Run(part, task, part.scratch)
    part.measure("background, first", functools.partial(in_background, of), needs_s=40)
    row = part.measure("background", functools.partial(in_background, of), needs_s=20)
    if row["status"] == "measured":
        part.measure("resume", functools.partial(resume, of), needs_s=40)
    part.measure("waiting", functools.partial(waiting, of), needs_s=20)
    for name in ("plain async_save, first", "plain async_save"):
        part.measure(name, functools.partial(plainly, of), needs_s=20)


def checkpointer(directory: Path, trial: Trial, *, background: bool) -> Checkpointer:
    settings = CheckpointSettings(background=background, keep_last=1)
    return Checkpointer(TaskPaths(directory), trial.ranks, trial.model, trial.optimizer, settings)


def in_background(of: Run) -> Row:
    """The copy is made in pinned memory: the first save allocates it, later ones use it again."""
    of.loop.undisturbed(1)  # a step is saved once
    of.loop.losses.clear()
    return of.row(of.loop.save(of.saves))


def waiting(of: Run) -> Row:
    of.loop.undisturbed(1)
    saves = checkpointer(of.directory / "waiting", of.loop.trial, background=False)
    cost = of.loop.save(saves)
    saves.close()
    return of.row(cost)


def plainly(of: Run) -> Row:
    of.loop.undisturbed(1)
    return of.row(of.loop.save_plainly(of.directory / "plain", of.group, background=True))


def resume(of: Run) -> Row:
    """From other weights, another optimizer's state and other random numbers to those of the save;
    then the same steps again."""
    first = of.loop
    other = Trial(of.task.and_("seed=1"), of.part.ranks)
    other.settings = first.trial.settings
    torch.manual_seed(1)
    began = time.perf_counter()
    progress = checkpointer(of.directory / "run", other, background=True).resume()
    took_s = time.perf_counter() - began
    assert progress is not None
    other.done = progress.step
    again = Loop(other, of.part.device, len(first.batch.source))
    again.undisturbed(len(first.losses))
    losses = [[loss.item() for loss in loop.losses] for loop in (first, again)]
    same_losses = losses[0] == losses[1]
    same_weights = all(
        torch.equal(whole(a.detach()), whole(b.detach()))
        for a, b in zip(first.trial.model.parameters(), other.model.parameters(), strict=True)
    )
    del other, again
    of.part.device.free()
    return {
        "resume_s": took_s,
        "steps": len(losses[0]),
        "same_losses": same_losses,
        "same_weights": same_weights,
        "passed": same_losses and same_weights and bool(losses[0]),
    }
