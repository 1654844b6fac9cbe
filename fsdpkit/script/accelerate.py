"""An Accelerate loop in a run: progress, heartbeat, stop and resume.

    from fsdpkit.script.accelerate import attach

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    run = attach(accelerator)                  # loads the newest whole checkpoint of the run
    step = run.steps_done
    for epoch in range(epochs):
        for batch in run.batches(loader, epoch):
            …
            step += 1
            accelerator.log({"loss": loss}, step=step)
            run.after_step(step, save=step % 100 == 0)

`batches` leaves out what the checkpoint has done. `after_step` saves by `accelerator.save_state`,
because the script or somebody else asked for it, and ends the process with `fsdpkit.STOPPED` when
the run is to stop. Where fsdpkit did not start the script, it only saves when the script asks.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from accelerate.tracking import GeneralTracker

from fsdpkit.errors import STOPPED_EARLY, UsageError
from fsdpkit.runs.heartbeat import HeartbeatFile, Phase, own_heart
from fsdpkit.runs.layout import ACCELERATE
from fsdpkit.script.checkpoints import keep_newest, step_of
from fsdpkit.script.log import log
from fsdpkit.script.random_states import random_state, set_random_state
from fsdpkit.script.saving import Wishes, in_a_run, is_first, saving, where_to_go_on
from fsdpkit.script.stopping import task_dir

if TYPE_CHECKING:
    from accelerate import Accelerator


def attach(accelerator: Accelerator, keep: int = 2) -> AttachedRun:
    """Make an Accelerate loop part of the run: progress, heartbeat, stop and resume.

    Call it after `accelerator.prepare`, on every rank: it loads the newest whole checkpoint of the
    run, and adds a tracker by which `accelerator.log` reaches the run.

    Args:
        accelerator: The loop's `accelerate.Accelerator`.
        keep: Checkpoints that stay; older ones are removed.

    Returns:
        The run's side of the loop: `batches` and `after_step`.

    Raises:
        UsageError: The Accelerator knows of another number of ranks than the run has, so that each
            would train alone and overwrite the others' checkpoints.
    """
    wanted = int(os.environ.get("WORLD_SIZE", "1"))
    if in_a_run() and accelerator.num_processes != wanted:
        raise UsageError(
            f"this is one of {wanted} ranks, but its Accelerator knows of "
            f"{accelerator.num_processes}: on CPUs it needs Accelerator(cpu=True)"
        )
    return AttachedRun(accelerator, keep)


class RunTracker(GeneralTracker):  # type: ignore[misc]
    """What `accelerator.log` tells the run; `attach` adds one where `log_with` has none."""

    name = "fsdpkit"
    requires_logging_directory = False
    main_process_only = False  # each rank's call is its heartbeat

    @property
    def tracker(self) -> RunTracker:
        return self

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """The run's record has the command and all settings already."""

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """As `fsdpkit.log`; without a step nobody knows where in the run it belongs."""
        numbers = {name: value for name, value in values.items() if name not in ("step", "time_s")}
        step = values.get("step") if step is None else step
        if step is not None:
            log(step, **numbers)


class AttachedRun:
    """An Accelerate loop's connection to its run; `attach` makes it.

    Args:
        accelerator: The loop's `accelerate.Accelerator`.
        keep: Checkpoints that stay; older ones are removed.
    """

    def __init__(self, accelerator: Accelerator, keep: int) -> None:
        self.steps_done = 0
        """By the checkpoint that was loaded; 0 where the run begins."""
        self._random: dict[str, Any] | None = None  # as it was when the checkpoint was made
        self._accelerator, self._keep = accelerator, keep
        self.directory = task_dir() / ACCELERATE
        """Where its checkpoints are."""
        self._wishes: Wishes | None = None
        self._heart: HeartbeatFile | None = None
        if not any(isinstance(tracker, RunTracker) for tracker in _trackers(accelerator)):
            accelerator.trackers.append(RunTracker())
        self._order = _Order()
        if not in_a_run():
            return
        accelerator.register_for_checkpointing(self._order)
        self._wishes = Wishes()
        with contextlib.suppress(OSError):
            self._heart = own_heart()
        if (found := where_to_go_on(self.directory)) is not None:
            accelerator.load_state(str(found))
            self.steps_done = step_of(found) or 0
            self._random = random_state()

    def batches(self, loader: Any, epoch: int) -> Iterator[Any]:
        """An epoch's batches, without those that the loaded checkpoint has done.

        Call it on all ranks, once an epoch. Of an epoch that was complete there are none. A
        RandomSampler's order is the one that it had before the interruption.

        Args:
            loader: A prepared DataLoader with a length; every `gradient_accumulation_steps` of its
                batches are one step.
            epoch: Index of the epoch, from 0.

        Yields:
            The loader's batches.
        """
        from accelerate import skip_first_batches

        a_step = self._accelerator.gradient_accumulation_steps
        steps = math.ceil(len(loader) / a_step)
        done = self.steps_done - epoch * steps
        if done >= steps:
            return
        loader.set_epoch(epoch)
        self._order.draw(loader, epoch)
        rest = skip_first_batches(loader, done * a_step) if done > 0 else loader
        for number, batch in enumerate(rest):
            if number == 0 and done > 0 and self._random is not None:
                set_random_state(self._random)  # the loader has drawn from it to begin
            yield batch

    def after_step(self, step: int, *, save: bool = False, last: bool = False) -> None:
        """Save if it is time, and stop if the run is to stop.

        Call it after each optimizer step, on every rank. It saves (`accelerator.save_state`) if
        the script says so or somebody asked (`fsdpkit checkpoint save`). If the run is to stop, it
        saves and ends the process with `fsdpkit.STOPPED`.

        Args:
            step: Steps done since the run began.
            save: Save now.
            last: The loop ends with this step, so a request to stop changes nothing.
        """
        self._beat(step, "training")
        stop = False
        if self._wishes is not None:
            asked = self._wishes.asked()
            stop = asked.stop and not last
            save = save or asked.save or stop
        if save:
            self._save(step)
        if stop:
            sys.exit(STOPPED_EARLY)

    def _save(self, step: int) -> None:
        checkpoint = self.directory / f"checkpoint-{step}"
        self._beat(step, "saving")
        if self._wishes is None:
            self._accelerator.save_state(str(checkpoint))
            return
        with saving(checkpoint, step):
            self._accelerator.save_state(str(checkpoint))
        if is_first():
            keep_newest(self.directory, "checkpoint-", self._keep)
        self._beat(step, "training")

    def _beat(self, step: int, phase: Phase) -> None:
        if self._heart is not None:
            self._heart.beat(step, phase)


class _Order:
    """The order of each epoch's rows, drawn from a seed that a checkpoint keeps."""

    def __init__(self) -> None:
        import torch

        self._seed = int(torch.initial_seed())

    def state_dict(self) -> dict[str, int]:
        return {"seed": self._seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._seed = state["seed"]

    def draw(self, loader: Any, epoch: int) -> None:
        """For a RandomSampler, whose order would depend on all that was drawn before; Accelerate
        gives rank 0's generator to the others."""
        import torch

        holder: Any = getattr(loader, "batch_sampler", None)
        while hasattr(holder, "batch_sampler"):  # Accelerate's, around the loader's own
            holder = holder.batch_sampler
        sampler = getattr(holder, "sampler", None)
        if type(sampler) is torch.utils.data.RandomSampler:
            if sampler.generator is None:
                sampler.generator = torch.Generator()
            sampler.generator.manual_seed((self._seed + epoch) % 2**63)


def _trackers(accelerator: Accelerator) -> list[Any]:
    """Those that are there, and those that `init_trackers` will add."""
    return [*accelerator.trackers, *accelerator.log_with]
