"""Memory runs out on some ranks, in forward, in backward or between; nobody may hang.

Out of memory is raised by hooks, in the second step, after an evaluation. Each scenario, with
dropout, is compared with training that had the smaller parts from the start. 4 ranks; writes its
findings to argv[1]; with a second argument, only the scenario where nothing fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from fsdpkit.training.distributed import Ranks, seed_step
from fsdpkit.training.out_of_memory import MicroBatches

BATCH, WIDTH = 6, 12


@dataclass
class Rows:
    x: Tensor

    def split(self, rows: int) -> list[Rows]:
        return [Rows(part) for part in self.x.split(rows)]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.dropout(self.down(self.up(x).relu()), 0.1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(self.first(x)))


class Memory:
    """Raises at the n-th pass through block 1, on the given ranks, if a part has too many rows."""

    def __init__(self, model: Net, rank: int, ranks: list[int], where: str, fits: int, nth: int):
        self.short = rank in ranks  # the first step goes through
        self.fits, self.nth, self.passes, self.raised = fits, nth, 0, 0
        self.rows, self.armed = 0, False
        block = model.blocks[1]
        block.register_forward_pre_hook(self.see)
        if where == "forward":
            block.up.register_forward_pre_hook(lambda *_: self.allocate())
        elif where == "backward":
            block.up.register_full_backward_hook(lambda *_: self.allocate())
        else:  # while the weights of a unit are being gathered, before anything is sent
            original = dist.all_gather_single
            self.undo = lambda: setattr(dist, "all_gather_single", original)

            def gather(*arguments, **named):
                self.allocate()
                return original(*arguments, **named)

            dist.all_gather_single = gather

    def see(self, module: nn.Module, inputs: tuple[Tensor]) -> None:
        self.rows = inputs[0].shape[0]

    def allocate(self) -> None:
        if self.armed and self.short and self.rows > self.fits:
            self.passes += 1
            if self.passes >= self.nth:
                self.raised += 1
                raise torch.OutOfMemoryError("CUDA out of memory (a test)")


def case(short: list[int], where: str, fits: int = 3, nth: int = 1, **settings) -> dict:
    """Arguments of `train`: memory runs out on the ranks `short`."""
    return {"memory": short, "where": where, "fits": fits, "nth": nth, **settings}


def train(
    ranks, mesh, micro, *, memory=None, reshard=True, dtype=None, start=BATCH, **where
) -> dict:
    torch.manual_seed(7)
    model = Net()
    policy = {}
    if dtype is not None:
        policy["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, **policy)
    fully_shard(model, mesh=mesh, reshard_after_forward=False, **policy)
    short = Memory(model, ranks.rank, memory, **where) if memory is not None else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    parts = MicroBatches(model, ranks, micro, BATCH)
    losses = []
    if short is not None:
        parts.size = max(1, short.fits)

    def forward_backward(part: Rows) -> Tensor:
        loss = model(part.x).float().square().sum() / BATCH
        loss.backward()
        return loss.detach()

    try:
        for step in range(2):
            if step == 1 and short is not None:
                parts.size, short.armed = start, True
            seed_step(1, step, ranks.rank)
            generator = torch.Generator().manual_seed(100 * step + ranks.rank)
            batch = Rows(torch.randn(BATCH, WIDTH, generator=generator))
            losses.append(parts.run(batch, forward_backward).item())
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():  # an evaluation, which leaves the root's weights gathered
                model(torch.ones(1, WIDTH))
    finally:
        if short is not None and hasattr(short, "undo"):
            short.undo()
    weights = [
        (p.full_tensor() if isinstance(p, DTensor) else p).detach() for p in model.parameters()
    ]
    raised = torch.tensor(float(short.raised if short else 0))
    dist.all_reduce(raised)
    return {"losses": losses, "weights": weights, "size": parts.size, "raised": raised.item()}


def compare(got: dict, expected: dict) -> dict:
    pairs = zip(got["weights"], expected["weights"], strict=True)
    return {
        "loss": max(abs(a - b) for a, b in zip(got["losses"], expected["losses"], strict=True)),
        "weights": max((a - b).abs().max().item() for a, b in pairs),
        "size": got["size"],
        "raised": got["raised"],
    }


def main(ranks: Ranks, folder: Path, only: str = "") -> dict:
    found: dict = {}
    expected: dict = {}
    flat = init_device_mesh("cpu", (4,), mesh_dim_names=("shard",))
    hybrid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    meshes = {"flat": flat, "hybrid": hybrid}
    if only:  # rank 1 ends with the error, and torchrun ends the others
        train(ranks, flat, "auto", memory=[1], where="forward", fits=0, nth=1)
    cases = {
        f"{where} {name}": case([1], where, mesh=mesh)
        for where in ("forward", "backward", "gather")
        for name, mesh in meshes.items()
        if (where, name) != ("gather", "hybrid")
    }
    cases["all ranks"] = case([0, 1, 2, 3], "forward")
    cases["two halvings"] = case([2], "backward", fits=1)
    # Parts of 3 rows from the start; the second of them does not fit.
    for where in ("forward", "backward", "gather"):
        cases[f"second part {where}"] = case([0, 3], where, fits=1, nth=2, start=3)
    cases["second part kept"] = case([1], "backward", fits=1, nth=2, start=3, reshard=False)
    cases["second part bfloat16"] = case(
        [1], "backward", fits=1, nth=2, start=3, dtype=torch.bfloat16
    )
    for name, settings in cases.items():
        settings = {"mesh": flat, **settings}
        plain = {k: settings[k] for k in ("mesh", "reshard", "dtype") if k in settings}
        key = (settings["fits"], *map(id, plain.values()))
        if key not in expected:
            expected[key] = train(ranks, micro=settings["fits"], **plain)
        found[name] = compare(train(ranks, micro="auto", **settings), expected[key])
    return found
