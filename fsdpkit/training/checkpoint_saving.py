"""What a save needs while training goes on: copies in host memory, threads, each rank's files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from fsdpkit.runs.checkpoint_writing import WrittenFile
from fsdpkit.runs.checkpoints import Description
from fsdpkit.training.checkpoint_files import Writer
from fsdpkit.training.distributed import together

T = TypeVar("T")


@dataclass
class SaveUnderWay:
    """A save that has begun. Times are seconds."""

    copy: Future[dict[str, Any]]
    written: Future[tuple[Path, int, float]]
    description: Description
    began: float
    best_before: float | None
    blocked_s: float = 0.0
    copied: bool = False
    told: bool = False


class HostCopies:
    """Copies of what a rank holds on `device`; pinned memory is kept from one to the next."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._stager: Any = None

    def of(self, state: dict[str, Any]) -> Future[dict[str, Any]]:
        """The same in host memory, once the future is done; until then tensors must not change."""
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        if self._on_gpu:
            # The copy has a stream of its own, which must not overtake the last update.
            torch.cuda.current_stream().synchronize()
        if self._stager is None:
            self._stager = DefaultStager(
                StagingOptions(
                    use_pinned_memory=self._on_gpu,
                    use_shared_memory=False,
                    use_async_staging=True,
                    use_non_blocking_copy=self._on_gpu,
                )
            )
        copy: Future[dict[str, Any]] = self._stager.stage(state)
        return copy

    def trim(self) -> None:
        """Give back memory that is not worth keeping for the next copy: what is not pinned."""
        if not self._on_gpu:
            self.close()

    def close(self) -> None:
        if self._stager:
            self._stager.close()
        self._stager = None


def write_parts(
    state: Future[dict[str, Any]], draft: Path, group: dist.ProcessGroup | None, *, copied: bool
) -> dict[str, WrittenFile]:
    """Write each rank's part into the folder `draft`; on the first rank the files of all. A
    collective; raises what any rank met."""
    from torch.distributed.checkpoint import state_dict_saver

    def write() -> dict[str, WrittenFile]:
        writer = Writer(draft, copied=copied)
        state_dict_saver.save(held, storage_writer=writer, process_group=group)
        return writer.written

    held = together(state.result, group)
    return together(write, group)


def in_background(action: Callable[[], T]) -> Future[T]:
    """On a thread that a process which fails does not wait for."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(action())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="checkpoint", daemon=True).start()
    return result


def at_once(action: Callable[[], T]) -> Future[T]:
    """On this thread; the future is done. What is no Exception goes on its way."""
    result: Future[T] = Future()
    try:
        result.set_result(action())
    except Exception as error:
        result.set_exception(error)
    return result


def done(value: T) -> Future[T]:
    result: Future[T] = Future()
    result.set_result(value)
    return result
