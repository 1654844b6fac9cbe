"""Lightning's Trainer in a run: progress, heartbeat, stop and resume, by one line.

    from fsdpkit.script.lightning import attach

    trainer = attach(Trainer(max_epochs=10, …))
    trainer.fit(model, loader)

It is for `lightning` and `pytorch_lightning`, whichever made the trainer. What the trainer saves,
by a ModelCheckpoint of the script's or because somebody asked, can be gone on from: a job that
Slurm queues again continues after the newest whole checkpoint, at the same place in the epoch.
A run that is to stop saves after the same step on every rank, and
the process ends with `fsdpkit.STOPPED` where `fit` would have returned. Where fsdpkit did not start
the script, `attach` changes nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import signal
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from fsdpkit.errors import STOPPED_EARLY, UsageError
from fsdpkit.runs.heartbeat import HeartbeatFile, Phase, own_heart
from fsdpkit.runs.layout import LIGHTNING
from fsdpkit.script.log import log
from fsdpkit.script.random_states import random_state, set_random_state
from fsdpkit.script.saving import Wishes, in_a_run, prune_requested, saving, where_to_go_on
from fsdpkit.script.stopping import from_all, task_dir

AnyTrainer = TypeVar("AnyTrainer")
_PREFIX = "checkpoint-"
_PACKAGES = ("lightning", "pytorch_lightning")
_EVALUATION = frozenset({"val_loss", "val/loss", "valid_loss", "validation_loss"})
_NO_NUMBERS = frozenset({"step", "time_s"})


def attach(trainer: AnyTrainer) -> AnyTrainer:
    """Make a Trainer of Lightning part of the run: progress, heartbeat, stop and resume.

    Call it before `fit`, on every rank. What was asked for is saved to `lightning/` in
    `task_dir()`, as is what a ModelCheckpoint without `dirpath` saves. `fit` continues after the
    newest whole checkpoint, and ends the process with `fsdpkit.STOPPED` when the run is to stop.

    Args:
        trainer: A `Trainer` of `lightning` or `pytorch_lightning`.

    Returns:
        The same trainer; unchanged where fsdpkit did not start the script.

    Raises:
        UsageError: The trainer knows of another number of ranks than the run has, takes them from
            Slurm, which started none of them, or writes checkpoints behind `save_checkpoint`.
    """
    if in_a_run():
        _Attached(trainer)
    return trainer


class _Attached:
    """What stands before three methods of a trainer."""

    def __init__(self, trainer: Any) -> None:
        _refuse_unfit(trainer)
        self.trainer, self.output = trainer, task_dir() / LIGHTNING
        self.fitted = False
        hooks = type("RunCallback", (RunCallback, _callback_class(trainer)), {})
        self.callback: RunCallback = hooks(self.output)
        trainer.callbacks.append(self.callback)
        for checkpoints in _model_checkpoints(trainer):
            checkpoints.dirpath = checkpoints.dirpath or str(self.output)
        self._fit, self._save = trainer.fit, trainer.save_checkpoint
        trainer.fit, trainer.save_checkpoint = self.fit, self.save_checkpoint

    def fit(self, *args: Any, **keys: Any) -> Any:
        """The trainer's, from the newest checkpoint of the run if there is one.

        `ckpt_path` is where the run begins; what follows `fit` is not run when it is to stop.
        """
        call = inspect.signature(self._fit).bind(*args, **keys)
        if not self.fitted:
            self.fitted = True
            if (found := self._newest(call.arguments.get("model"))) is not None:
                call.arguments["ckpt_path"] = str(found)
        self.callback.handle_signals_as(signal.getsignal(signal.SIGTERM))
        result = self._fit(*call.args, **call.kwargs)
        if self.callback.stopped:
            sys.exit(STOPPED_EARLY)
        return result

    def _newest(self, model: Any) -> Path | None:
        if self.trainer.world_size > 1:  # so that ranks can be told what the first of them found
            self.trainer.strategy.connect(model)
            self.trainer.strategy.setup_environment()
        saved_at = [
            Path(checkpoints.dirpath)
            for checkpoints in _model_checkpoints(self.trainer)
            if "://" not in str(checkpoints.dirpath)
        ]
        return where_to_go_on(self.output, *saved_at)

    def save_checkpoint(
        self, filepath: Any, weights_only: bool | None = None, *args: Any, **keys: Any
    ) -> None:
        """The trainer's; what can be gone on from is marked as whole."""
        if weights_only or "://" in str(filepath) or self.callback.cut_short:
            self._save(filepath, weights_only or False, *args, **keys)
            return
        with self.callback.in_phase("saving"), saving(Path(filepath), self.trainer.global_step):
            self._save(filepath, False, *args, **keys)
        self.callback.saved_step = self.trainer.global_step


class RunCallback:
    """What `attach` adds to a trainer; it goes last, so that it knows what others saved."""

    def __init__(self, output: Path) -> None:
        self.stopped = False
        self.cut_short = False
        """Stopped within an epoch, of which Lightning then says that it is over: what is saved from
        then on would go on with the next one."""
        self.saved_step: int | None = None
        self._output = output
        self._wishes = Wishes()
        self._step = 0
        self._planned: int | None = None
        self._known: dict[str, Any] = {}  # metrics that were logged, by name
        self._loaded: dict[str, Any] | None = None
        self._on_sigterm: Any = None
        self._heart: HeartbeatFile | None = None
        with contextlib.suppress(OSError):
            self._heart = own_heart()

    def handle_signals_as(self, handler: Any) -> None:
        """Slurm warns by SIGTERM, which the agents turn into a request to stop; Lightning's own
        handler would end the training there and then, without a checkpoint."""
        self._on_sigterm = handler

    @contextlib.contextmanager
    def in_phase(self, phase: Phase) -> Iterator[None]:
        self._beat(phase)
        try:
            yield
        finally:
            self._beat("training")

    # What Lightning calls, in the order of a run.

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._beat("starting")

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        self._silence_lightning()
        self._beat("evaluating")

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self._loaded = checkpoint.get("fsdpkit")

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["fsdpkit"] = _position()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._silence_lightning()
        self._step = trainer.global_step
        planned = trainer.estimated_stepping_batches
        if isinstance(planned, int) and planned > 0:
            self._planned = planned
        if self._loaded is not None:
            _restore(trainer, self._loaded)
            self._loaded = None
        self._beat("training")

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        before, self._step = self._step, trainer.global_step
        self._beat("training")
        if self._step == before:  # gradients are accumulated
            return
        every = trainer.log_every_n_steps
        if every and self._step // every != before // every:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            self._log(trainer, {} if loss is None else {"loss": loss})
        asked = self._wishes.asked()  # after the last step, too: all ranks ask equally often
        stop = asked.stop and (self._planned is None or self._step < self._planned)
        if (stop or asked.save) and self.saved_step != self._step:
            trainer.save_checkpoint(self._output / f"{_PREFIX}{self._step}.ckpt")
            prune_requested(self._output, _PREFIX)
        if stop and not self.stopped:
            self.stopped = trainer.should_stop = True
            self.cut_short = not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._known.update(trainer.callback_metrics)
        self._beat("evaluating")

    def on_validation_batch_end(self, *_: Any) -> None:
        self._beat("evaluating")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._log(trainer, {})
        self._beat("training")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._log(trainer, {})
        self._beat("training")
        if self.stopped and not self.cut_short:  # once more, with what the validation changed
            trainer.save_checkpoint(self._output / f"{_PREFIX}{self._step}-epoch.ckpt")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._beat("ending")

    def on_test_batch_end(self, *_: Any) -> None:
        self._beat("evaluating")

    def on_predict_batch_end(self, *_: Any) -> None:
        self._beat("evaluating")

    # What these need.

    def _log(self, trainer: Any, numbers: dict[str, Any]) -> None:
        """A line of what has been measured since the last one; no number is read from a GPU."""
        found = dict(trainer.callback_metrics)
        new = {name: value for name, value in found.items() if self._known.get(name) is not value}
        self._known.update(found)
        named = {_name(name): value for name, value in new.items() if name not in _NO_NUMBERS}
        if not {**numbers, **named}:
            return
        about: dict[str, Any] = {}
        if self._planned is not None:
            about["planned_steps"] = self._planned
        if trainer.optimizers:
            about["lr"] = trainer.optimizers[0].param_groups[0]["lr"]
        log(trainer.global_step, **{**about, **numbers, **named})

    def _silence_lightning(self) -> None:
        if self._on_sigterm is not None and signal.getsignal(signal.SIGTERM) != self._on_sigterm:
            with contextlib.suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGTERM, self._on_sigterm)

    def _beat(self, phase: Phase) -> None:
        if self._heart is not None:
            self._heart.beat(self._step, phase)


def _name(metric: str) -> str:
    """As `status` and `report` call it."""
    return "eval_loss" if metric in _EVALUATION else metric


def _refuse_unfit(trainer: Any) -> None:
    strategy = trainer.strategy
    if type(getattr(strategy, "cluster_environment", None)).__name__ == "SLURMEnvironment":
        raise UsageError(
            "this Trainer takes its ranks from Slurm, but fsdpkit's agents have started them: "
            "leave SLURMEnvironment out of its plugins"
        )
    wanted = int(os.environ.get("WORLD_SIZE", "1"))
    if trainer.world_size != wanted:
        nodes = os.environ.get("GROUP_WORLD_SIZE", "1")
        raise UsageError(
            f"this is one of {wanted} ranks, but its Trainer knows of {trainer.world_size}: it "
            f"needs devices={os.environ.get('LOCAL_WORLD_SIZE', wanted)}, num_nodes={nodes} "
            "($LOCAL_WORLD_SIZE, $GROUP_WORLD_SIZE)"
        )
    if type(getattr(strategy, "checkpoint_io", None)).__name__ == "AsyncCheckpointIO":
        raise UsageError(
            "AsyncCheckpointIO writes after save_checkpoint has returned, when nobody knows "
            "whether the checkpoint is whole: leave it out of the Trainer's plugins"
        )


def _callback_class(trainer: Any) -> type:
    """Callback of the package that the trainer is from."""
    for parent in type(trainer).__mro__:
        package = parent.__module__.partition(".")[0]
        if package in _PACKAGES:
            where = "lightning.pytorch" if package == "lightning" else package
            found: type = importlib.import_module(where).Callback
            return found
    raise UsageError(f"{type(trainer).__name__} is no Trainer of Lightning's")


def _model_checkpoints(trainer: Any) -> list[Any]:
    return [callback for callback in trainer.callbacks if hasattr(callback, "dirpath")]


def _position() -> dict[str, Any]:
    """What a checkpoint keeps beside Lightning's count of batches: all ranks' random states; to be
    called on all of them."""
    return {"random": from_all(random_state())}


def _restore(trainer: Any, saved: dict[str, Any]) -> None:
    """As training is about to begin: put data and random numbers where they were.

    By itself Lightning begins the epoch's data anew, so that a run which was interrupted sees some
    rows twice and others never. A shuffled epoch is the same again where its order is drawn from
    the number of the epoch, as Lightning's sampler for several ranks does; one rank's RandomSampler
    draws a new one.

    A loader draws a number as it begins an epoch: after a checkpoint between two epochs, before one
    within an epoch.
    """
    states = saved.get("random")
    own = states[trainer.global_rank] if states and len(states) == trainer.world_size else None
    done = _batches_done(trainer)
    if own is not None and not done:
        set_random_state(own)
    _advance_data(trainer, done)
    if own is not None and done:
        set_random_state(own)


def _batches_done(trainer: Any) -> int:
    """Of the epoch that goes on; 0 if one is to begin."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    done = int(progress.current.ready)
    return 0 if progress.is_last_batch or done >= trainer.num_training_batches else done


def _advance_data(trainer: Any, done: int) -> None:
    """Begin the epoch's data behind the batches that are done."""
    loop = trainer.fit_loop
    fetcher = loop._data_fetcher
    if fetcher is None:
        return
    loaders = list(fetcher.combined_loader.flattened)
    if all(hasattr(loader, "load_state_dict") for loader in loaders):
        return  # Lightning has told the loaders
    for loader in loaders:
        _set_epoch(loader, loop.epoch_progress.current.processed)
    by_index = done > 0 and all(_skip(loader, done) for loader in loaders)
    iter(fetcher)  # the iterator that there is may have drawn from an earlier epoch
    if done and not by_index:
        for _ in range(done):
            next(fetcher)
        fetcher.fetched = 0  # the loop adds what is done itself


def _set_epoch(loader: Any, epoch: int) -> None:
    for holder in (loader, getattr(loader, "batch_sampler", None)):
        set_epoch = getattr(getattr(holder, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


def _skip(loader: Any, batches: int) -> bool:
    """Leave out as many batches without reading them; False where the loader cannot."""
    from torch.utils.data import BatchSampler, DataLoader, IterableDataset

    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    sampler = loader.batch_sampler
    if type(sampler) is not BatchSampler or isinstance(sampler.sampler, _Rest):
        return False
    sampler.sampler = _Rest(sampler.sampler, batches * sampler.batch_size)
    return True


class _Rest:
    """A sampler's indices, without the first ones when it is read for the first time."""

    def __init__(self, sampler: Any, skipped: int) -> None:
        self._sampler, self._skipped = sampler, skipped

    def __iter__(self) -> Iterator[int]:
        skipped, self._skipped = self._skipped, 0
        return islice(iter(self._sampler), skipped, None)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:  # set_epoch
        return getattr(self._sampler, name)
