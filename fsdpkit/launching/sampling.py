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
from fsdpkit.launching.sums import RunningSums
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

    def watch() -> None:
        with contextlib.suppress(OSError):
            sampler, lines = Sampler(), JsonLines(path)
            over, next_s = False, interval_s
            while True:
                with contextlib.suppress(psutil.Error, OSError):
                    lines.write(**sampler.sample(next_s, last=over), **printed.sample())
                if over:
                    break
                # A week of samples should take little more space than a few hours do.
                next_s = max(interval_s, (time.monotonic() - started) / _SAMPLES_AN_AGE)
                over = stop.wait(next_s)
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
    return _counted(where, 0) or None


def loading_s(where: str | os.PathLike[str] | None) -> float | None:
    """Seconds that the same rank has waited for data."""
    waited_ns = _counted(where, 8)
    return None if waited_ns is None else waited_ns / 1e9


def _counted(where: str | os.PathLike[str] | None, place: int) -> int | None:
    with contextlib.suppress(OSError):
        if where is not None:
            found = Path(where, "steps-0").read_bytes()[place : place + 8]
            return int.from_bytes(found, sys.byteorder) if found else None
    return None


class Sampler:
    """Takes samples of this node."""

    def __init__(self, roots: machine.Roots = machine.HERE) -> None:
        self._roots = roots
        self._gpus = nvml.GpuWatch(os.environ)
        self._cgroup = machine.Cgroup(roots)
        self._sums = RunningSums(self._gpus.gpus, roots)
        psutil.cpu_percent()  # the first call only sets the mark that the next one measures from

    def sample(self, interval_s: float = 10.0, *, last: bool = False) -> dict[str, Any]:
        """CPU in percent of all cores, memory and network in bytes, GPUs and ports one entry each.
        What this machine does not have, or does not tell, is absent. See sums.py for the rest."""
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
        sample |= {name: part for name, part in parts.items() if part}
        if (waited_s := loading_s(os.environ.get("FSDPKIT_HEARTBEAT_DIR"))) is not None:
            sample["loading_s"] = round(waited_s, 3)
        return sample | {"sums": self._sums.sample(sample, interval_s, last=last)}
