"""One part in a process of its own, started by gpu.py: `child.py CONTEXT`, a JSON object.

Appends its rows to the file that CONTEXT names, the first of which, "about", says what it runs on.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.gpu_parts.device import Device
from benchmarks.gpu_parts.part import Part
from benchmarks.gpu_parts.plan import REPEATED_WHOLE
from benchmarks.gpu_parts.rows import ABOUT, Row, append, latest, read
from fsdpkit.training.distributed import Ranks, process_group

PARTS = {
    "ceilings": ("ceilings", "run"),
    "attention": ("attention_alone", "run"),
    "correctness": ("correctness", "run"),
    "triton": ("correctness", "run_triton"),
    "speed": ("speed", "run_large"),
    "xl": ("speed", "run_xl"),
    "profile": ("step_kernels", "run"),
    "trainer": ("trainer", "run"),
    "peers-eager": ("peers", "run_eager"),
    "peers-sdpa": ("peers", "run_sdpa"),
    "peers-compiled": ("peers", "run_compiled"),
    "memory": ("memory", "run"),
    "checkpoints": ("checkpoints", "run"),
    "machine": ("machine", "run"),
}
"""Module and function of each part."""

WITHOUT_GPU = ("trainer", "machine")
"""These start processes that want all of the GPU, so that their own makes no CUDA context."""


def main() -> None:
    context = json.loads(sys.argv[1])
    die_with(context["parent"])
    module, function = PARTS[context["part"]]
    run = getattr(importlib.import_module(f"benchmarks.gpu_parts.{module}"), function)
    if context["part"] in WITHOUT_GPU:
        run(part_of(context, Ranks(0, 0, 1, 1, torch.device("cpu"))))
        return
    with process_group() as ranks:
        part = part_of(context, ranks)
        with part.device.compiler():
            run(part)


def die_with(parent: int) -> None:
    """However gpu.py ends, its part does not go on alone; see prctl(2), PR_SET_PDEATHSIG.

    In a test, where a rank of a pool is the part, the parent is another and is left as it is.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if not Path(f"/proc/{parent}").exists():  # it ended while this process was starting
        sys.exit(1)


def part_of(context: Mapping[str, Any], ranks: Ranks) -> Part:
    name, file = context["part"], Path(context["file"])
    known = read(file)
    device = Device(ranks.device)
    earlier = settled(known, context)
    part = Part(
        name,
        file,
        context["deadline"],
        context["dry"],
        ranks,
        device,
        Path(context["scratch"]),
        earlier,
        tuple(latest(known)),
    )
    part.record(ABOUT, {"status": "measured", **about(device)})
    return part


def settled(known: list[Row], context: Mapping[str, Any]) -> dict[str, Row]:
    """Rows by name that this process leaves alone: measured ones, and of this call also those that
    failed, or in which the process died, which is written down now."""
    name, found = context["part"], {}
    if name in REPEATED_WHOLE:
        return {}
    for row in latest(row for row in known if row["part"] == name):
        at = row.get("at", 0.0)
        if row["status"] == "started" and at >= context["call"]:
            why = "the process ended while this was measured"
            row = append(Path(context["file"]), {**row, "status": "failed", "why": why})
        of_this_call = row["status"] == "failed" and at >= context["call"]
        if (row["status"] == "measured" and at >= context["since"]) or of_this_call:
            found[row["name"]] = row
    found.pop(ABOUT, None)
    return found


def about(device: Device) -> dict[str, object]:
    optional = ("transformers", "accelerate", "triton")
    found = {name: installed(name) for name in optional if importlib.util.find_spec(name)}
    cuda = {"cuda": torch.version.cuda} if device.on_gpu else {}
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {
        "device": device.name,
        "memory_bytes": device.total_bytes,
        "versions": {**versions, **cuda, **found},
        "setup": setup(device),
    }


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "of unknown version"


def setup(device: Device) -> dict[str, object]:
    """What else speeds depend on; None for what cannot be found out."""
    cache = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", "/nonexistent"))
    found: dict[str, object] = {
        "commit": first_line("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "compiled_before": cache.exists() and any(cache.iterdir()),
    }
    if device.on_gpu:
        free, total = torch.cuda.mem_get_info(device.torch)
        query = ("nvidia-smi", "--query-gpu=driver_version,power.limit", "--format=csv,noheader")
        found |= {
            "driver": first_line(*query),
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
            "free_bytes": free,
            "total_bytes": total,
        }
    return found


def first_line(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.splitlines()), None)


if __name__ == "__main__":
    main()
