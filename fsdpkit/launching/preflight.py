"""What is checked on every node in the seconds before torchrun starts.

Each check returns what it found or raises NodeError with the remedy; the agent adds the node's
name and writes everything down, so that a failed start says which node and why.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

import fsdpkit
from fsdpkit.errors import NodeError
from fsdpkit.runs.layout import AttemptPaths

Check = Callable[[Mapping[str, str]], Any]


def run_checks(environ: Mapping[str, str]) -> dict[str, Any]:
    """All checks in order: {check: finding}. Raises NodeError at the first that fails."""
    return {name: check(environ) for name, check in CHECKS.items()}


def check_software(environ: Mapping[str, str]) -> dict[str, str]:
    """torch can be imported (torchrun needs it in this process anyway); versions, to be compared
    between nodes."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library that cannot be loaded
        raise NodeError(
            f"torch cannot be imported by {sys.executable} on this node ({error}); does every node "
            "see the environment that the job activates?"
        ) from error
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
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
            'rendezvous.address = "ip" or the right prefix and suffix in the site profile'
        ) from error
    addresses = sorted({str(answer[4][0]).split("%")[0] for answer in answers})
    if environ.get("FSDPKIT_ALLOW_LOOPBACK") == "1":
        return addresses[0]
    useless = [a for a in addresses if _not_reachable_from_elsewhere(a)]
    if useless:
        raise NodeError(
            f"the head node {host!r} resolves to {', '.join(useless)} on this node, which "
            "other nodes cannot reach; correct /etc/hosts or the name service"
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
        # As the store will bind: a connection that is still closing is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise NodeError(
                f"port {port} is taken on the head node ({error.strerror}) although it was free a "
                "moment ago; submit again, or move rendezvous.port_base in the site profile"
            ) from error
    return port


def check_gpus(environ: Mapping[str, str]) -> int | None:
    """As many GPUs as ranks, by what Slurm bound or NVML sees, and a torch that can use them.

    None if ranks run on CPU cores, or nobody can say. Where the site profile does not know whose
    GPUs the nodes have, a torch without GPU support is told loudly, not refused.
    """
    device = environ.get("FSDPKIT_DEVICE", "gpu")
    if device == "cpu":
        return None
    wanted = int(environ["FSDPKIT_RANKS_PER_NODE"])
    if problem := _torch_without_gpus():
        if device != "gpu":
            raise NodeError(f"{problem}: install the build for {device} GPUs")
        print(f"fsdpkit: warning: {problem}; ranks train on CPU cores", flush=True)
    found, source = _visible_gpus(environ)
    if found is not None and found < wanted:
        raise NodeError(
            f"{wanted} GPUs were asked for on each node, {source} shows {found} here; exclude this "
            f"node with --set resources.exclude={environ.get('SLURMD_NODENAME', '…')} and tell the "
            "centre"
        )
    return found


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
    except Exception:  # the extra is not installed, or there is no driver: nobody can say
        return None, "nothing"


def check_run_directory(environ: Mapping[str, str]) -> float:
    """The run directory is the one the batch shell made, writable here; free space in GB."""
    attempt = Path(environ["FSDPKIT_ATTEMPT_DIR"])
    # What the head node made a moment ago may take a network file system some seconds to show.
    deadline = time.monotonic() + 30
    while not attempt.is_dir():
        if time.monotonic() > deadline:
            raise NodeError(
                f"{attempt} does not exist on this node, though the head node made it: the run "
                "directory must lie on a file system that all nodes share; choose one with --runs"
            )
        time.sleep(0.2)
    trial = attempt / f".write-check-{environ.get('SLURM_NODEID', '0')}-{os.getpid()}"
    try:
        trial.write_bytes(b"fsdpkit\n")
        trial.unlink()
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "the file system or your quota is full" if full else "check its permissions"
        raise NodeError(f"{attempt} is not writable here ({error.strerror}): {remedy}") from error
    free_gb: float = psutil.disk_usage(str(attempt)).free / 2**30
    wanted_gb = float(environ.get("FSDPKIT_MIN_FREE_GB", "0"))
    if free_gb < wanted_gb:
        raise NodeError(
            f"only {free_gb:.1f} GB are free in {attempt}, {wanted_gb:g} GB are wanted (template "
            "parameter min_free_gb)"
        )
    return round(free_gb, 1)


CHECKS: dict[str, Check] = {
    "run_directory_free_gb": check_run_directory,
    "software": check_software,
    "head_address": check_head,
    "port": check_port,
    "gpus": check_gpus,
}


def compare_nodes(attempt: AttemptPaths, node: int, name: str, software: Mapping[str, str]) -> None:
    """Compare this node's versions with those of the node that was first, which sets the measure.

    One small file for the whole job: a thousand nodes read it once each. Raises NodeError naming
    both nodes and what differs.
    """
    own = attempt.dir / f".software-{node}.tmp"
    own.write_text(json.dumps({"node": name, **software}))
    try:
        os.link(own, attempt.software)  # whole or not at all, on network file systems too
    except FileExistsError:
        pass
    except OSError:  # no hard links here: of two that are first at once, the later one counts
        if not attempt.software.exists():
            os.replace(own, attempt.software)
    own.unlink(missing_ok=True)
    first = json.loads(attempt.software.read_text())
    for key, version in software.items():
        if first.get(key) != version:
            raise NodeError(
                f"{key} is {version} on {name} but {first.get(key)} on {first['node']}: all "
                "nodes must see the same environment"
            )
