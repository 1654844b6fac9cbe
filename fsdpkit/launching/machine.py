"""What the kernel says about this node and the job's share of it, from /proc, /sys and cgroups.

A value that the kernel does not provide is absent: many clusters have no memory cgroups, and many
nodes no InfiniBand. Sources: proc_pid_cgroup(5), the kernel's cgroup-v2.rst and
cgroup-v1/memory.rst, and its ABI document sysfs-class-infiniband.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from fsdpkit.runs.reading import read_bytes

_UNLIMITED_BYTES = 1 << 60
"""Version 1 of cgroups calls no limit a number near 2^63."""
_SMALL = 1 << 16
_MOST_W = 1000
"""Of a processor: so long a RAPL counter takes at least to its end."""
_COUNTERS = (*("symbol_error", "link_downed", "port_rcv_errors", "local_link_integrity_errors"),)
TEMPORARY = ("/dev/shm", "/tmp")


@dataclass(frozen=True)
class Roots:
    """Where the kernel's files are; tests use other directories."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    infiniband: Path = Path("/sys/class/infiniband")
    powercap: Path = Path("/sys/class/powercap")


HERE = Roots()


def _text(path: Path) -> str | None:
    try:
        return read_bytes(path, _SMALL).decode("ascii", errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdecimal() else None


class Cgroup:
    """The memory cgroups around this process up to the outermost that has a limit, the job's. A
    step's limit may be lower than its job's: the lowest applies. Kills are counted wherever in the
    job they happened."""

    def __init__(self, roots: Roots = HERE) -> None:
        self._within, self._version = _limiting(roots)

    def sample(self) -> dict[str, int]:
        """`memory_bytes`, `memory_max_bytes` and `oom_kills` so far, each if known."""
        if not self._within:
            return {}
        outermost = self._within[-1]
        most = {here: _limit(here, self._version) or _UNLIMITED_BYTES for here in self._within}
        tightest = min(most, key=lambda here: most[here])
        if self._version == 2:
            kills = [_counted(outermost / "memory.events", "oom_kill")]  # includes all groups below
        else:
            kills = [_counted(here / "memory.oom_control", "oom_kill") for here in self._within]
        known = [count for count in kills if count is not None]
        found = {
            "memory_bytes": _number(tightest / _CURRENT[self._version]),
            "memory_max_bytes": _limit(tightest, self._version),
            "oom_kills": sum(known) if known else None,
        }
        return {name: value for name, value in found.items() if value is not None}


def _limiting(roots: Roots) -> tuple[list[Path], int]:
    """This process's cgroup and those around it, up to the outermost one with a limit, and the
    version of their files; without any limit, its own alone."""
    for version, top, own in _memory_cgroups(roots):
        here = top / own.lstrip("/")
        if not here.is_dir():  # a container sees its own group as the root
            here = top
        chain = [here, *here.parents]
        chain = chain[: chain.index(top) + 1]
        limited = [place for place, each in enumerate(chain) if _limit(each, version) is not None]
        if limited:
            return chain[: limited[-1] + 1], version
        if _number(here / _CURRENT[version]) is not None:
            return [here], version
    return [], 2


_CURRENT = {1: "memory.usage_in_bytes", 2: "memory.current"}


def _memory_cgroups(roots: Roots) -> Iterator[tuple[int, Path, str]]:
    """Version, top directory and this process's path, of the hierarchies that may limit memory."""
    for line in (_text(roots.proc / "self" / "cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if ".." in path.split("/"):
            continue
        if "memory" in controllers.split(","):
            yield 1, roots.cgroup / "memory", path
        elif controllers == "":
            yield 2, roots.cgroup, path


def _limit(directory: Path, version: int) -> int | None:
    found = _number(directory / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
    return found if found is not None and found < _UNLIMITED_BYTES else None


def _counted(path: Path, name: str) -> int | None:
    for line in (_text(path) or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None


@dataclass(frozen=True)
class ProcessWork:
    """What some processes have done since each began; less once one of them has ended."""

    cpu_s: float
    """Of children that have ended and were waited for, too: compilers come and go."""
    moved_bytes: int
    """Read and written through files and pipes, by whichever call (rchar and wchar, proc(5)), and
    from and to disks, also by mapped memory; what went through a socket by send(2) and recv(2), as
    a wait for other ranks does, is not."""
    processes: int = 0
    """That could be inspected."""
    resident_bytes: int = 0
    """Shared ones counted for each process."""


def work_of(pid: int, *, itself: bool = True) -> ProcessWork:
    """Of a process and all its descendants, except those that may not be inspected."""
    cpu_s, moved_bytes, processes, resident = 0.0, 0, 0, 0
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(pid)
        for process in [*([top] if itself else []), *top.children(recursive=True)]:
            with contextlib.suppress(psutil.Error, AttributeError):
                times = process.cpu_times()
                cpu_s += sum(times[:4])
                resident += process.memory_info().rss
                moved = process.io_counters()
                moved_bytes += sum(moved[2:6])
                processes += 1
    return ProcessWork(cpu_s, moved_bytes, processes, resident)


def is_held(pid: int) -> bool:
    """Whether a thread below this process waits for a disk or a file server, however slow, or is in
    a debugger's hands or stopped (states D, t and T, proc(5))."""
    with contextlib.suppress(psutil.Error, OSError):
        for process in psutil.Process(pid).children(recursive=True):
            for thread in HERE.proc.glob(f"{process.pid}/task/*/stat"):
                if (_text(thread) or "").rpartition(")")[2].startswith((" D", " t", " T")):
                    return True
    return False


def network_bytes() -> int:
    """That went through this node's network interfaces, whoever's they were."""
    counters = psutil.net_io_counters(pernic=True).items()
    return sum(c.bytes_sent + c.bytes_recv for name, c in counters if name != "lo")


class JobWork:
    """Core-seconds and memory of the job here: by its cgroup where Slurm has made one, `job_<id>`
    of version 2; otherwise of this process and its descendants, with those that ended and were
    waited for. Other cgroups, such as a login session's, may hold more than it."""

    def __init__(self, roots: Roots = HERE) -> None:
        own = re.search(
            r"^0::/((?:[^/.][^/]*/)*job_\d+)", _text(roots.proc / "self/cgroup") or "", re.M
        )
        self._file = roots.cgroup / own[1] / "cpu.stat" if own else None

    def sample(self) -> tuple[float, int | None]:
        """Core-seconds so far, less once a process is lost; resident bytes without a cgroup."""
        if self._file and (used := _counted(self._file, "usage_usec")) is not None:
            return used / 1e6, None
        work = work_of(os.getpid())
        return work.cpu_s, work.resident_bytes


def cores() -> int:
    """That this process may use; without affinity, those that Slurm has given it."""
    here = len(os.sched_getaffinity(0))
    given = os.environ.get("SLURM_CPUS_ON_NODE", "")
    return min(here, int(given)) if given.isdecimal() and int(given) else here


class HostEnergy:
    """Joules of processors and memory by RAPL, where the kernel lets users read it."""

    def __init__(self, roots: Roots = HERE) -> None:
        named = {zone: _text(zone / "name") or "" for zone in roots.powercap.glob("*-rapl:*")}
        kinds = ("package", "dram")  # the others are parts of a package, or the whole machine
        self._before: dict[Path, int | None] = {
            zone: _number(zone / "energy_uj")
            for zone, name in named.items()
            if name.startswith(kinds)
        }

    def since_last(self, passed_s: float) -> Iterator[float]:
        """What each counter has grown by in `passed_s` seconds, where it can have wrapped only
        once."""
        for zone, before in self._before.items():
            now, span = _number(zone / "energy_uj"), _number(zone / "max_energy_range_uj")
            self._before[zone] = now
            if before is not None and now is not None and (span or 0) > passed_s * _MOST_W * 1e6:
                yield (now - before) % (span or 1) / 1e6


def temporary_space() -> dict[str, dict[str, int]]:
    """By /dev/shm and /tmp: `total_bytes` and `free_bytes` for this user."""
    found = {}
    for path in TEMPORARY:
        with contextlib.suppress(OSError):
            disk = shutil.disk_usage(path)
            found[path] = {"total_bytes": disk.total, "free_bytes": disk.free}
    return found


def infiniband_ports(roots: Roots = HERE) -> list[dict[str, Any]]:
    """Each port by `port`, such as `mlx5_0/1`: its `state` and the kernel's error counters."""
    found = []
    with contextlib.suppress(OSError):
        for port in sorted(roots.infiniband.glob("*/ports/*")):
            state = _text(port / "state")
            if state is None:
                continue
            one: dict[str, Any] = {
                "port": f"{port.parent.parent.name}/{port.name}",
                "state": state.rpartition(":")[2].strip(),
            }
            for name in _COUNTERS:
                if (count := _number(port / "counters" / name)) is not None:
                    one[name] = count
            found.append(one)
    return found


def limits(roots: Roots = HERE) -> dict[str, int | None]:
    """`memlock_bytes` and `open_files` of this process, which ranks inherit (None: unlimited), and
    `memory_bytes`, the cgroup's (absent if unknown)."""
    found: dict[str, int | None] = {}
    for name, which in (
        ("memlock_bytes", resource.RLIMIT_MEMLOCK),
        ("open_files", resource.RLIMIT_NOFILE),
    ):
        soft, _ = resource.getrlimit(which)
        found[name] = None if soft == resource.RLIM_INFINITY else soft
    if (most := Cgroup(roots).sample().get("memory_max_bytes")) is not None:
        found["memory_bytes"] = most
    return found
