"""A T5 of a few thousand weights and batches for it, for tests that need a model."""

from __future__ import annotations

import torch
from model import IGNORE, PAD, T5, T5Config, init_parameter
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

DIMENSIONS = {
    "vocab_size": 40, "d_model": 12, "d_ff": 20, "d_kv": 5, "num_heads": 3,  # 15 is not 12
    "num_layers": 2, "num_decoder_layers": 3, "dropout_rate": 0.0,
}  # fmt: skip
V1_0 = {"feed_forward_proj": "relu", "tie_word_embeddings": True}
V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}

Batch = tuple[Tensor, Tensor, Tensor]  # source, source_mask, labels


def build(attention: str = "sdpa", **family: object) -> T5:
    """In training mode, with T5's initial values; the same for every `attention`."""
    torch.manual_seed(0)
    model = T5(T5Config(**{**DIMENSIONS, **family}), attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            init_parameter(model.config, name, parameter, torch.default_generator)
    return model


def batch_of(*samples: tuple[list[int], list[int]], extra: int = 0) -> Batch:
    """(source ids, target ids) a row, padded to the longest and `extra` more."""
    longest = [max(map(len, field)) + extra for field in zip(*samples, strict=True)]

    def rows(field: int, fill: int) -> Tensor:
        return torch.stack(
            [
                pad(torch.tensor(s[field], dtype=torch.int64), (0, longest[field] - len(s[field])),
                    value=fill)
                for s in samples
            ]
        )  # fmt: skip

    mask = torch.stack([torch.arange(longest[0]) < len(s[0]) for s in samples])
    return rows(0, PAD), mask, rows(1, IGNORE)


def loss_and_gradients(model: T5, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    scores = model(*batch)
    loss = cross_entropy(scores.flatten(0, 1), batch[2].flatten(), ignore_index=IGNORE)
    loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}
