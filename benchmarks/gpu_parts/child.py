"""One part in a process of its own: `child.py PART FILE DEADLINE dry|full KEPT`, started by gpu.py.

Writes its rows to FILE, the first of which, "about", says what it runs on. KEPT is a JSON list of
the steps that paid, see `steps.STEPS`.
"""

from __future__ import annotations

import importlib.util
import json
import platform
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
    }


if __name__ == "__main__":
    main()
