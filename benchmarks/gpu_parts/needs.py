"""What the measurement needs of a machine, looked at before anything is measured.

`facts` asks in a process of its own, as a part would see it; `gaps` says, in one list, what is
missing and what that costs. Standard library only.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

OLDEST_TORCH = (2, 11)
FREE_GPU_SHARE = 0.9
DISK_BYTES = 50 * 10**9
HOST_BYTES = 48 * 10**9

REQUIRED = ("msgspec", "numpy", "psutil", "safetensors")
OPTIONAL = {
    "triton": "no attention by triton, and compiled rows fail",
    "transformers": "no peers",
    "accelerate": "no peers",
    "pynvml": "no readings of the GPU",
}
"""Modules without which some rows say that they are not available."""


class Gap(NamedTuple):
    """`stops`: nothing can be measured."""

    what: str
    cost: str
    stops: bool


def facts(environ: Mapping[str, str], scratch: Path) -> dict[str, Any]:
    """What a part's process finds here; sizes in bytes, modules as version or error."""
    argv = [sys.executable, __file__, str(scratch)]
    done = subprocess.run(argv, env=dict(environ), capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip()[-800:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def gaps(found: Mapping[str, Any], *, dry: bool) -> list[Gap]:
    """What is missing, what stops everything first. A dry run needs no GPU, nor room."""
    if "error" in found:
        return [Gap(f"The machine could not be looked at: {found['error']}", "nothing runs", True)]
    missing = []
    if tuple(found["python"][:2]) < (3, 10):
        missing.append(Gap("Python is older than 3.10", "nothing runs", True))
    missing += _torch(found["modules"]["torch"])
    for name in REQUIRED:
        if problem := found["modules"][name].get("error"):
            what = f"{name} cannot be imported ({problem}): carry it with --wheels"
            missing.append(Gap(what, "nothing runs", True))
    for name, cost in OPTIONAL.items():
        if problem := found["modules"][name].get("error"):
            missing.append(Gap(f"{name} cannot be imported ({problem})", cost, False))
    if not dry:
        missing += _gpu(found["gpu"]) + _room(found)
    return sorted(missing, key=lambda gap: not gap.stops)


def _torch(module: Mapping[str, Any]) -> list[Gap]:
    if problem := module.get("error"):
        return [Gap(f"torch cannot be imported ({problem})", "nothing runs", True)]
    words = module["version"].partition("+")[0].split(".")
    if tuple(int(word) for word in words[:2]) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return [Gap(f"torch {module['version']} is older than {oldest}", "nothing runs", True)]
    return []


def _gpu(gpu: Mapping[str, Any] | None) -> list[Gap]:
    if gpu is None:
        return [Gap("torch sees no GPU (--dry-run needs none)", "nothing runs", True)]
    missing = []
    if not gpu["built_for_it"]:
        what = f"this torch has no code for {gpu['name']} (compute capability {gpu['capability']})"
        missing.append(Gap(what, "nothing runs", True))
    if gpu["free_bytes"] < FREE_GPU_SHARE * gpu["total_bytes"]:
        free, total = (gpu[key] / 2**30 for key in ("free_bytes", "total_bytes"))
        what = f"only {free:.1f} of {total:.1f} GiB of the GPU are free: somebody else uses it"
        missing.append(Gap(what, "smaller batches, and speeds that mean little", False))
    if gpu["devices"] > 1:
        missing.append(Gap(f"{gpu['devices']} GPUs are visible", "only the first is used", False))
    return missing


def _room(found: Mapping[str, Any]) -> list[Gap]:
    missing = []
    if not found["compiler"]:
        what = "no C compiler (cc, gcc or clang), with which Triton builds its launchers"
        missing.append(Gap(what, "no attention by triton, and compiled rows fail", False))
    if not found["headers"]:
        what = "Python.h is missing, which some releases of Triton build with"
        missing.append(Gap(what, "attention by triton and compiled rows may fail", False))
    for key, least, what, cost in (
        ("disk_bytes", DISK_BYTES, f"of disk at {found['scratch']}", "checkpoints fail"),
        ("host_bytes", HOST_BYTES, "of host memory", "checkpoints in the background may fail"),
    ):
        if found[key] < least:
            words = f"{found[key] / 1e9:.0f} GB {what}, {least / 1e9:.0f} are wanted"
            missing.append(Gap(words, cost, False))
    return missing


def describe(found: Mapping[str, Any]) -> str:
    """One line: what the parts will run on."""
    if "error" in found:
        return "unknown machine"
    gpu, modules = found["gpu"], found["modules"]
    names = [f"{n} {m['version']}" for n, m in modules.items() if "version" in m]
    python = ".".join(map(str, found["python"]))
    return f"{gpu['name'] if gpu else 'CPU'}: Python {python}, {', '.join(names)}"


def look(scratch: Path) -> dict[str, Any]:
    """The facts, as this process sees them."""
    modules = {name: _module(name) for name in ("torch", *REQUIRED, *OPTIONAL)}
    include = sysconfig.get_path("include")
    return {
        "python": list(sys.version_info[:3]),
        "machine": platform.machine(),
        "modules": modules,
        "gpu": None if "error" in modules["torch"] else _look_at_gpu(),
        "compiler": next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None),
        "headers": bool(include) and (Path(include) / "Python.h").exists(),
        "scratch": str(scratch),
        "disk_bytes": shutil.disk_usage(scratch).free,
        "host_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"),
        "cpus": len(os.sched_getaffinity(0)),
    }


def _module(name: str) -> dict[str, str]:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a broken package may raise anything
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    return {"version": str(getattr(module, "__version__", "of unknown version"))}


def _look_at_gpu() -> dict[str, Any] | None:
    import torch

    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info(0)
    major, minor = torch.cuda.get_device_capability(0)
    names = [name.partition("_")[2].rstrip("af") for name in torch.cuda.get_arch_list()]
    listed = [int(name) for name in names if name.isdigit()]
    return {
        "name": torch.cuda.get_device_name(0),
        "devices": torch.cuda.device_count(),
        "capability": f"{major}.{minor}",
        "built_for_it": any(major * 10 <= each <= major * 10 + minor for each in listed),
        "free_bytes": free,
        "total_bytes": total,
        "cuda": torch.version.cuda,
    }


if __name__ == "__main__":
    print(json.dumps(look(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir()))))
