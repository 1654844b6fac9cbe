"""Whether a node's running sums (fsdpkit/launching/sums.py) agree with what is known by other ways.

Each phase runs under the sampler that nodes have, every 2 s, and the last line's sums are compared
with a second account: power read 20 times a second, kernels timed by events, sleeps that were asked
for. A phase passes if both agree.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn

from benchmarks.gpu_parts.part import Part, Row
from fsdpkit.launching.at_start import in_rank
from fsdpkit.launching.nvml import GpuWatch
from fsdpkit.launching.sampling import PrintedSoFar, Sampler, loading_s, sampling
from fsdpkit.runs.samples import GpuSums, newest_sample

PHASE_S, WARM_S, INTERVAL_S = 18.0, 2.0, 2.0
"""NVML's power is a mean over a second: a phase has begun before it is measured."""
LOADING_S = 0.25
"""For each batch of the slow loader."""


class Done(NamedTuple):
    """What a phase knows of itself; None: it does not."""

    times: int
    busy_s: float | None = None
    loading_s: float | None = None


class Work:
    """What the GPU, or the CPU of a dry run, is to do."""

    def __init__(self, part: Part) -> None:
        self.device, self.on_gpu = part.device, part.device.on_gpu
        size = 8192 if self.on_gpu else 64
        kind = torch.bfloat16 if self.on_gpu else torch.float32
        self.matrix = torch.randn(size, size, device=part.device.torch, dtype=kind)
        self.product = torch.empty_like(self.matrix)
        self.model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 1)).to(part.device.torch)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3)

    def multiply(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self.matrix, self.matrix, out=self.product)

    def timed(self, queue: Callable[[], object]) -> float:
        """Seconds that the device takes for what is queued."""
        if not self.on_gpu:
            began = time.perf_counter()
            queue()
            return time.perf_counter() - began
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        queue()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def rest(self, seconds: float) -> Done:
        time.sleep(seconds)
        return Done(1, busy_s=0.0)

    def products(self, seconds: float) -> Done:
        """Big matrix products, one behind the other."""
        return self._until(seconds, lambda: self.multiply(100))

    def waiting(self, seconds: float) -> Done:
        """A kernel that only waits, on one multiprocessor, as for other ranks."""
        cycles = 400_000_000
        return self._until(
            seconds,
            lambda: torch.cuda._sleep(cycles) if self.on_gpu else time.sleep(0.01),  # type: ignore[no-untyped-call]
        )

    def _until(self, seconds: float, queue: Callable[[], object]) -> Done:
        ends, count, busy_s = time.perf_counter() + seconds, 0, 0.0
        while time.perf_counter() < ends:
            busy_s += self.timed(queue)
            count += 1
        return Done(count, busy_s)

    def loader(self, seconds: float) -> Done:
        """A loader that sleeps before each batch, and products for about as long."""
        batches = max(2, int(seconds / (2 * LOADING_S)))
        many = max(1, int(LOADING_S / max(self.timed(lambda: self.multiply(10)) / 10, 1e-4)))
        busy_s = 0.0
        rows = torch.arange(batches)
        for _ in torch.utils.data.DataLoader(rows, collate_fn=lambda _: time.sleep(LOADING_S)):  # type: ignore[arg-type]
            busy_s += self.timed(lambda: self.multiply(many))
        return Done(batches, busy_s, batches * LOADING_S)

    def tiny_steps(self, seconds: float) -> Done:
        """Steps of a tiny model: what the host does decides."""
        rows, count = torch.randn(32, 256, device=self.device.torch), 0
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            self.model(rows).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            count += 1
        self.device.synchronize()
        return Done(count)


def run(part: Part) -> None:
    os.environ["FSDPKIT_HEARTBEAT_DIR"] = str(part.scratch)
    in_rank.begin()  # as in a rank that an agent starts
    work = Work(part)
    part.measure("a sample's cost", functools.partial(cost, part))
    for phase in (work.rest, work.products, work.waiting, work.loader, work.tiny_steps):
        name = phase.__name__.replace("_", " ")
        action = functools.partial(measured, part, work, name, phase)
        part.measure(name, action, needs_s=PHASE_S + WARM_S + 3)


def cost(part: Part) -> Row:
    """Processor time of a sample, and of one with all costly readings."""
    sampler = Sampler()

    def mean_s(*, last: bool) -> float:
        began = time.thread_time()
        for _ in range(20):
            sampler.sample(last=last)
        return (time.thread_time() - began) / 20

    mean_s(last=True)
    return {"sample_s": mean_s(last=False), "whole_s": mean_s(last=True)}


def measured(part: Part, work: Work, name: str, phase: Callable[[float], Done]) -> Row:
    phase_s, warm_s = (1.0, 0.1) if part.dry else (PHASE_S, WARM_S)
    phase(warm_s)
    work.device.synchronize()
    before_s = loading_s(part.scratch) or 0.0
    file = part.scratch / f"{name}.samples.jsonl"
    with by_hand() as hand, sampling(file, INTERVAL_S, PrintedSoFar()):
        began = time.perf_counter()
        done = phase(phase_s)
        took_s = time.perf_counter() - began
    found = newest_sample(file)
    assert found is not None
    assert found.sums is not None
    row = {
        "times": done.times,
        "phase_s": took_s,
        "observed_s": found.sums.observed_s,
        "gpu": msgspec.to_builtins(found.sums.gpus[0] if found.sums.gpus else GpuSums()),
        "cpu_s": found.sums.cpu_s,
        "loading_s": (loading_s(part.scratch) or 0.0) - before_s,
        "by_hand": {**hand, "busy_s": done.busy_s, "loading_s": done.loading_s},
    }
    return {**row, "passed": agrees(name, row) if work.on_gpu else None}


@contextmanager
def by_hand() -> Iterator[dict[str, Any]]:
    """Joules by power, and the mean of the moments' utilization, both read 20 times a second."""
    gpus, stop, found = GpuWatch(os.environ).gpus, threading.Event(), dict[str, Any]()

    def watch() -> None:
        joules, percents, last_s, last_w = 0.0, [], time.perf_counter(), None
        while not stop.wait(0.05) and gpus:
            power_mw, rates = gpus[0].ask("PowerUsage"), gpus[0].ask("UtilizationRates")
            now_s = time.perf_counter()
            if power_mw is None or rates is None:
                return
            watts = power_mw / 1000
            joules += (now_s - last_s) * (watts if last_w is None else (watts + last_w) / 2)
            last_s, last_w = now_s, watts
            percents.append(rates.gpu)
            found.update(joules=joules, percent=sum(percents) / len(percents))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield found
    stop.set()
    thread.join()


def agrees(name: str, row: Row) -> bool:
    """Energy within 5 %, busy and loading seconds within 6 % of the phase, idle seconds within two
    samples. A waiting kernel keeps a GPU busy and inactive; products keep it active."""
    gpu, hand, phase_s = row["gpu"], row["by_hand"], row["phase_s"]
    near = 0.06 * phase_s
    busy_s = hand["percent"] / 100 * phase_s if hand["busy_s"] is None else hand["busy_s"]
    idle_s = row["observed_s"] if name == "rest" else 0.0
    active = {"products": (0.8, 1.0), "waiting": (0.0, 0.05), "rest": (0.0, 0.01)}
    least, most = active.get(name, (0.0, 1.0))
    return all(
        (
            abs(gpu["energy_j"] / hand["joules"] - 1) < 0.05,
            abs(gpu["busy_s"] - busy_s) < near,
            abs(gpu["idle_s"] - idle_s) <= 2 * INTERVAL_S,
            gpu["active_s"] is None or least <= gpu["active_s"] / gpu["observed_s"] <= most,
            hand["loading_s"] is None or abs(row["loading_s"] - hand["loading_s"]) < near,
        )
    )
