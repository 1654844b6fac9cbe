"""The work that every contestant does, and how it is measured; the same lines in each of them.

A workload is a directory that `benchmarks/training.py` writes: `workload.json` (this module's
dataclass), `config.json` and `model.safetensors` as Hugging Face has them, and
`batches.safetensors` with the token ids of every step and rank. A contestant shards the model, and
hands `measure` a function that does one whole step. Only torch and safetensors are needed, because
this runs in the peers' environment too.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

Step = Callable[[Tensor, Tensor], Tensor]
"""One step from (source ids [B, S], labels [B, T]): backward, clipping, update, zero_grad.

Returns this rank's mean loss, a detached scalar that stays on the device.
"""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Sizes and hyperparameters. Every row is full, as in pre-training, so that none is padded."""

    ranks: int
    batch: int  # rows per rank
    source_length: int
    target_length: int
    warmup_steps: int
    steps: int  # timed, after the warm-up
    precision: str  # "float32" or "bfloat16": type of gathered weights; shards stay float32
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-8
    grad_clip: float = 1.0
    seed: int = 42

    @property
    def tokens_per_step(self) -> int:
        """Source and target tokens of all ranks."""
        return self.ranks * self.batch * (self.source_length + self.target_length)


@dataclass(frozen=True)
class Task:
    """One contestant's start: what to do, and the directory for what it measured."""

    directory: Path
    out: Path
    work: Workload
    device: torch.device

    @classmethod
    def from_arguments(cls) -> Task:
        """`SCRIPT WORKLOAD_DIR OUT_DIR …`, started by torchrun."""
        # Sooner or later every contestant loads it: no part of what training takes.
        import torch._dynamo

        directory, out = Path(sys.argv[1]), Path(sys.argv[2])
        work = Workload(**json.loads((directory / "workload.json").read_text("utf-8")))
        device = torch.device("cpu")
        if torch.cuda.is_available():
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        return cls(directory, out, work, device)

    @property
    def param_dtype(self) -> torch.dtype | None:
        """The type to compute in where it is not that of the shards."""
        return None if self.work.precision == "float32" else getattr(torch, self.work.precision)


def measure(task: Task, step: Step, before_bytes: int, **extra: int) -> None:
    """Warm up, time the steps, and write this rank's losses, seconds and bytes to `task.out`.

    `before_bytes` is what the process held before there was a model. The host waits for the device
    before and after the timed steps only; losses are read after the clock has stopped.
    """
    rank, work = dist.get_rank(), task.work
    batches = load_file(task.directory / "batches.safetensors")
    losses: list[Tensor] = []
    began = began_cpu = 0.0
    for number in range(work.warmup_steps + work.steps):
        if number == work.warmup_steps:
            start_peak_bytes = peak_bytes(task.device)
            restart_peak(task.device)
            _all_arrive(task.device)
            began, began_cpu = time.perf_counter(), time.process_time()
        source, labels = (
            batches[name][number, rank].to(task.device, non_blocking=True)
            for name in ("source", "labels")
        )
        losses.append(step(source, labels))
    _all_arrive(task.device)
    found = {
        "elapsed_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - began_cpu,
        "losses": [loss.item() for loss in losses],
        "before_bytes": before_bytes,
        "start_peak_bytes": start_peak_bytes,
        "training_peak_bytes": peak_bytes(task.device),
        "maxrss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "torch": torch.__version__,
        **extra,
    }
    (task.out / f"rank-{rank}.json").write_text(json.dumps(found), "utf-8")


def held_bytes(device: torch.device) -> int:
    """What this process holds now: resident memory, or what is allocated on its GPU."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return _status("VmRSS")


def peak_bytes(device: torch.device) -> int:
    """The most that it held since the start or since `restart_peak`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _status("VmHWM")


def restart_peak(device: torch.device) -> None:
    """Begin the next peak at what is held now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM; man 5 proc


def write_workload(directory: Path, work: Workload) -> None:
    (directory / "workload.json").write_text(json.dumps(asdict(work)), "utf-8")


def _status(key: str) -> int:
    """A field of /proc/self/status, which counts in KiB, in bytes."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def _all_arrive(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    dist.barrier()
