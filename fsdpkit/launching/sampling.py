"""Samples of the machine while ranks train: CPU, memory, our processes, network, GPUs, and error
counters of the GPU driver, InfiniBand and the memory cgroup. runs/samples.py reads them back.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from fsdpkit.launching import machine, nvml
from fsdpkit.launching.stacks import RankProcess
from fsdpkit.runs.events import JsonLines

_SAMPLES_AN_AGE = 360  # every 10 s in the first hour, every 100 s after ten


class PrintedSoFar:
    """How much the ranks of this node have printed in the newest launch, and for how long their
    processes have rested (launching/stall_watch.py looks)."""

    def __init__(self) -> None:
        self._followed: tuple[int, Sequence[RankProcess], dict[int, list[int]]] = (0, (), {})
        self._rest_s: tuple[float, float] | None = None

    def follow(self, launch: int, ranks: Sequence[RankProcess]) -> None:
        """The launch has begun."""
        self._followed, self._rest_s = (launch, ranks, {}), None

    def looked(self, *, works: bool) -> None:
        """Whether they have worked since the look before. A rest lasts from look to look: what
        nobody sees is none."""
        now = time.monotonic()
        began_s = now if works or self._rest_s is None else self._rest_s[0]
        self._rest_s = (began_s, now)

    def sample(self) -> dict[str, Any]:
        """Bytes of standard output and error by global rank, as far as they ever were known, and
        the rest."""
        launch, ranks, known = self._followed
        rest_s = self._rest_s
        for rank in ranks:
            with contextlib.suppress(OSError, ValueError):
                known[rank.rank] = rank.printed_bytes()
        if not known:
            return {}
        rest = {"rested_s": round(rest_s[1] - rest_s[0], 1)} if rest_s else {}
        return {"launch": launch, "printed": dict(known), **rest}


@contextlib.contextmanager
def sampling(path: Path, interval_s: float, printed: PrintedSoFar) -> Iterator[None]:
    """Write a sample to `path` now, every `interval_s` seconds (less often after 360 of them), and
    when the block ends: what ended the ranks may have happened after the last one. A sample that
    cannot be taken or written is skipped: monitoring must never end a training."""
    stop = threading.Event()
    started = time.monotonic()

    def sample(sampler: Sampler, lines: JsonLines) -> None:
        with contextlib.suppress(psutil.Error, OSError):
            lines.write(**sampler.sample(), **printed.sample())

    def watch() -> None:
        with contextlib.suppress(OSError):
            sampler, lines = Sampler(), JsonLines(path)
            over = False
            while not over:
                sample(sampler, lines)
                # A week of samples should take little more space than a few hours do.
                elapsed_s = time.monotonic() - started
                over = stop.wait(max(interval_s, elapsed_s / _SAMPLES_AN_AGE))
            sample(sampler, lines)
            lines.close()

    thread = threading.Thread(target=watch, name="fsdpkit-sampling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5)


def steps_made(where: str | os.PathLike[str] | None) -> int | None:
    """By local rank 0's optimizer in this launch, from its heartbeats; see at_start/in_rank.py."""
    with contextlib.suppress(OSError):
        if where is not None:
            return int.from_bytes(Path(where, "steps-0").read_bytes()[:8], sys.byteorder) or None
    return None


class Sampler:
    """Takes samples of this node."""

    def __init__(self, roots: machine.Roots = machine.HERE) -> None:
        self._roots = roots
        self._gpus = nvml.GpuWatch(os.environ)
        self._cgroup = machine.Cgroup(roots)
        psutil.cpu_percent()  # the first call only sets the mark that the next one measures from

    def sample(self) -> dict[str, Any]:
        """CPU in percent of all cores, memory and network in bytes, GPUs and ports one entry each.
        What this machine does not have, or does not tell, is absent."""
        memory = psutil.virtual_memory()
        network = psutil.net_io_counters()
        sample: dict[str, Any] = {
            "cpu_percent": psutil.cpu_percent(),
            "memory_used_bytes": memory.total - memory.available,
            "memory_total_bytes": memory.total,
        }
        if network is not None:
            sample["network_sent_bytes"] = network.bytes_sent
            sample["network_received_bytes"] = network.bytes_recv
        parts = {
            "gpus": self._gpus.sample(),
            "infiniband": machine.infiniband_ports(self._roots),
            "cgroup": self._cgroup.sample(),
            "temporary": machine.temporary_space(),
            "optimizer_steps": steps_made(os.environ.get("FSDPKIT_HEARTBEAT_DIR")),
        }
        return sample | {name: part for name, part in parts.items() if part}
