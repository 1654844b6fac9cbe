"""One part in a process of its own: `child.py PART FILE DEADLINE dry|full KEPT`, started by gpu.py.

Writes its rows to FILE, the first of which, "about", says what it runs on. KEPT is a JSON list of
the steps that paid, see `steps.STEPS`.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.gpu_parts import checkpoints, correctness, memory, speed
from benchmarks.gpu_parts.device import Device
from benchmarks.gpu_parts.part import Part
from benchmarks.gpu_parts.steps import words_of
from fsdpkit.training.distributed import process_group

Words = tuple[str, ...]
PARTS: dict[str, Callable[[Part, Words], None]] = {
    "correctness": lambda part, _: correctness.run(part),
    "speed": lambda part, _: speed.run_large(part),
    "peers": speed.run_peers,
    "checkpoints": checkpoints.run,
    "memory": lambda part, _: memory.run(part),
    "xl": speed.run_xl,
    "triton": lambda part, _: correctness.run_triton(part),
}


def main() -> None:
    name, file, deadline, how, kept = sys.argv[1:]
    with process_group() as ranks:
        device = Device(ranks.device)
        part = Part(name, Path(file), float(deadline), how == "dry", ranks, device)
        part.record("about", {"status": "measured", **about(device)})
        with device.compiler():
            PARTS[name](part, words_of(json.loads(kept)))


def about(device: Device) -> dict[str, object]:
    optional = ("transformers", "triton")
    found = {name: version(name) for name in optional if importlib.util.find_spec(name)}
    cuda = {"cuda": torch.version.cuda} if device.on_gpu else {}
    return {
        "device": device.name,
        "memory_bytes": device.total_bytes,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            **cuda,
            **found,
        },
        "setup": setup(device),
    }


def setup(device: Device) -> dict[str, object]:
    """What else speeds depend on; None for what cannot be found out."""
    found: dict[str, object] = {
        "commit": first_line("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    if device.on_gpu:
        free, total = torch.cuda.mem_get_info(device.torch)
        query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
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
