"""When a run is slow, stuck or out of memory: what to look at afterwards, under `debug/`.

    debug/<attempt>/profile-rank-<r>.json.gz       chrome://tracing, or Perfetto
    debug/<attempt>/memory-rank-<r>.pickle         https://pytorch.org/memory_viz
    debug/<attempt>/flight-<launch>/nccl_trace_rank_<r>    torchfrtrace on it, after a hang

The flight recorder keeps the last collectives of each rank and costs next to nothing. NCCL's
watchdog dumps it when a collective times out; when a rank raises, it is dumped here, before that
rank's process group is gone.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from fsdpkit.config.training import DebugSettings
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.distributed import Ranks, set_timeout

HISTORY = 100_000
"""Allocations and frees that a memory snapshot remembers; each takes some hundred bytes."""

_FLIGHT_RECORDER = "nccl_trace_rank_"


def debug_folder(paths: TaskPaths) -> Path:
    """Where this attempt's files go; a later attempt does not overwrite them."""
    attempt = os.environ.get("FSDPKIT_ATTEMPT_DIR")
    return paths.debug / Path(attempt).name if attempt else paths.debug


def prepare(settings: DebugSettings, paths: TaskPaths, *, deterministic: bool = False) -> None:
    """What libraries read once, when they start: call it before `process_group`.

    `deterministic` allows only operations that give the same bits each time; one that has no such
    version raises RuntimeError, by name. A variable that the person has set stays.
    """
    if settings.flight_recorder and torch.cuda.is_available():
        folder = debug_folder(paths)
        folder.mkdir(parents=True, exist_ok=True)  # the watchdog's writer does not
        os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
        os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(folder / _FLIGHT_RECORDER))
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(settings.flight_recorder))
    if deterministic:
        # cuBLAS sums in the order of its workspaces, and reads their number when CUDA starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


class Debugging:
    """Around the training loop, inside `process_group`; `step_done` after each step.

    `timeout_s` is how long a collective may wait once the first step is done; until then the
    process group's own, longer limit holds. Of the profiler, the first node's ranks each write a
    file, so that they can be compared and a large run does not write thousands.
    """

    def __init__(
        self,
        settings: DebugSettings,
        paths: TaskPaths,
        ranks: Ranks,
        *,
        step: int = 0,
        timeout_s: int | None = None,
    ) -> None:
        self._settings, self._ranks, self._timeout_s = settings, ranks, timeout_s
        self._paths, self._folder = paths, debug_folder(paths)
        self._profiler: torch.profiler.profile | None = None
        self._start = step

    def __enter__(self) -> Debugging:
        if self._settings.memory_snapshot and self._ranks.device.type == "cuda":
            self._watch_memory()
        self._profile(self._start)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_profile()
        if self._settings.memory_summary:
            self._ranks.say(_memory_summary(self._ranks.device))
        if isinstance(error, Exception) and self._settings.flight_recorder:
            dump_flight_recorder(self._paths, self._ranks)

    def step_done(self, step: int) -> None:
        """`step` steps are done. The first call is a collective, if a `timeout_s` was given."""
        if self._timeout_s is not None:
            set_timeout(self._timeout_s)
            self._timeout_s = None
        self._profile(step)

    def _profile(self, done: int) -> None:
        first = self._settings.profile_from
        if first is None or self._ranks.rank >= self._ranks.local_world_size:
            return
        if done >= first - 1 + self._settings.profile_steps:
            self._end_profile()
        elif done >= first - 1 and self._profiler is None:
            kinds = [torch.profiler.ProfilerActivity.CPU]
            if self._ranks.device.type == "cuda":
                kinds.append(torch.profiler.ProfilerActivity.CUDA)
            self._profiler = torch.profiler.profile(activities=kinds, record_shapes=True)
            self._profiler.start()
        elif self._profiler is not None:
            self._profiler.step()

    def _end_profile(self) -> None:
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.stop()
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"profile-rank-{self._ranks.rank}.json.gz"
            profiler.export_chrome_trace(str(path))
            self._ranks.say(f"profile {path}")

    def _watch_memory(self) -> None:
        """Write a snapshot at the moment an allocation fails, before the stack unwinds."""
        torch.cuda.memory._record_memory_history(max_entries=HISTORY)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"memory-rank-{self._ranks.rank}.pickle"

        def observe(*_: Any) -> None:
            torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]

        attach: Any = getattr(torch._C, "_cuda_attach_out_of_memory_observer")  # noqa: B009
        attach(observe)  # builds for CPUs, which type checkers see, lack it


def _memory_summary(device: torch.device) -> str:
    if device.type != "cuda":
        return (
            f"training.debug.memory_summary: ranks run on {device.type}, without CUDA's allocator"
        )
    summary: str = torch.cuda.memory_summary(device)
    return summary


def dump_flight_recorder(paths: TaskPaths, ranks: Ranks) -> None:
    """Write what this rank's last collectives were, as NCCL's watchdog would: `torchfrtrace` reads
    both."""
    from torch._C import _distributed_c10d as c10d

    # A build for GPUs has both: NCCL's own recorder, and the one that gloo writes into.
    of_nccl = getattr(c10d, "_dump_nccl_trace", None) if ranks.device.type == "cuda" else None
    dump = of_nccl or getattr(c10d, "_dump_fr_trace", None)
    if dump is None:
        return
    prefix = os.environ.get("TORCH_FR_DUMP_TEMP_FILE", str(debug_folder(paths) / _FLIGHT_RECORDER))
    path = Path(f"{prefix}{ranks.rank}")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(dump())
