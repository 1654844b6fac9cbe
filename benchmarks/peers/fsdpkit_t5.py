"""Contestant: the reference trainer's own parts, put together as its loop does.

The model of examples/T5-fsdp, built on the meta device and sharded by `fsdpkit.training`, its
optimizer, clipping and token-weighted loss. `SCRIPT WORKLOAD OUT KEY=VALUE …` changes settings of
`[training]`; `ddp` in their place wraps the model in torch's DistributedDataParallel instead.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import torch
from attention import guard_kernels
from loss import IGNORE
from model import T5, Block, T5Config, last_of
from safetensors import safe_open
from torch import Generator, Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.workload import Task, held_bytes, measure
from fsdpkit.config.training import TrainingSettings, for_device, load_settings
from fsdpkit.config.training.automatic import CPU
from fsdpkit.training.distributed import Ranks, process_group, sum_over_ranks
from fsdpkit.training.gradients import clip_gradients
from fsdpkit.training.optimizers import make_optimizer
from fsdpkit.training.sharding import shard


def main() -> None:
    task = Task.from_arguments()
    words = sys.argv[3:]
    settings = settings_of(task, [word for word in words if word != "ddp"])
    with process_group() as ranks:
        guard_kernels(ranks.device)
        before = held_bytes(task.device)
        model = build_ddp(task, ranks) if "ddp" in words else build(task, settings, ranks)
        model.train()
        optimizer = make_optimizer(model, settings.optimizer)
        mask = torch.ones(
            task.work.batch, task.work.source_length, dtype=torch.bool, device=ranks.device
        )
        gradient_bytes = 0

        def step(source: Tensor, labels: Tensor) -> Tensor:
            nonlocal gradient_bytes
            tokens = sum_over_ranks((labels != IGNORE).sum(), device=ranks.device)
            weight = (ranks.world_size / tokens).float()
            loss: Tensor = model(source, mask, labels, loss=settings.loss)
            torch.autograd.backward(loss * weight)
            clip_gradients(model, settings.grad_clip)
            optimizer.step()
            gradient_bytes = gradient_bytes or own_bytes(p.grad for p in model.parameters())
            optimizer.zero_grad()
            return (loss.detach() * weight).squeeze()

        measure(task, step, before)
        found_path = task.out / f"rank-{ranks.rank}.json"
        held = {
            "parameter_bytes": own_bytes(model.parameters()),
            "gradient_bytes": gradient_bytes,
            "optimizer_bytes": own_bytes(
                value
                for state in optimizer.state.values()
                for value in state.values()
                if isinstance(value, Tensor)
            ),
        }
        found = json.loads(found_path.read_text("utf-8"))
        found_path.write_text(json.dumps({**found, **held}), "utf-8")


def settings_of(task: Task, words: list[str]) -> TrainingSettings:
    work = task.work
    settings = load_settings(
        {},
        [
            f"grad_clip={work.grad_clip}",
            f"precision.param={work.precision}",
            f"optimizer.lr={work.lr}",
            f"optimizer.beta1={work.beta1}",
            f"optimizer.beta2={work.beta2}",
            f"optimizer.eps={work.eps}",
            *words,
        ],
    )
    return for_device(settings, CPU)  # what a contestant runs with is named, not chosen


def build(task: Task, settings: TrainingSettings, ranks: Ranks) -> nn.Module:
    """Sharded from the start: each rank reads one whole weight at a time and keeps its part."""
    with torch.device("meta"):
        model = T5(config(task), settings.model.attention)
    with safe_open(task.directory / "model.safetensors", framework="pt") as weights:

        def fill(name: str, tensor: Tensor, _: Generator) -> None:
            tensor.copy_(weights.get_tensor(name))

        return shard(
            model,
            settings.sharding,
            settings.precision,
            ranks,
            blocks=[Block],
            fill=fill,
            compile=settings.compile,
            last=last_of(config(task)),
        )


def build_ddp(task: Task, ranks: Ranks) -> nn.Module:
    """The same model in torch's own DistributedDataParallel, which always holds float32 weights."""
    model = T5(config(task))
    with safe_open(task.directory / "model.safetensors", framework="pt") as weights:
        model.load_state_dict({name: weights.get_tensor(name) for name in weights.keys()})  # noqa: SIM118
    model.to(ranks.device)
    return DistributedDataParallel(model)


def config(task: Task) -> T5Config:
    fields = json.loads((task.directory / "config.json").read_text("utf-8"))
    return T5Config(**{k: v for k, v in fields.items() if k in T5Config.__dataclass_fields__})


def own_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes that this rank holds for them; several may be views of one buffer."""
    local = (t.to_local() if isinstance(t, DTensor) else t for t in tensors if t is not None)
    storages = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in local)}
    return sum(storages.values())


if __name__ == "__main__":
    main()
