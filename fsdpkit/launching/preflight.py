"""What is checked on every node in the seconds before torchrun starts.

Each check returns what it found or raises NodeError with the remedy: BrokenNodeError if another
node may work, so the job is requeued without this one; PortTakenError if another port may. The
agent adds the node's name and records everything, so a failed start says which node and why.
Anything that looks wrong but does not prevent training is a warning in the node's log.
`FSDPKIT_PREFLIGHT=0` (template parameter `preflight = false`) skips everything but the check of
the run directory.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import platform
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

import fsdpkit
from fsdpkit.config.gpu import build_problem
from fsdpkit.errors import BrokenNodeError, NodeError, PortTakenError
from fsdpkit.launching import machine, nvml
from fsdpkit.launching.job_log import exclude_this_node, warn
from fsdpkit.launching.torch_release import installed_torch, too_old, untested
from fsdpkit.runs.layout import AttemptPaths
from fsdpkit.runs.node_report import GpuState
from fsdpkit.runs.reading import read_json

_FOREIGN_MIB = 1024
"""Below it, what a desktop, a monitor or the driver itself keeps on a GPU."""
_FOREIGN_WAIT_S = 15.0
"""How long the processes of the job before may take to leave."""


def check_gpus(environ: Mapping[str, str]) -> int | None:
    """As many GPUs as ranks, according to Slurm's binding or NVML, and a torch that can use them.
    None if ranks run on CPU cores, or if unknown. If the site profile does not give the vendor of
    the GPUs, a torch without GPU support is a loud warning, not an error."""
    device = environ.get("FSDPKIT_DEVICE", "gpu")
    if device == "cpu":
        return None
    wanted = int(environ.get("FSDPKIT_GPUS_PER_NODE") or environ["FSDPKIT_RANKS_PER_NODE"])
    if problem := _torch_without_gpus():
        if device != "gpu":
            raise NodeError(f"{problem}: install the build for {device} GPUs", "version-mismatch")
        warn(f"{problem}; ranks train on CPU cores")
    found, source = _visible_gpus(environ)
    if found is not None and found < wanted:
        raise BrokenNodeError(
            f"{wanted} GPUs were asked for on each node, {source} shows {found} here; "
            f"{exclude_this_node(environ)} and tell the centre",
            "bad-gpu",
        )
    _check_build(environ)
    return found


def _check_build(environ: Mapping[str, str]) -> None:
    """This torch has code for these GPUs, where NVML tells which they are. Raises NodeError."""
    import torch

    if not torch.version.cuda:
        return
    architectures = torch.cuda.get_arch_list()
    for name, capability in dict.fromkeys(nvml.capabilities(environ)):
        if problem := build_problem(capability, name, torch.__version__, architectures):
            raise NodeError(problem, "version-mismatch")


def _torch_without_gpus() -> str | None:
    import torch

    if torch.version.cuda or torch.version.hip:
        return None
    return f"GPUs were asked for, but torch {torch.__version__} is built without GPU support"


def _visible_gpus(environ: Mapping[str, str]) -> tuple[int | None, str]:
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if name in environ:
            listed = [d for d in environ[name].split(",") if d.strip() not in ("", "NoDevFiles")]
            return len(listed), name
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount()), "NVML"
    except Exception:  # the extra is not installed, or there is no driver: unknown
        return None, "nothing"


def check_gpu_memory(environ: Mapping[str, str]) -> int | None:
    """MiB in use on this job's GPUs before a rank runs; None without GPUs or NVML. Memory held by
    another process, usually one that outlived its job, is lost to our ranks."""
    if environ.get("FSDPKIT_DEVICE", "gpu") == "cpu":
        return None
    deadline = time.monotonic() + _FOREIGN_WAIT_S
    while True:
        states = nvml.gpu_states(environ)
        occupied = [gpu for gpu in states if (gpu.memory_used_mib or 0) > _FOREIGN_MIB]
        strangers = [gpu for gpu in occupied if gpu.processes]
        if not strangers:
            break
        if time.monotonic() > deadline:
            raise BrokenNodeError(
                f"another process holds GPU memory: {'; '.join(map(_occupied, strangers))}; "
                f"{exclude_this_node(environ)} and tell the centre",
                "bad-gpu",
            )
        time.sleep(1)
    for gpu in occupied:  # a dying process, or one in another container
        warn(f"{_occupied(gpu)}, by nobody that can be seen")
    _check_gpu_health(states, environ)
    return sum(gpu.memory_used_mib or 0 for gpu in states) if states else None


def _occupied(gpu: GpuState) -> str:
    who = f" by {', '.join(gpu.processes)}" if gpu.processes else ""
    return f"GPU {gpu.index} has {gpu.memory_used_mib} MiB in use{who}"


def _check_gpu_health(states: Sequence[GpuState], environ: Mapping[str, str]) -> None:
    for gpu in states:
        if gpu.remap_failed:
            raise BrokenNodeError(
                f"GPU {gpu.index} has a damaged row of memory and none to replace it; "
                f"{exclude_this_node(environ)} and tell the centre",
                "bad-gpu",
            )
        if gpu.remap_pending:
            warn(f"GPU {gpu.index} waits for a reset to replace a damaged row of its memory")


def check_gpu_model(environ: Mapping[str, str]) -> str | None:
    """The GPUs' model, as a record of what was measured on; None: CPU cores, or unknown."""
    if environ.get("FSDPKIT_DEVICE") == "cpu":
        return None
    names = {name for name, _ in nvml.capabilities(environ) if name}
    return ", ".join(sorted(names)) or None


Check = Callable[[Mapping[str, str]], Any]

_RANK_MB = 350
"""Resident memory of a rank before its model: Python with torch and gloo, measured on CPU."""
_CLOCK_S = 5.0
_MEMLOCK_BYTES = 1 << 30


def run_checks(environ: Mapping[str, str]) -> dict[str, Any]:
    """All checks in order: {check: finding}, and `preflight_s`, the seconds they took. Raises
    NodeError at the first that fails. If switched off, `software` has the installed versions, and
    what was not checked is None."""
    started = time.monotonic()
    if environ.get("FSDPKIT_PREFLIGHT") == "0":
        free_gb = check_run_directory(environ)
        findings = dict.fromkeys(CHECKS) | {"run_directory_free_gb": free_gb}
        findings["software"] = _versions(installed_torch() or "not installed")
    else:
        findings = {name: check(environ) for name, check in CHECKS.items()}
    return {**findings, "preflight_s": round(time.monotonic() - started, 2)}


def check_software(environ: Mapping[str, str]) -> dict[str, str]:
    """torch can be imported (torchrun needs it here anyway); versions, compared between nodes."""
    try:
        import torch

        version = torch.__version__
    # AttributeError: an empty directory, which some file systems show for a deleted package.
    except (ImportError, OSError, AttributeError) as error:
        # Another node may have the shared library that this one lacks, or see files where this one
        # sees only directories. A missing or wrong module is not the node's fault.
        library = isinstance(error, OSError) or ".so" in str(error)
        kind = BrokenNodeError if library or _is_hollow("torch") else NodeError
        remedy = "does every node see the environment that the job activates?"
        if path := _in_place_of_pythons():
            kind, remedy = NodeError, f"{path} has the name of a module of Python's own: rename it"
        raise kind(
            f"torch cannot be imported by {sys.executable} on this node ({error}); {remedy}",
            "import-error",
        ) from error
    if problem := too_old(version):
        raise NodeError(problem, "version-mismatch")
    if note := untested(version):
        warn(note)
    return _versions(version)


def _is_hollow(name: str) -> bool:
    """Whether the module was found in this environment as a directory without its files."""
    module = sys.modules.get(name)
    directories = [str(path) for path in getattr(module, "__path__", ())]
    places = tuple(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    hollow = bool(directories) and getattr(module, "__file__", None) is None
    return hollow and all(path.startswith(places) for path in directories)


def _in_place_of_pythons() -> str | None:
    """A file that was imported instead of one of Python's own modules."""
    own = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    for name in sys.stdlib_module_names & sys.modules.keys():
        path = getattr(sys.modules[name], "__file__", None) or ""
        if path and not any(os.path.realpath(path).startswith(where + os.sep) for where in own):
            return str(path)
    return None


def _versions(torch: str) -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": str(torch),
        "fsdpkit": fsdpkit.__version__,
    }


def check_head(environ: Mapping[str, str]) -> str | None:
    """The head node's name or address resolves to one that this node can use; None on one node."""
    host = environ.get("RDZV_HOST")
    if host is None:
        return None
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise NodeError(
            f"the head node's name {host!r} does not resolve on this node ({error.strerror}); set "
            'rendezvous.address = "ip" or the right prefix and suffix in the site profile',
            "head-address",
        ) from error
    addresses = sorted({str(answer[4][0]).split("%")[0] for answer in answers})
    if environ.get("FSDPKIT_ALLOW_LOOPBACK") == "1":
        return addresses[0]
    useless = [a for a in addresses if _not_reachable_from_elsewhere(a)]
    if useless:
        raise NodeError(
            f"the head node {host!r} resolves to {', '.join(useless)} on this node, which "
            "other nodes cannot reach; correct /etc/hosts or the name service",
            "head-address",
        )
    return addresses[0]


def _not_reachable_from_elsewhere(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return ip.is_loopback or ip.is_link_local or ip.is_unspecified


def check_port(environ: Mapping[str, str]) -> int | None:
    """On the head node: nothing listens on the rendezvous port. None elsewhere."""
    if "RDZV_PORT" not in environ or environ.get("SLURM_NODEID") != "0":
        return None
    port = int(environ["RDZV_PORT"])
    with socket.socket() as probe:
        # Bind as the store will: a connection that is still closing is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            why = os.strerror(error.errno or 0)
            if error.errno == errno.EADDRINUSE:
                raise PortTakenError(port, why) from error
            raise NodeError(
                f"nothing can listen on the rendezvous port {port}: {why}; see "
                "rendezvous.port_base in the site profile",
                "port-taken",
            ) from error
    return port


def check_run_directory(environ: Mapping[str, str]) -> float:
    """The run directory is the one the batch shell made, writable here; free space in GB."""
    attempt = Path(environ["FSDPKIT_ATTEMPT_DIR"])
    # A network file system may take seconds to show what the head node has just written.
    deadline = time.monotonic() + 30
    while not attempt.is_dir():
        if time.monotonic() > deadline:
            raise NodeError(
                f"{attempt} does not exist on this node, though the head node made it: the run "
                "directory must lie on a file system that all nodes share; choose one with --runs",
                "script-not-visible",
            )
        time.sleep(0.2)
    trial = attempt / f".write-check-{environ.get('SLURM_NODEID', '0')}-{os.getpid()}"
    try:
        trial.write_bytes(b"fsdpkit\n")
        trial.unlink()
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "the file system or your quota is full" if full else "check its permissions"
        cause = "disk-full" if full else "storage"
        why = f"{attempt} is not writable here ({error.strerror}): {remedy}"
        raise NodeError(why, cause) from error
    free_gb: float = psutil.disk_usage(str(attempt)).free / 2**30
    wanted_gb = float(environ.get("FSDPKIT_MIN_FREE_GB", "0"))
    if free_gb < wanted_gb:
        raise NodeError(
            f"only {free_gb:.1f} GB are free in {attempt}, {wanted_gb:g} GB are wanted (template "
            "parameter min_free_gb)",
            "disk-full",
        )
    return round(free_gb, 1)


def check_memory(environ: Mapping[str, str]) -> float:
    """Free memory in GB (2^30): enough for the ranks to start, and what Slurm granted this job.
    Less than the grant means that other users' processes, or files left in /dev/shm by a dead job,
    hold memory that Slurm counts as free."""
    available_mb: float = psutil.virtual_memory().available / 2**20
    ranks = int(environ["FSDPKIT_RANKS_PER_NODE"])
    if available_mb < ranks * _RANK_MB:
        raise BrokenNodeError(
            f"only {available_mb:.0f} MB of memory are free, {ranks} ranks need "
            f"{ranks * _RANK_MB} MB to start; {exclude_this_node(environ)}",
            "host-out-of-memory",
        )
    granted_mb = int(environ.get("SLURM_MEM_PER_NODE") or 0)  # 0: the whole node
    if available_mb < granted_mb:
        warn(
            f"{available_mb:.0f} MB of memory are free, Slurm granted {granted_mb} MB: other "
            "processes, or files in /dev/shm, hold the rest"
        )
    return round(available_mb / 2**10, 1)


def check_clock(environ: Mapping[str, str]) -> float:
    """This clock minus that of the run directory's file server, in seconds. 0 if the file system
    takes the time from this node. Never a reason to refuse: training needs no clock, but it decides
    which of two nodes failed first."""
    trial = Path(environ["FSDPKIT_ATTEMPT_DIR"]) / f".clock-{os.getpid()}-{socket.gethostname()}"
    before_s = time.time()
    trial.write_bytes(b"fsdpkit\n")
    after_s, written_s = time.time(), trial.stat().st_mtime
    trial.unlink()
    offset_s = max(before_s - written_s, 0.0) + min(after_s - written_s, 0.0)
    started_s = int(environ.get("SLURM_JOB_START_TIME") or 0)
    if abs(offset_s) > _CLOCK_S:
        warn(f"this clock is {offset_s:+.0f} s off the file server's; tell the centre")
    elif after_s < started_s - _CLOCK_S:
        warn(f"by this clock the job starts in {started_s - after_s:.0f} s; tell the centre")
    return round(offset_s, 3)


def check_limits(environ: Mapping[str, str]) -> dict[str, int | None]:
    """What ranks may lock, open and use (`machine.limits`); a low limit is only a warning."""
    found = machine.limits()
    locked = found["memlock_bytes"]
    if locked is not None and locked < _MEMLOCK_BYTES and machine.infiniband_ports():
        warn(
            f"processes may lock only {locked >> 10} KiB of memory (ulimit -l), which InfiniBand "
            "needs much of: tell the centre (PropagateResourceLimits, LimitMEMLOCK of slurmd)"
        )
    return found


CHECKS: dict[str, Check] = {
    "run_directory_free_gb": check_run_directory,
    "software": check_software,
    "memory_available_gb": check_memory,
    "limits": check_limits,
    "clock_offset_s": check_clock,
    "head_address": check_head,
    "port": check_port,
    "gpus": check_gpus,
    "gpu_memory_used_mib": check_gpu_memory,
    "gpu_model": check_gpu_model,
}


def compare_nodes(attempt: AttemptPaths, node: int, name: str, software: Mapping[str, str]) -> None:
    """Compare this node's versions with those of the first node, which are the reference. One small
    file for the whole job: a thousand nodes read it once each. Raises NodeError naming both nodes
    and what differs."""
    own = attempt.dir / f".software-{node}.tmp"
    own.write_text(json.dumps({"node": name, **software}))
    try:
        os.link(own, attempt.software)  # complete or not at all, also on network file systems
    except FileExistsError:
        pass
    except OSError:  # no hard links here: if two are first at once, the later one counts
        if not attempt.software.exists():
            os.replace(own, attempt.software)
    own.unlink(missing_ok=True)
    first = read_json(attempt.software)
    for key, version in software.items():
        if first.get(key) != version:
            raise NodeError(
                f"{key} is {version} on {name} but {first.get(key)} on {first['node']}: all "
                "nodes must see the same environment",
                "version-mismatch",
            )
