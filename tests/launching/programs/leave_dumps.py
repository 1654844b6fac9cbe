"""Three ranks get stuck in two groups, and dump gloo's flight recorder into the directory named."""

import os
import pickle
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1], group_desc="pair")
dist.all_reduce(torch.ones(4))
ones = torch.ones(2, 4)
if rank < 2:
    dist.all_reduce(ones, group=pair)
    if rank == 0:
        dist.all_reduce(ones, group=pair, async_op=True)
    else:
        dist.all_gather([torch.ones(2, 4), torch.ones(2, 4)], ones, group=pair, async_op=True)
if rank != 1:
    dist.all_reduce(torch.ones(16), async_op=True)
ended = 2 if rank < 2 else 1  # gloo closes an entry a moment after its call
while not all(one["retired"] for one in pickle.loads(c10d._dump_fr_trace())["entries"][:ended]):
    time.sleep(0.1)
(Path(sys.argv[1]) / f"nccl_trace_rank_{rank}").write_bytes(c10d._dump_fr_trace())
Path(sys.argv[1], f"done-{rank}").touch()
while len(list(Path(sys.argv[1]).glob("done-*"))) < 3:
    time.sleep(0.1)
os._exit(0)
