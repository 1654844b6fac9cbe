"""The samples of a node (`node-<i>.samples.jsonl`), and what they show about why a run ended.

Each agent appends one line every few seconds (launching/sampling.py). A field that the machine does
not provide is absent, and None here: unknown. Lines of older versions have fewer fields. Each
function below looks for one thing and reports it in one sentence, or returns nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from fsdpkit.bounded import NOTE_BYTES, read_end

_FULL = 0.995
_MIB = 1 << 20
_ERRORS_BEFORE_THEY_COUNT = 10
"""A link corrects single errors by itself."""


_Bytes = Annotated[int, Meta(ge=0)]
_Seconds = Annotated[float, Meta(ge=0, le=1e12)]
_Amount = Annotated[float, Meta(ge=0, le=1e18)]


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One of the job's GPUs, in the order of CUDA_VISIBLE_DEVICES."""

    utilization_percent: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None
    temperature_c: float | None = None
    throttled: tuple[str, ...] = ()
    """Why the clock is lowered: `hw_thermal_slowdown`, `sw_power_cap`, … as NVML names them."""
    ecc_uncorrected: int | None = None
    """Since the driver was loaded."""
    xids: tuple[int, ...] = ()
    """XID errors that the driver reported since the sample before."""


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """An InfiniBand port. Counters are the kernel's, from the driver's start."""

    port: str
    """`mlx5_0/1`: the device and its port."""
    state: str
    """`ACTIVE`, `DOWN`, `INIT`, `ARMED`."""
    symbol_error: int | None = None
    link_downed: int | None = None
    port_rcv_errors: int | None = None
    local_link_integrity_errors: int | None = None


class CgroupMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory cgroup that limits the job, or its step."""

    memory_bytes: int | None = None
    memory_max_bytes: int | None = None
    oom_kills: int | None = None
    """Processes that the kernel killed in it, so far."""


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """A file system: /dev/shm or /tmp."""

    total_bytes: int
    free_bytes: int


class GpuSums(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU has done since the sums began. None: it does not say."""

    name: Annotated[str, Meta(max_length=80)] | None = None
    observed_s: _Seconds = 0.0
    """Of which the next two are known: less than has passed where samples were missing."""
    busy_s: _Seconds | None = None
    """In which a kernel ran, one that only waits for other ranks included."""
    active_s: _Seconds | None = None
    """Weighted by the share of multiprocessors that worked."""
    energy_j: _Amount | None = None
    """Read about once a minute, and last."""
    memory_peak_bytes: _Amount | None = None
    """Of what samples showed, other users' processes on the GPU included."""
    memory_total_bytes: _Amount | None = None
    idle_s: _Seconds | None = None
    """Since a sample last showed it busy, or since the first one."""


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """Of a node, since its sampler began: two lines' difference is what was used between them. An
    agent that starts anew in the same attempt begins anew (`since_s`)."""

    since_s: _Seconds
    """Unix time."""
    observed_s: _Seconds
    cpu_s: _Seconds | None = None
    """Core-seconds of the job's processes here."""
    cores: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    """That the job has here."""
    memory_peak_bytes: _Amount | None = None
    """Of the job's cgroup with what the kernel keeps for it; without one, of its processes."""
    memory_total_bytes: _Amount | None = None
    """The limit, or else the node's."""
    host_energy_j: _Amount | None = None
    """Of processors and memory, by RAPL: the whole node's."""
    loading_s: _Seconds | None = None
    """`Sample.loading_s` of all launches so far."""
    gpus: Annotated[tuple[GpuSums, ...], Meta(max_length=1024)] = ()
    """In the order of `Sample.gpus`."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    time_s: Annotated[float, Meta(ge=0, le=1e11)]
    cpu_percent: float | None = None
    """Of all cores."""
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    network_sent_bytes: float | None = None
    """Through the node's network interfaces since it started, not by RDMA; as the next."""
    network_received_bytes: float | None = None
    gpus: tuple[Gpu, ...] = ()
    infiniband: tuple[Port, ...] = ()
    cgroup: CgroupMemory | None = None
    temporary: dict[str, Space] = {}
    optimizer_steps: Annotated[int, Meta(ge=0)] | None = None
    """That its first rank has made since its launch began."""
    loading_s: _Seconds | None = None
    """That this rank's main thread has waited for torch's DataLoaders in its launch."""
    launch: int | None = None
    """The newest."""
    printed: dict[int, tuple[_Bytes, _Bytes]] = {}
    """By global rank, the bytes of its standard output and error in that launch."""
    rested_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    """For how long the processes of the ranks have neither used a CPU nor moved data."""
    sums: Sums | None = None


def read_samples(path: Path) -> list[Sample]:
    """In order, without malformed lines. Raises OSError, but not for a missing file."""
    try:
        data = read_end(path)
    except FileNotFoundError:
        return []
    return list(decoded(data))


def newest_sample(path: Path) -> Sample | None:
    """The last well-formed line among the file's last; None without one, or without the file.
    Raises OSError for a file that cannot be read."""
    try:
        lines = read_end(path, NOTE_BYTES).splitlines()
    except FileNotFoundError:
        return None
    return next((found for line in reversed(lines) if (found := sample_in(line))), None)


def decoded(data: bytes) -> Iterator[Sample]:
    """The samples in whole lines of such a file."""
    return (found for line in data.splitlines() if (found := sample_in(line)) is not None)


_DECODER = msgspec.json.Decoder(Sample)


def sample_in(line: bytes | str) -> Sample | None:
    """None for a line that is incomplete or malformed."""
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


class Reported(msgspec.Struct, frozen=True):
    """An XID error."""

    gpu: int
    xid: int
    time_s: float
    """When the agent heard of it: at the next sample."""


def xids(samples: Sequence[Sample]) -> list[Reported]:
    """All of them, in order."""
    return [
        Reported(place, xid, sample.time_s)
        for sample in samples
        for place, gpu in enumerate(sample.gpus)
        for xid in gpu.xids
    ]


def xids_in_words(samples: Sequence[Sample]) -> str | None:
    """Which GPUs the driver reported errors of."""
    if not (found := xids(samples)):
        return None
    first = found[0]
    others = sorted({(each.gpu, each.xid) for each in found} - {(first.gpu, first.xid)})
    more = "".join(f", XID {xid} of GPU {gpu}" for gpu, xid in others[:4])
    return f"the driver reported XID {first.xid} of GPU {first.gpu}{more}"


OF_THE_HARDWARE = frozenset(
    {48, 62, 64, 74, 79, 92, 94, 95, 110, 119, 120, 122, 136, 140, 143, 144, 145, 149}
)
"""XIDs that speak against the GPU, its memory, links or firmware; 13, 31, 43 and 45, for example,
are the program's. Source: NVIDIA, Xid Errors, the catalog."""


def ecc_in_words(samples: Sequence[Sample]) -> str | None:
    """Whether a GPU's memory had errors that it could not correct while the ranks ran."""
    for gpu in range(max((len(sample.gpus) for sample in samples), default=0)):
        told = [sample.gpus[gpu].ecc_uncorrected for sample in samples if len(sample.gpus) > gpu]
        counts = [count for count in told if count is not None]
        if counts and counts[-1] > counts[0]:
            return f"GPU {gpu} had {counts[-1] - counts[0]} uncorrected memory errors"
    return None


_BY_HARDWARE = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"}
)


def throttling_in_words(samples: Sequence[Sample], gpu: int) -> str | None:
    """What lowered the clock of that GPU most often: its heat or its power supply."""
    told = [sample.gpus[gpu].throttled for sample in samples if len(sample.gpus) > gpu]
    counts = Counter(reason for reasons in told for reason in reasons if reason in _BY_HARDWARE)
    if not counts:
        return None
    reason, count = max(counts.items(), key=lambda item: item[1])
    return f"GPU {gpu} ran at a lower clock in {count} of {len(told)} samples ({reason})"


def oom_kills_in_words(samples: Sequence[Sample]) -> str | None:
    """Whether the kernel killed processes of the job because its memory was used up."""
    known = [each.cgroup for each in samples if each.cgroup and each.cgroup.oom_kills is not None]
    if not known or not known[-1].oom_kills:
        return None
    last, killed = known[-1], known[-1].oom_kills
    which = f"{killed} process{'es' * (killed > 1)} of the job"
    if last.memory_max_bytes is None:
        return f"the kernel killed {which}, which had no memory left"
    limit = f"{last.memory_max_bytes / 2**30:.1f} GiB"
    return f"the kernel killed {which} at its memory limit of {limit}"


def memory_share(sample: Sample) -> float:
    """The part of the node's memory that was in use, 0 to 1; 0 if unknown."""
    used, total = sample.memory_used_bytes, sample.memory_total_bytes
    return used / total if used is not None and total else 0.0


def full_in_words(samples: Sequence[Sample]) -> str | None:
    """Whether /dev/shm or /tmp was full at some time."""
    for sample in reversed(samples):
        for path, space in sorted(sample.temporary.items()):
            if space.total_bytes > 0 and space.free_bytes <= (1 - _FULL) * space.total_bytes:
                left = space.free_bytes // _MIB
                return f"{path} was full: {left} of {space.total_bytes // _MIB} MiB were free"
    return None


def failed_link_in_words(samples: Sequence[Sample]) -> str | None:
    """The InfiniBand port that went down while the ranks ran."""
    for before, port in _ports(samples):
        if before.state == "ACTIVE" != port.state:
            return f"InfiniBand port {port.port} went from ACTIVE to {port.state}"
        if _more(before.link_downed, port.link_downed) > 0:
            return f"the link of InfiniBand port {port.port} went down"
    return None


def link_errors_in_words(samples: Sequence[Sample]) -> str | None:
    """The InfiniBand port whose errors grew while the ranks ran."""
    more: dict[tuple[str, str], int] = {}
    for before, port in _ports(samples):
        for counter in ("symbol_error", "port_rcv_errors", "local_link_integrity_errors"):
            grown = _more(getattr(before, counter), getattr(port, counter))
            more[port.port, counter] = more.get((port.port, counter), 0) + grown
    for (port_, counter), grown in more.items():
        if grown >= _ERRORS_BEFORE_THEY_COUNT:
            return f"InfiniBand port {port_} counted {grown} more {counter}"
    return None


def _ports(samples: Sequence[Sample]) -> Iterator[tuple[Port, Port]]:
    """Each port's states, by twos that follow one another."""
    last: dict[str, Port] = {}
    for sample in samples:
        for port in sample.infiniband:
            if (before := last.get(port.port)) is not None:
                yield before, port
            last[port.port] = port


def _more(before: int | None, after: int | None) -> int:
    return 0 if before is None or after is None else after - before
