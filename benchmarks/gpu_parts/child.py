"""One part in a process of its own, started by gpu.py: `child.py CONTEXT`, a JSON object."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.gpu_parts.device import Device
from benchmarks.gpu_parts.part import Part
from fsdpkit.training.distributed import Ranks, process_group

WITHOUT_GPU = ("trainer", "saves", "plans")
"""They start processes that want all of the GPU, or none, so that their own makes no context."""


def main() -> None:
    context = json.loads(sys.argv[1])
    run = importlib.import_module(f"benchmarks.gpu_parts.{context['name']}").run
    if context["name"] in WITHOUT_GPU:
        run(part_of(context, Ranks(0, 0, 1, 1, torch.device("cpu"))))
        return
    with process_group() as ranks:
        run(part_of(context, ranks))


def part_of(context: Mapping[str, Any], ranks: Ranks) -> Part:
    paths = {name: Path(context[name]) for name in ("file", "scratch")}
    return Part(**{**context, **paths}, ranks=ranks, device=Device(ranks.device))


if __name__ == "__main__":
    main()
