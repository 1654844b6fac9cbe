"""Ranks that meet and add their rank numbers; `fsdpkit template test` submits them.

    torchrun ... jobs/canary.py

It shows what a template can get wrong: the head node's address and port, the interface between
nodes, the environment, the number of ranks, the exit status. It takes seconds, and in any case ends
itself within three minutes.
"""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

LIMIT_S = 150
"""Of the whole script; SIGALRM then ends it."""


@record
def main() -> None:
    signal.alarm(LIMIT_S)
    on_gpu = os.environ.get("FSDPKIT_DEVICE") != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=120))
    rank, world = dist.get_rank(), dist.get_world_size()
    number = torch.tensor([float(rank + 1)], device=device)
    dist.all_reduce(number)
    wanted = world * (world + 1) / 2
    if number.item() != wanted:
        raise RuntimeError(f"rank {rank}: the sum is {number.item()}, not {wanted}")
    dist.barrier()
    if rank == 0:
        backend = dist.get_backend()
        print(f"canary: {world} ranks added up to {wanted:.0f} by {backend}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
