"""Save while training goes on, and go on exactly where a run stopped.

Each rank writes what it holds, through `torch.distributed.checkpoint`; another number of ranks,
another engine or strategy can read it (`fsdpkit.runs.checkpoints` has the files). A save makes a
copy of the shards and returns; the copy is written by a thread with a process group of its own,
summed, synced, described, and only then renamed to `step-<s>`. Whatever happens before that leaves
the older checkpoints as they are. Where training waits (`background = false`) there is neither a
copy nor a thread.

    saves = Checkpointer(paths, ranks, model, optimizer)
    progress = saves.resume() or Progress()
    …
    saves.save(progress)      # in the loop, on every rank
    …
    saves.close()             # all is on disk

Resuming restores weights, optimizer, `state` (a loss scale, a scheduler), progress and, on the same
number of ranks, every rank's random generators. It reads every byte before it believes any: a
checkpoint that is not what was written is refused by name, and the one before it is taken.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from fsdpkit.config.training import CheckpointSettings
from fsdpkit.errors import ConfigError, StorageError
from fsdpkit.runs import checkpoints as files
from fsdpkit.runs.checkpoint_writing import Claim, WrittenFile, abandon, claim, now, prune, publish
from fsdpkit.runs.checkpoints import Best
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.save_requests import SaveAnswer, answer, wish
from fsdpkit.runs.starting_points import starting_point
from fsdpkit.training.best_checkpoint import BestSoFar
from fsdpkit.training.checkpoint_loading import (
    load,
    newest_whole,
    other_order,
    state_to_save,
    versions,
)
from fsdpkit.training.checkpoint_saving import (
    HostCopies,
    SaveUnderWay,
    at_once,
    done,
    in_background,
    write_parts,
)
from fsdpkit.training.distributed import Ranks, on_first, together
from fsdpkit.training.export import HuggingFace
from fsdpkit.training.importing import import_weights
from fsdpkit.training.progress import DataOrder, Progress

WRITE_TIMEOUT = timedelta(hours=1)
"""How long one rank may wait for another's part of a checkpoint to be written."""
EXIT_TIMEOUT_S = 60.0
"""How long a process that failed stays for a checkpoint that is being written."""


class Stateful(Protocol):
    """What has a small state of plain numbers: a loss scaler, a learning-rate scheduler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint that was written, and what it cost. Times are rank 0's, in seconds."""

    path: Path
    bytes: int
    blocked_s: float  # training waited
    written_s: float  # from the call until it was whole

    def __str__(self) -> str:
        return (
            f"checkpoint {self.path}: {self.bytes / 1e6:.1f} MB, training waited "
            f"{self.blocked_s:.2f} s, written after {self.written_s:.2f} s"
        )


class Checkpointer:
    """One run's checkpoints: `resume` from the newest whole one, `save`, `close`.

    `resume`, `save` and `close` are collectives: on all ranks, after the same step. Each rank
    writes its shards (`torch.distributed.checkpoint`); another number of ranks, another engine or
    strategy can read them. Once a checkpoint fits, or there is none, the directory is claimed: a
    process that wrote there before can name no checkpoint any more.

    Args:
        paths: Where the run's files are.
        ranks: From `process_group`.
        model: What `shard` has returned.
        optimizer: Made from that model.
        settings: `[training.checkpoint]`: what to keep, whether to write in the background.
        state: What else is saved and restored, by name: a loss scaler, a scheduler.
        data: From `data_order`. It must be what it was, unless `settings.may_differ` says
            otherwise.
        about: Kept beside the weights for whoever reads the checkpoint; JSON.
        export: What an export of the checkpoint has beside the weights.
    """

    def __init__(
        self,
        paths: TaskPaths,
        ranks: Ranks,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: CheckpointSettings | None = None,
        *,
        state: Mapping[str, Stateful] | None = None,
        data: DataOrder | None = None,
        about: Mapping[str, Any] | None = None,
        export: HuggingFace | None = None,
    ) -> None:
        self.settings = settings or CheckpointSettings()
        self._ranks, self._model, self._optimizer = ranks, model, optimizer
        self._state, self._about, self._export = dict(state or {}), dict(about or {}), export
        self._data = data
        self._paths, self._directory = paths, paths.checkpoints
        self._claim: Claim | None = None
        self._refused: list[Path] = []
        self._newest: int | None = None  # step of the newest checkpoint, as far as we know
        self._best = BestSoFar(self.settings)
        self._group: dist.ProcessGroup | None = None
        self._copies = HostCopies(ranks.device)
        self._save: SaveUnderWay | None = None
        self._pruning: Future[None] = done(None)
        self._finished: list[SavedCheckpoint] = []
        # Whoever steps the optimizer changes what is being copied.
        optimizer.register_step_pre_hook(lambda *_: self._wait_for_copy())
        atexit.register(_let_finish, weakref.ref(self))

    def resume(self) -> Progress | None:
        """Load the newest whole checkpoint, of this run or else of `settings.start`.

        A `start` that another program wrote gives the weights alone.

        Returns:
            How far the checkpoint had come; None without one.

        Raises:
            StorageError: There are checkpoints and none is whole, or new ones could not be written.
            ConfigError: It is of another model, optimizer, format, data or seed, or the settings
                forbid to go on from what is there.
            NotFoundError: `settings.start` has no checkpoint.
        """
        found = self._own()
        progress = self._resume(found)
        self._claim = on_first(self._ranks, lambda: claim(self._directory))
        if (newer := self._own())[-1:] != found[-1:]:  # who wrote here until now was not done yet
            progress = self._resume(newer)
        if self._best.by and (best := self._best_of_own()):
            self._best.value = best[2]
        return progress

    def measured(self, step: int, values: Mapping[str, Any]) -> None:
        """Note what was measured of the weights after a step; their checkpoint will say it.

        Args:
            step: Steps done.
            values: By name; may be a whole line of metrics, of which what is no number is left out.
                An evaluation, whose name begins with `eval_`, must be equal on all ranks. Of other
                metrics rank 0's count.
        """
        self._best.measured(step, values)

    def best_due(self, step: int) -> bool:
        """Whether the weights after a step are the best so far by an evaluation: save them.

        By other metrics only checkpoints that are due anyway are compared.

        Args:
            step: Steps done.

        Returns:
            The same on all ranks.
        """
        return self._best.due(step)

    def best(self) -> tuple[Path, str] | None:
        """The run's best checkpoint; a collective.

        Returns:
            Its path, and what makes it the best, such as `eval_loss 2.31`. None without
            `keep_best`, or when none was measured.
        """
        if self._best.by is None or not (found := self._best_of_own()):
            return None
        path, by, value = found
        return path, f"{by.metric} {value:.6g}"

    def _best_of_own(self) -> tuple[Path, Best, float] | None:
        def look() -> tuple[Path, Best, float] | None:
            found = files.checkpoints_in(self._directory)
            return files.best_of([p for p in found if p not in self._refused], self._best.by)

        return on_first(self._ranks, look)

    def _own(self) -> list[Path]:
        return on_first(self._ranks, lambda: files.checkpoints_in(self._directory))

    def _resume(self, found: list[Path]) -> Progress | None:
        own, start = self._directory, self.settings.start
        if self.settings.resume == "never":
            if found:
                raise ConfigError(
                    f"{own} holds checkpoints of an earlier run, which a new one would mix with "
                    'its own: move them away, or set training.checkpoint.resume = "auto".'
                )
            return None
        if found:
            path, self._refused = newest_whole(found, self._ranks)
            self._newest = files.step_of(path)
            return self._load(path)
        if start is None:
            return None
        # What another run or program wrote; it is read, never changed.
        point = on_first(self._ranks, lambda: starting_point(Path(start)))
        if point.kind == "checkpoints":
            return self._load(newest_whole(point.checkpoints, self._ranks)[0])
        import_weights(point, self._model, self._ranks)
        return Progress()

    def save(self, progress: Progress) -> None:
        """Write `step-<progress.step>`; returns once it is begun, or done without `background`.

        The save before must be done: this one waits for it, and, if that failed, also for itself.
        Does nothing for a step that is saved already.

        Args:
            progress: How far the run has come.

        Raises:
            StorageError: Two in a row could not be written, or this one without `background`; older
                ones then still stand.
        """
        asked = wish(self._paths) if self._ranks.is_first else None
        if progress.step == self._newest:
            if self._save is None:
                answer(self._paths, asked, SaveAnswer(step=progress.step))
            return
        failed = False
        try:
            self.wait()
        except StorageError as error:
            failed = True
            self._ranks.say(f"{error} Trying again.")
        began = time.perf_counter()
        self._pruning.result()  # there is room for one more than are kept
        if self._claim is None:
            self._claim = on_first(self._ranks, lambda: claim(self._directory))
        description = self._describe(progress)
        if self._group is None:
            self._group = dist.new_group(backend="gloo", timeout=WRITE_TIMEOUT)
        state = state_to_save(self._model, self._optimizer, self._ranks)
        copies = self.settings.background
        copy = self._copies.of(state) if copies else done(state)
        write = partial(self._write, self._claim, copy, description, asked)
        written = in_background(write) if copies else at_once(write)
        self._save = SaveUnderWay(copy, written, description, began, best_before=self._best.value)
        self._newest = progress.step
        self._best.saved(description.measured)
        self._save.blocked_s = time.perf_counter() - began
        if failed or not self.settings.background:
            self.wait()

    def _load(self, path: Path) -> Progress:
        description = on_first(self._ranks, lambda: files.describe(path))
        anew = self._data is not None and other_order(
            path, description.data, asdict(self._data), self.settings.may_differ, self._ranks
        )
        load(path, description, self._model, self._optimizer, self._ranks)
        for name, stateful in self._state.items():
            if saved := description.state.get(name):  # empty: it was switched off
                stateful.load_state_dict(saved)
        progress = Progress(**description.progress)
        return replace(progress, position=0, group=0) if anew else progress

    def wait(self) -> None:
        """Wait until what was saved is on disk.

        Raises:
            StorageError: It could not be written.
        """
        if self._save is None:
            return
        save, began = self._save, time.perf_counter()
        try:
            path, size, ended = save.written.result()
        except StorageError as error:
            self._save, self._newest, self._best.value = None, None, save.best_before
            raise StorageError(
                f"The checkpoint of step {save.description.step} could not be written: {error} "
                "Older ones stand."
            ) from None
        save.blocked_s += time.perf_counter() - began
        self._finished.append(SavedCheckpoint(path, size, save.blocked_s, ended - save.began))
        self._save = None
        self._prune(path, save.description.best_by)
        self._copies.trim()

    def _prune(self, newest: Path, by: Best | None) -> None:
        """Begin to remove older checkpoints: of large ones it takes as long as many steps."""
        if self._ranks.is_first and self._claim:
            refused = [path for path in self._refused if path != newest]
            keep_last = self.settings.keep_last
            self._pruning = in_background(partial(prune, self._claim, keep_last, refused, by))

    def report(self, record: Callable[..., None] | None = None) -> None:
        """Say which checkpoints were written since the last call, and what they cost.

        Args:
            record: Called with the same as numbers: `step`, `checkpoint_bytes`, and in seconds
                `checkpoint_blocked_s` and `checkpoint_written_s`. `Metrics.record` fits.
        """
        if (save := self._save) and save.written.done():
            if not (error := save.written.exception()):
                self.wait()
            elif not save.told:
                save.told = True
                self._ranks.say(
                    f"The checkpoint of step {save.description.step} could not be written: {error} "
                    "The run ends if the next one cannot be, either."
                )
        for saved in self._finished:
            self._ranks.say(str(saved))
            if record:
                record(
                    step=files.step_of(saved.path),
                    checkpoint_bytes=saved.bytes,
                    checkpoint_blocked_s=saved.blocked_s,
                    checkpoint_written_s=saved.written_s,
                )
        self._finished.clear()

    def close(self) -> None:
        """Wait for the last checkpoint, and give back the memory of copies.

        Raises:
            StorageError: It could not be written.
        """
        self.wait()
        self._pruning.result()
        self._copies.close()

    def _describe(self, progress: Progress) -> files.Description:
        export = self._export
        return files.Description(
            step=progress.step,
            saved_at=now(),
            world_size=self._ranks.world_size,
            optimizer=type(self._optimizer).__name__,
            versions=versions(),
            progress=asdict(progress),
            state={name: each.state_dict() for name, each in self._state.items()},
            settings=self._about,
            data=asdict(self._data) if self._data else {},
            export=export.names() if export else {},
            measured=self._best.measured_at(progress.step),
            best_by=self._best.by,
            files={},
        )

    def _wait_for_copy(self) -> None:
        save = self._save
        if save and not save.copied:
            began = time.perf_counter()
            save.copy.exception()  # what went wrong, if anything, `_write` tells
            save.blocked_s += time.perf_counter() - began
            save.copied = True

    def _write(
        self,
        mine: Claim,
        copy: Future[dict[str, Any]],
        description: files.Description,
        asked: str | None,
    ) -> tuple[Path, int, float]:
        """Path, bytes and time of the checkpoint, or StorageError; a collective of `_group`."""
        group, first = self._group, self._ranks.is_first
        texts = self._export.texts() if self._export else {}

        def name(written: dict[str, WrittenFile]) -> tuple[Path, int]:
            # None are kept back here: `wait` prunes, when this one counts as written.
            path = publish(mine, description, written, texts, keep_last=None, refused=self._refused)
            return path, sum(file.bytes for file in written.values())

        draft = mine.draft(description.step)
        try:
            written = write_parts(copy, draft, group, copied=self.settings.background)
            path, size = together(lambda: name(written) if first else (draft, 0), group)
        except Exception as error:
            if first:
                abandon(mine, description.step)
                answer(self._paths, asked, SaveAnswer(problem=str(error)))
                mine.require()  # that another job has claimed the directory explains it better
            raise error if isinstance(error, StorageError) else StorageError(f"{error}.") from error
        answer(self._paths, asked, SaveAnswer(step=description.step))
        return path, size, time.perf_counter()


def _let_finish(reference: weakref.ref[Checkpointer]) -> None:
    """At the process's end after a failure: what is being written may yet become whole."""
    saves = reference()
    if saves and saves._save:
        with suppress(Exception):
            saves._save.written.exception(timeout=EXIT_TIMEOUT_S)
