"""Somebody's model, and its weights in files of their own names."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

LEFT_OUT = "pooler."


class Block(nn.Linear):
    """A layer that is a unit."""


class Net(nn.Module):
    """A tied head, rows that no number of ranks divides, fewer rows than ranks, a counter."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 12)
        self.layers = nn.ModuleList([Block(12, 12) for _ in range(4)])
        self.gate = nn.Linear(12, 1)
        self.head = nn.Linear(12, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x).relu()
        scores: Tensor = self.head(x * self.gate(x))
        return scores

    @classmethod
    def drawn(cls, seed: int = 3, seen: int = 41) -> Net:
        """With values that bfloat16 holds, the same for all who ask alike."""
        torch.manual_seed(seed)
        net = cls()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.copy_(torch.randn_like(parameter).bfloat16())
            net.seen.fill_(seen)
        return net


def in_files(directory: Path, **changes: Tensor | None) -> Path:
    """Two files and an index in `directory`: half of it bfloat16, and a part of another model;
    tensors replaced, added, or (None) left out."""
    directory.mkdir()
    tensors = {f"transformer.{n}": t for n, t in Net.drawn().state_dict().items()}
    del tensors["transformer.embed.weight"]  # only under its other name
    tensors |= {
        f"{LEFT_OUT}weight": torch.ones(3),
        **{k: v for k, v in changes.items() if v is not None},
    }
    names = [name for name in tensors if changes.get(name, 0) is not None]
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    where = {}
    for number, file in enumerate(("a.safetensors", "b.safetensors")):
        part = {n: tensors[n].clone() for n in halves[number]}
        if number:
            part = {n: t.bfloat16() if t.is_floating_point() else t for n, t in part.items()}
        save_file(part, directory / file)
        where |= dict.fromkeys(part, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return directory
