"""A person's own trainer, which knows nothing of fsdpkit: least squares, all-reduced over gloo.

linear_trainer.py --break exception --ranks 3 --step 5
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

import torch
import torch.distributed as dist


def sample(step: int, rank: int, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(size, 8, generator=generator)
    return inputs, inputs @ torch.arange(8.0)


def divide_by_length(lengths: list[int]) -> float:
    return sum(lengths) / len(lengths)


def exception() -> None:
    divide_by_length([])


def sleep() -> None:
    time.sleep(3600)


def segfault() -> None:
    ctypes.string_at(0)


def shape() -> None:
    dist.all_reduce(torch.zeros(4))


def operation() -> None:
    dist.broadcast(torch.zeros(8), src=0)


def eat_memory() -> None:
    held = []
    while len(held) < 128:
        held.append(bytearray(b"x" * (16 << 20)))
        time.sleep(0.05)
    raise MemoryError("2 GB are held, and nobody minds")


def quota() -> None:
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "out/intermediate.pt")


def words() -> str:
    """Of a real log; a variable of a job has no line breaks."""
    return os.environ["ERROR_TEXT"].replace("\\n", "\n")


def reset() -> None:
    raise dist.DistBackendError(words().format(**os.environ))


def abort() -> None:
    print(words(), file=sys.stderr, flush=True)
    os.abort()


BREAKS: Mapping[str, Callable[[], None]] = {
    "exception": exception,
    "sleep": sleep,
    "segfault": segfault,
    "shape": shape,
    "operation": operation,
    "eat-memory": eat_memory,
    "quota": quota,
    "reset": reset,
    "abort": abort,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--break", dest="breaks", choices=BREAKS)
    parser.add_argument("--ranks", type=int, nargs="*", default=[])
    parser.add_argument("--step", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--timeout-s", type=float, default=600)
    words = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=words.timeout_s))
    rank = dist.get_rank()
    weight = torch.zeros(8)
    for step in range(words.steps):
        inputs, targets = sample(step, rank)
        error = inputs @ weight - targets
        gradient = inputs.T @ error / len(inputs)
        if step == words.step and rank in words.ranks:
            BREAKS[words.breaks]()
        dist.all_reduce(gradient)
        weight -= 0.1 * gradient / dist.get_world_size()
        print(f"step {step} loss {error.square().mean().item():.3f}", flush=True)
        time.sleep(words.step_s)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
