"""What a save costs the training around it: ours, and torch.distributed.checkpoint used plainly.

Both save the same state of the same trial in turns. The plain one is `save` and `async_save` with
the copy made by the same stager, as their documentation has it: no checksums, no draft that is
renamed, no claim on the directory.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.gpu_parts.device import Device
from benchmarks.gpu_parts.trial import Trial, made_up
from benchmarks.peers.workload import peak_bytes, restart_peak
from fsdpkit.training.checkpoint import Checkpointer
from fsdpkit.training.checkpoint_loading import sharded_state
from fsdpkit.training.distributed import sum_over_ranks
from fsdpkit.training.progress import Progress

HOST = torch.device("cpu")


@dataclass(frozen=True)
class Cost:
    """Of one save, or of none; as this rank saw it."""

    bytes: int  # on disk, of all ranks
    blocked_s: float  # training waited
    written_s: float  # from the call until it was whole on disk
    steps_s: list[float]  # steps begun meanwhile, less what they waited for the copy
    host_peak_bytes: int  # resident


class Loop:
    """Steps of a trial, each timed. All ranks take the same number of them."""

    def __init__(self, trial: Trial, device: Device, rows: int) -> None:
        self.trial, self.device = trial, device
        self.batch = made_up(trial.plan, rows, device.torch, seed=trial.ranks.rank)
        self.losses: list[Tensor] = []
        self._stager: Any = None  # of plain saves

    def step(self) -> float:
        began = time.perf_counter()
        self.losses.append(self.trial.step(self.batch))
        self.device.synchronize()
        return time.perf_counter() - began

    def steps_while(self, busy: Callable[[], bool]) -> list[float]:
        """Until no rank is `busy` any more, which each is asked before every step."""
        seconds = []
        while sum_over_ranks(busy(), device=self.device.torch).item():
            seconds.append(self.step())
        return seconds

    def undisturbed(self, steps: int) -> Cost:
        restart_peak(HOST)
        left = [True] * steps
        seconds = self.steps_while(lambda: bool(left) and left.pop())
        return Cost(0, 0.0, 0.0, seconds, peak_bytes(HOST))

    def save(self, saves: Checkpointer) -> Cost:
        """By our Checkpointer, used as the trainer uses it."""
        told: dict[str, Any] = {}

        def writing() -> bool:
            saves.report(lambda **fields: told.update(fields))
            return not told

        restart_peak(HOST)
        began = time.perf_counter()
        saves.save(Progress(step=self.trial.done))
        called_s = time.perf_counter() - began
        seconds = self.steps_while(writing)
        blocked_s = told["checkpoint_blocked_s"]
        _leave_out(seconds, blocked_s - called_s)
        return Cost(
            told["checkpoint_bytes"],
            blocked_s,
            told["checkpoint_written_s"],
            seconds,
            peak_bytes(HOST),
        )

    def save_plainly(self, directory: Path, group: dist.ProcessGroup, background: bool) -> Cost:
        """By torch alone, into `directory`, which is emptied first."""
        if self.trial.ranks.is_first:
            shutil.rmtree(directory, ignore_errors=True)
        dist.barrier()
        restart_peak(HOST)
        write = self._async_save if background else self._save
        blocked_s, written_s, seconds = write(directory, group)
        size = sum(file.stat().st_size for file in directory.iterdir())
        return Cost(size, blocked_s, written_s, seconds, peak_bytes(HOST))

    def _save(self, directory: Path, group: dist.ProcessGroup) -> tuple[float, float, list[float]]:
        from torch.distributed.checkpoint.state_dict_saver import save

        began = time.perf_counter()
        save(self._state(), checkpoint_id=directory, process_group=group)
        took_s = time.perf_counter() - began
        return took_s, took_s, []

    def _async_save(
        self, directory: Path, group: dist.ProcessGroup
    ) -> tuple[float, float, list[float]]:
        from torch.distributed.checkpoint.state_dict_saver import async_save

        began = time.perf_counter()
        self.device.synchronize()
        response: Any = async_save(
            self._state(),
            checkpoint_id=directory,
            process_group=group,
            async_stager=self._stager_of_plain(),
        )
        called_s = time.perf_counter() - began
        ended: list[float] = []
        response.upload_completion.add_done_callback(lambda _: ended.append(time.perf_counter()))
        waited: list[float] = []

        def wait_for_copy(*_: Any) -> None:
            asked = time.perf_counter()
            response.staging_completion.result()
            waited.append(time.perf_counter() - asked)

        hook = self.trial.optimizer.register_step_pre_hook(wait_for_copy)
        seconds = self.steps_while(lambda: not ended)
        hook.remove()
        response.upload_completion.result()
        if not self.device.on_gpu:
            self.close()  # only pinned memory is worth keeping, as for ours
        _leave_out(seconds, sum(waited))
        return called_s + sum(waited), ended[0] - began, seconds

    def _stager_of_plain(self) -> Any:
        """The one of the save before, whose pinned memory it uses again, as ours does."""
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        if self._stager is None:
            on_gpu = self.device.on_gpu
            self._stager = DefaultStager(
                StagingOptions(
                    use_pinned_memory=on_gpu,
                    use_shared_memory=False,
                    use_async_staging=True,
                    use_non_blocking_copy=on_gpu,
                )
            )
        return self._stager

    def close(self) -> None:
        """Give back the memory of plain copies."""
        if self._stager:
            self._stager.close()
        self._stager = None

    def _state(self) -> dict[str, Any]:
        return sharded_state(self.trial.model, self.trial.optimizer, self.trial.ranks)


def _leave_out(seconds: list[float], waited_s: float) -> None:
    """The first step's wait for the copy, which is counted as blocked."""
    if seconds:
        seconds[0] -= waited_s
