"""What a training loop calls, on two ranks whose clock the script moves; findings to argv[1]."""

from __future__ import annotations

import contextlib
import io
import json
import math
import pickle
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from fsdpkit.config.training import MetricsSettings
from fsdpkit.config.training.settings import DebugSettings
from fsdpkit.errors import FsdpkitError
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training import debugging, metrics, stragglers
from fsdpkit.training.distributed import process_group
from fsdpkit.training.finite import may_update


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Block(nn.Module):
    """Takes 3 seconds of the clock on rank 1 and 1 on rank 0."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.linear, self.seconds = nn.Linear(4, 4), seconds

    def forward(self, x: Tensor) -> Tensor:
        clock.now += self.seconds
        return self.linear(x)


clock = Clock()
metrics.time.perf_counter = clock  # the module that stragglers uses, too
found: dict = {}
paths = TaskPaths(Path(sys.argv[1]).parent / "task")
debug = DebugSettings(profile_from=2, profile_steps=2, flight_recorder=50)
debugging.prepare(debug, paths)
with process_group(240, startup_timeout_s=120) as ranks:
    # Each rank: losses 6 and 2, 10 target tokens and 30 tokens in all by both ranks in each step.
    recorder = metrics.Metrics(
        paths,
        ranks,
        tokens=1000,
        skipped=2,
        settings=MetricsSettings(stragglers_every=0),
        peak_tflops=4.0,
    )
    for loss in (6.0, 2.0):
        with recorder.loading():
            clock.now += 0.5
        recorder.step(torch.tensor(loss), torch.tensor(10), torch.tensor(30), flops=3e12)
        clock.now += 1.0
    with recorder.pause():
        clock.now += 50.0
    found["line"] = recorder.log(2, lr=0.5, grad_norm=torch.tensor(1.25))
    recorder.skip()
    clock.now += 1.0
    found["only skipped"] = recorder.log(3, lr=0.5, grad_norm=torch.tensor(math.nan))
    found["settled"] = recorder.settle()
    recorder.close()

    # A rank that computes three times as long; every gather makes the other one wait for it.
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
    model = nn.Sequential(nn.Linear(4, 4), *(Block(3.0 if ranks.rank else 1.0) for _ in range(2)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.1)
    for block in model[1:]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    gather = dist.all_gather_single

    def waiting(*arguments, **named):
        clock.now += 100.0 if ranks.rank == 0 else 0.0
        return gather(*arguments, **named)

    dist.all_gather_single = waiting
    compared = metrics.Metrics(
        paths, ranks, settings=MetricsSettings(stragglers_every=2), model=model
    )
    said = io.StringIO()
    found["compared"] = []
    with contextlib.redirect_stdout(said):
        for step in range(2):
            model(torch.ones(2, 4)).sum().backward()
            with torch.no_grad():
                model(torch.ones(2, 4))  # an evaluation does not count
            compared.step(torch.tensor(1.0), torch.tensor(1), torch.tensor(1))
            line = compared.log(step + 1, lr=0.1, grad_norm=torch.tensor(1.0))
            found["compared"].append(
                {k: v for k, v in line.items() if k.startswith(("slowest", "rank"))}
            )
    compared.close()
    dist.all_gather_single = gather
    found["said"] = said.getvalue()
    stopwatch = stragglers.Stopwatch(model, ranks.device)
    stopwatch.running = True
    model(torch.ones(2, 4))
    found["own seconds"] = [0.0, 0.0]
    dist.all_gather_object(found["own seconds"], stopwatch.take_s())

    # A gradient that is bad on one rank only.
    norm = torch.tensor(math.inf if ranks.rank == 1 else 1.0)
    answers: list = [None, None]
    dist.all_gather_object(answers, may_update(norm, "It", "skip", ranks))
    found["may update"] = [answers, may_update(torch.tensor(1.0), "It", "skip", ranks)]
    try:
        may_update(torch.tensor(math.nan), "The gradient of step 7", "stop", ranks)
    except FsdpkitError as error:
        found["stopped"] = str(error)

    # Time-outs, profile and flight recorder.
    def limits() -> list[float]:
        backends = [group._get_backend(torch.device("cpu")) for group in c10d._world.pg_map]
        return sorted({backend.options._timeout.total_seconds() for backend in backends})

    found["limits"] = [limits()]
    watch = debugging.Debugging(debug, paths, ranks, timeout_s=33)
    with contextlib.suppress(ZeroDivisionError), watch:
        for step in range(1, 5):
            model(torch.ones(2, 4)).sum().backward()
            watch.step_done(step)
            if step == 1:
                found["limits"].append(limits())
        _ = 1 / 0
    dist.barrier()
    folder = debugging.debug_folder(paths)
    found["debug"] = sorted(p.name for p in folder.iterdir())
    recorded = folder / "nccl_trace_rank_1"
    if recorded.exists():
        found["recorded"] = len(pickle.loads(recorded.read_bytes()).get("entries", []))
    found["groups"] = len(c10d._world.pg_map)
    if ranks.is_first:
        Path(sys.argv[1]).write_text(json.dumps(found))
