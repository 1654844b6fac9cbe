"""Models for `fsdpkit plan --model`, small enough for real ranks."""

from __future__ import annotations

import os
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


class Spectral(Layer):
    """A product of its weight, which FSDP makes bfloat16, with buffers that stay float32."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        nn.utils.parametrizations.spectral_norm(self.up)


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


def spectral() -> dict[str, Any]:
    return mlp_of(Spectral)


def broken() -> dict[str, Any]:
    raise ValueError("no such file")


# Kinds of models that were planned wrongly once


def frozen() -> dict[str, Any]:
    """Whole units of it: the embedding's side and a block."""
    given = reader()
    for part in (given["model"].token, given["model"].layers[0]):
        part.requires_grad_(False)
    return given


class Distilled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = Reader().requires_grad_(False), Reader()

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.teacher(tokens).log_softmax(-1)
        return F.kl_div(self.student(tokens).log_softmax(-1), target, log_target=True)


def distilled() -> dict[str, Any]:
    return {key: v for key, v in {**reader(), "model": Distilled()}.items() if key != "loss"}


def tied() -> dict[str, Any]:
    """Built with values, as most are."""
    model = Reader()
    model.head = nn.Linear(64, 256, bias=False)
    model.head.weight = model.token.weight
    return {**reader(), "model": model}


class Compiled(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return gated(super().forward(x))


@torch.compile
def gated(x: Tensor) -> Tensor:
    return F.silu(x) * x


def compiled() -> dict[str, Any]:
    """A function, and the whole."""
    return {**mlp_of(Compiled), "model": torch.compile(Reader(Compiled))}


class OnCuda(Layer):
    """All ways in which a program names it."""

    def forward(self, x: Tensor) -> Tensor:
        here = torch.device("cuda", torch.cuda.current_device())
        ones = [
            torch.ones(64, device="cuda"), torch.ones(64).to("cuda:0"), torch.ones(64).cuda(),
            torch.ones(64, device=here), torch.ones(64, device=torch.cuda.current_device()),
        ]  # fmt: skip
        assert all(each.is_cuda for each in ones)
        return super().forward(x + torch.stack(ones).sum(0).to(x.dtype))


def on_cuda() -> dict[str, Any]:
    return {**reader(), "model": Reader(OnCuda).to("cuda"), "blocks": [OnCuda]}


class Casting(Layer):
    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        assert normed.dtype is torch.float32
        assert self.up(normed).dtype is (normed @ normed.mT).dtype is torch.bfloat16
        return super().forward(x)


def autocast() -> dict[str, Any]:
    """Norms and the loss in float32, products in bfloat16."""

    def forward(model: nn.Module, batch: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return cross_entropy(model(batch), batch)

    given = mlp_of(Casting)
    return {key: v for key, v in given.items() if key != "loss"} | {"forward": forward}


class Flex(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        length = x.shape[1]
        mask = create_block_mask(_earlier, None, None, length, length, device="cuda")
        q, k, v = self.inner(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = torch.compile(flex_attention)(q, k, v, block_mask=mask, score_mod=_nearer)
        return x + self.outer(mixed.transpose(1, 2).flatten(2))


def _earlier(_: Any, __: Any, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def _nearer(score: Tensor, _: Any, __: Any, query: Tensor, key: Tensor) -> Tensor:
    return score - (query - key)


def flex() -> dict[str, Any]:
    return mlp_of(Flex)


class Recurrent(Layer):
    kind: type[nn.Module] = nn.LSTM

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.states = self.kind(width, width, 2, batch_first=True, bidirectional=True)
        self.cell = nn.GRUCell(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        states = self.states(x)[0]
        return x + self.cell(states.flatten(0, 1), x.flatten(0, 1)).view_as(x)


class Gru(Recurrent):
    kind = nn.GRU


def lstm() -> dict[str, Any]:
    return mlp_of(Recurrent)


def gru() -> dict[str, Any]:
    return mlp_of(Gru)


def sized(length: int = 48) -> dict[str, Any]:
    return {**reader(), "batch": torch.zeros(4, length, dtype=torch.int64)}


# Bad ones


def trains() -> dict[str, Any]:
    Reader()(torch.zeros(1, 2, dtype=torch.int64)).sum().backward()
    return reader()


def ends() -> dict[str, Any]:
    os._exit(7)


def without_samples() -> dict[str, Any]:
    return {**reader(), "batch": torch.zeros(0, 48, dtype=torch.int64)}


def sparse() -> dict[str, Any]:
    given = reader()
    given["model"].token.sparse = True
    return given


class Noisy(Layer):
    def forward(self, x: Tensor) -> Tensor:
        print("x" * 100_000)
        if os.fork() == 0:
            os._exit(0)
        return super().forward(x)


def noisy() -> dict[str, Any]:
    return mlp_of(Noisy)
