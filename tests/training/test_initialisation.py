"""First values depend on the seed and the parameter's name, and on nothing else."""

from __future__ import annotations

import torch

from fsdpkit.training.initialisation import seeded_generator


def test_another_seed_and_another_name_give_other_values():
    drawn = {
        (seed, name): torch.rand(3, generator=seeded_generator(name, seed, torch.device("cpu")))
        for seed in (0, 1, 42)
        for name in ("a.weight", "b.weight")
    }
    assert len({tuple(values.tolist()) for values in drawn.values()}) == 6
