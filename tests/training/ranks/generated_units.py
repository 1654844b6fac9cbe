"""T5 writes while it is sharded, its units being blocks, groups of them, parts and the whole.

Found: {units: the ids that each text got}.
"""

from __future__ import annotations

from pathlib import Path

import fsdp_t5
import torch
from search import Search, generate

from fsdpkit.config.training import load_settings
from fsdpkit.training.distributed import Ranks

UNITS = {
    "blocks": [],
    "two blocks": ["sharding.blocks_per_unit=2"],
    "one block": ["sharding.wrap=names", 'sharding.wrap_names=["decoder.block.1"]'],
    "parts of blocks": [
        "sharding.wrap=names", 'sharding.wrap_names=["*.layer.1", "*.layer.2", "decoder.block.0"]',
    ],
    "no unit but the whole": ["sharding.wrap=size", "sharding.wrap_parameters=100000000"],
}  # fmt: skip
SMALL = ["model.preset=tiny-byt5", "precision.param=float32", "steps=1", "evaluation.rouge=true"]


def main(ranks: Ranks, folder: Path) -> dict:
    found = {}
    source = torch.arange(40, 76).reshape(2, 18)
    mask = torch.ones_like(source, dtype=torch.bool)
    for name, sets in UNITS.items():
        settings = load_settings({}, [*SMALL, *sets])
        model, _ = fsdp_t5.build(settings, 300, ranks)
        loss = model(source, mask, source[:, :6], loss="whole")
        loss.backward()
        model.eval()
        found[name] = generate(model, source, mask, Search(max_new_tokens=5))
    return found
