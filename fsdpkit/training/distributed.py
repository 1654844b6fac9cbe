"""Ranks: who am I, how do I reach the others, and how do we leave together.

Everything comes from the variables that torchrun sets. Slurm's own (`SLURM_PROCID` and the like)
describe the step that runs torchrun, not its ranks, and are never read.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import fsdpkit
from fsdpkit.errors import FsdpkitError, StorageError, UsageError
from fsdpkit.listing import spans
from fsdpkit.training.device_code import require_code_for

T = TypeVar("T")

TORCHRUN_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


@dataclass(frozen=True)
class Ranks:
    """This process's place among all ranks, and the device it computes on.

    Attributes:
        rank: Index among all ranks, from 0.
        local_rank: Index on its node, from 0.
        world_size: Ranks in all.
        local_world_size: Ranks on each node.
        device: `cuda:<local_rank>`, or the CPU.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """True on the one rank that prints and writes the run's records."""
        return self.rank == 0

    def say(self, text: str) -> None:
        """Print a line, once for all ranks.

        Args:
            text: What rank 0 prints.
        """
        if self.is_first:
            print(text, flush=True)


@contextmanager
def process_group(timeout_s: int = 600, startup_timeout_s: int | None = None) -> Iterator[Ranks]:
    """The default process group: NCCL between GPUs and gloo between hosts, or gloo alone.

    The device is chosen before anything is built, so that no rank lands on GPU 0 by accident. At
    the end all ranks wait for each other before they let go: a rank that leaves while its peers
    still talk to it makes them abort. After an exception nobody waits, because the others may never
    come; torchrun ends them.

    Args:
        timeout_s: Seconds that a collective may wait.
        startup_timeout_s: Seconds that one may wait until `set_timeout` is called, for loading and
            compiling take longer than a step; None: `timeout_s` from the beginning.

    Yields:
        This process's place among the ranks.

    Raises:
        UsageError: torchrun's variables are missing.
        FsdpkitError: The ranks run different versions, there is no GPU for a rank, or one that this
            torch was not built for.
    """
    missing = [name for name in TORCHRUN_VARIABLES if name not in os.environ]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} not set: start this script with torchrun, for instance "
            f"torchrun --standalone --nproc-per-node 2 {sys.argv[0]}"
        )
    rank, local_rank, world_size, local_world_size = (
        int(os.environ[name]) for name in TORCHRUN_VARIABLES[:4]
    )
    if torch.cuda.is_available():
        if local_rank >= torch.cuda.device_count():
            raise FsdpkitError(
                f"local rank {local_rank} has no GPU: {torch.cuda.device_count()} are visible "
                f"here for {local_world_size} ranks. Ask for as many GPUs as ranks per node."
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        require_code_for(device)
        backend = (
            "cpu:gloo,cuda:nccl"  # gloo too: offloaded shards and checkpoints live on the host
        )
    else:
        device, backend = torch.device("cpu"), "gloo"

    dist.init_process_group(backend, timeout=timedelta(seconds=startup_timeout_s or timeout_s))
    ranks = Ranks(rank, local_rank, world_size, local_world_size, device)
    check_same_everywhere(
        "software version",
        f"python {sys.version_info[0]}.{sys.version_info[1]}, torch {torch.__version__}, "
        f"numpy {numpy.__version__}, fsdpkit {fsdpkit.__version__}",
    )
    yield ranks
    dist.barrier()
    dist.destroy_process_group()
    _wait_for_gloo()


def _wait_for_gloo() -> None:
    """Return once gloo's threads have let go of every message.

    A device mesh keeps its groups, and so their threads, for as long as it lives: for FSDP until
    the interpreter ends. One that lets go of a tensor only then asks an interpreter that is gone,
    and takes a rank that had finished down with SIGABRT. A thread that waits for the interpreter
    gets it while this one sleeps; one that sleeps afterwards has nothing left to do.
    """
    while True:
        time.sleep(0.001)
        states = [stat.rpartition(") ")[2][0] for stat in _threads() if "(pt_gloo_runloop)" in stat]
        if all(state == "S" for state in states):
            return


def _threads() -> Iterator[str]:
    """What Linux says of each thread of this process: see proc(5), /proc/pid/stat."""
    for stat in Path("/proc/self/task").glob("*/stat"):
        with suppress(OSError):  # it has ended
            yield stat.read_text()


def set_timeout(timeout_s: int) -> None:
    """From now on a collective of any group may wait this long; itself a collective.

    All ranks meet first: with the shorter limit a fast rank would give up on a slow one that is
    still starting. Groups that a device mesh has made are included; left alone they have torch's
    default of 10 (NCCL) or 30 (gloo) minutes, whatever `process_group` was told.

    Args:
        timeout_s: Seconds.
    """
    dist.barrier()
    for group in list(c10d._world.pg_map):  # also those of hybrid sharding's meshes
        c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)


def check_same_everywhere(what: str, value: str, remedy: str = "") -> None:
    """Raise FsdpkitError on every rank unless all ranks hold the same `value`; a collective."""
    told: list[Any] = [value]
    dist.broadcast_object_list(told)
    if on_any(told[0] != value):
        values = gather(value)
        ranks = {v: [r for r, own in enumerate(values) if own == v] for v in values}
        shown = "; ".join(
            f"{v} on rank{'s' * (len(own) > 1)} {spans(own, ', ')}" for v, own in ranks.items()
        )
        raise FsdpkitError(f"The ranks differ in their {what}: {shown}. {remedy}".rstrip())


def on_first(ranks: Ranks, action: Callable[[], T]) -> T:
    """Do something on rank 0 alone, and tell all ranks the result; a collective.

    For questions to a shared file system, which may answer each node differently.

    Args:
        ranks: From `process_group`.
        action: Called on rank 0. What it returns is pickled.

    Returns:
        What `action` returned, on all ranks.

    Raises:
        FsdpkitError: On all ranks, if `action` raised it.
    """
    told: list[Any] = [None, None]
    if ranks.is_first:
        try:
            told = [action(), None]
        except FsdpkitError as error:
            told = [None, error]
    dist.broadcast_object_list(told)
    if told[1] is not None:
        raise told[1]
    answer: T = told[0]
    return answer


def together(action: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """What `action` returns on this rank; if it fails on any, StorageError on all. A collective."""
    problem = None
    try:
        result = action()
    except BaseException as error:  # told to everyone, who would wait for this rank otherwise
        problem = error_text(error)
    if on_any(problem is not None, group):
        found = filter(None, gather(problem, group))
        raise StorageError("; ".join(dict.fromkeys(found)) + ".")
    return result


def on_any(this: bool, group: dist.ProcessGroup | None = None) -> bool:
    """Whether it is so on one rank at least; a collective that tells no rank of another."""
    flag = torch.tensor(float(this), device="cpu")
    dist.all_reduce(flag, group=group)
    return bool(flag > 0)


def gather(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Each rank's `value`, on all ranks, whose messages grow with their number; a collective."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def error_text(error: BaseException) -> str:
    """What went wrong, in a line; a CheckpointException's own text holds every rank's traceback."""
    failures = getattr(error, "failures", None)
    if failures:
        return "; ".join(dict.fromkeys(error_text(cause) for cause, _ in failures.values()))
    return str(error).rstrip(".") or type(error).__name__


def sum_over_ranks(*values: float | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Each value summed over all ranks; a collective, for which the host does not wait on a GPU.

    Args:
        *values: This rank's numbers, or scalar tensors on any device.
        device: Where to sum: `ranks.device`.

    Returns:
        float64 [len(values)] on `device`, equal on all ranks.
    """
    total = torch.stack(
        [torch.as_tensor(v, dtype=torch.float64).to(device, non_blocking=True) for v in values]
    )
    dist.all_reduce(total)
    return total


def seed_step(seed: int, step: int, rank: int) -> None:
    """Restart torch's random numbers (dropout) as a function of seed, step and rank.

    Call it at the start of each step: a resumed run then has no generator state to restore.

    Args:
        seed: The run's seed.
        step: Steps done.
        rank: Index of this rank, so that ranks draw different numbers.

    Examples:
        >>> import torch
        >>> from fsdpkit import training
        >>> training.seed_step(seed=42, step=7, rank=0)
        >>> before = torch.rand(3)
        >>> training.seed_step(seed=42, step=7, rank=0)
        >>> torch.equal(before, torch.rand(3))
        True
    """
    torch.manual_seed(zlib.crc32(f"{seed} {step} {rank}".encode()))
