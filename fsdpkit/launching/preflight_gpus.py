"""What is checked of a node's GPUs before training; preflight.py calls these with the others."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from fsdpkit.config.gpu import build_problem
from fsdpkit.errors import BrokenNodeError, NodeError
from fsdpkit.launching import nvml
from fsdpkit.launching.job_log import exclude_this_node, warn
from fsdpkit.runs.node_report import GpuState

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
