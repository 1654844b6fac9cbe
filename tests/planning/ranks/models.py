"""Models for `fsdpkit plan --model`, small enough for real ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Reader(nn.Module):
    def __init__(self, layer: type[nn.Module] = Layer) -> None:
        super().__init__()
        self.token = nn.Embedding(256, 64)
        self.layers = nn.Sequential(*(layer(64) for _ in range(3)))
        self.head = nn.Linear(64, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.token(tokens)))


def cross_entropy(scores: Tensor, batch: Tensor) -> Tensor:
    return F.cross_entropy(scores.float().flatten(0, 1), batch.flatten(), reduction="sum")


def reader() -> dict[str, Any]:
    with torch.device("meta"):
        model = Reader()
    batch = torch.zeros(4, 48, dtype=torch.int64)
    return {"model": model, "batch": batch, "loss": cross_entropy, "blocks": [Layer]}


def llama() -> dict[str, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=264, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, attn_implementation="eager",
        use_cache=False,
    )  # fmt: skip
    ids = torch.zeros(4, 32, dtype=torch.int64)
    return {"model": LlamaForCausalLM(config), "batch": {"input_ids": ids, "labels": ids}}


class Branching(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum().item() > 0 else x


def branching() -> dict[str, Any]:
    given = reader()
    return {**given, "model": Reader(Branching).to("meta"), "blocks": [Branching]}


class Numpy(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.from_numpy(x.detach().cpu().numpy())


def through_numpy() -> dict[str, Any]:
    given = reader()
    return {**given, "model": Reader(Numpy).to("meta"), "blocks": [Numpy]}


def no_loss() -> dict[str, Any]:
    return {key: value for key, value in reader().items() if key != "loss"}


def misspelt() -> dict[str, Any]:
    return {**reader(), "los": cross_entropy}


def wordy() -> dict[str, Any]:
    return {**reader(), "vocabulary": "abc"}


class Hoarding(Layer):
    """Keeps what a checkpointed layer should let go of, as for a plot of activations."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.up(self.norm(x))
        return x + self.down(F.gelu(self.seen))


def hoarding() -> dict[str, Any]:
    given = reader()
    return {**given, "model": Reader(Hoarding).to("meta"), "blocks": [Hoarding]}


def one_wide() -> dict[str, Any]:
    """The second of three layers is eight times as wide inside."""
    given = reader()
    model = given["model"]
    with torch.device("meta"):
        model.layers[1].up, model.layers[1].down = nn.Linear(64, 2048), nn.Linear(2048, 64)
    return given


def mlp_of(layer: type[nn.Module]) -> dict[str, Any]:
    return {**reader(), "model": Reader(layer).to("meta"), "blocks": [layer]}


class Routed(Layer):
    """Computes for the tokens that a mask lets through: how many, only values say."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        chosen = (flat.sum(-1) > 0).nonzero().squeeze(-1)
        some = self.down(F.gelu(self.up(self.norm(flat[chosen]))))
        return flat.index_add(0, chosen, some).view_as(x)


class Masked(Layer):
    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        mask = flat.sum(-1) > 0
        out = flat.clone()
        out[mask] = out[mask] + self.down(F.gelu(self.up(self.norm(flat[mask]))))
        return out.view_as(x)


class Endless(Layer):
    def forward(self, x: Tensor) -> Tensor:
        while x.abs().max() > 1:
            x = x / 2
        return super().forward(x)


@torch.library.custom_op("fsdpkit_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


torch.library.register_autograd("fsdpkit_tests::twice", lambda ctx, grad: grad * 2)


class OwnKernel(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return twice(super().forward(x))


class Address(Layer):
    """As a Triton kernel or an extension in C does it: by address."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.data_ptr() % 2


def routed() -> dict[str, Any]:
    return mlp_of(Routed)


def masked() -> dict[str, Any]:
    return mlp_of(Masked)


def endless() -> dict[str, Any]:
    return mlp_of(Endless)


def own_kernel() -> dict[str, Any]:
    return mlp_of(OwnKernel)


def address() -> dict[str, Any]:
    return mlp_of(Address)


def broken() -> dict[str, Any]:
    raise ValueError("no such file")
