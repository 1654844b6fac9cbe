"""T5 in plain torch: v1.0, v1.1 and ByT5, to be read in one sitting.

An encoder reads the source, a decoder writes the target one token at a time while looking at the
encoder's output. Architecture: Raffel et al. 2020 (arXiv 1910.10683), Shazeer 2020 for the gated
feed-forward (arXiv 2002.05202), Xue et al. 2022 for ByT5 (arXiv 2105.13626). Parameter names are
those of a Hugging Face T5 state dict, so that weights can be exchanged.

What is unlike other transformers: no biases, no positions in the embeddings (a learned bias per
head and bucketed distance instead), attention scores that are not scaled, and norms that do not
subtract the mean. The file knows nothing of sharding or ranks.

Shapes: B batch, S source tokens, T target tokens, D d_model, H heads, K d_kv, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

PAD, EOS, IGNORE = 0, 1, -100


@dataclass(frozen=True, kw_only=True)
class T5Config:
    """Dimensions under their names in a Hugging Face `config.json`."""

    vocab_size: int
    d_model: int
    d_ff: int
    d_kv: int
    num_heads: int
    num_layers: int
    num_decoder_layers: int
    feed_forward_proj: str = "gated-gelu"  # v1.0: "relu"
    tie_word_embeddings: bool = False  # v1.0: True
    dropout_rate: float = 0.1
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    initializer_factor: float = 1.0
    head_init_std: float = 1.0  # of an untied lm_head; d_model^-0.5 starts at loss ln(V)


class RMSNorm(nn.Module):
    """Divide by the root mean square, then scale; the variance is taken in float32."""

    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        variance = x.float().pow(2).mean(-1, keepdim=True)
        normed = x * torch.rsqrt(variance + self.eps)
        return self.weight * normed.to(self.weight.dtype)


@lru_cache(maxsize=64)
def relative_buckets(
    queries: int, keys: int, bidirectional: bool, buckets: int, max_distance: int
) -> Tensor:
    """Bucket of each offset key − query from −(queries−1) to keys−1; int64 [queries + keys − 1].

    Small distances have a bucket each, larger ones share buckets of logarithmic width. Computed on
    the CPU in float32, as the released models were: bucket edges depend on the rounding.
    """
    offset = torch.arange(-(queries - 1), keys, device="cpu")
    bucket = torch.zeros_like(offset)
    if bidirectional:
        buckets //= 2
        bucket += (offset > 0).long() * buckets
        distance = offset.abs()
    else:
        distance = -offset.clamp(max=0)
    exact = buckets // 2
    ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    coarse = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return bucket + torch.where(distance < exact, distance, coarse)


class Attention(nn.Module):
    """Multi-head attention; the first block of a stack also holds the table of relative biases."""

    def __init__(self, config: T5Config, *, bidirectional: bool, has_bias_table: bool) -> None:
        super().__init__()
        inner = config.num_heads * config.d_kv  # need not equal d_model
        self.heads, self.dropout = config.num_heads, config.dropout_rate
        self.bidirectional = bidirectional
        self.buckets = config.relative_attention_num_buckets
        self.max_distance = config.relative_attention_max_distance
        self.q = nn.Linear(config.d_model, inner, bias=False)
        self.k = nn.Linear(config.d_model, inner, bias=False)
        self.v = nn.Linear(config.d_model, inner, bias=False)
        self.o = nn.Linear(inner, config.d_model, bias=False)
        if has_bias_table:
            self.relative_attention_bias = nn.Embedding(self.buckets, self.heads)

    def position_bias(self, length: int) -> Tensor:
        """Bias of every query–key pair, [1, H, length, length].

        The bias depends only on key − query: looked up once per offset, then each query's row is a
        window into that vector.
        """
        buckets = relative_buckets(
            length, length, self.bidirectional, self.buckets, self.max_distance
        )
        table = self.relative_attention_bias
        by_offset = table(buckets.to(table.weight.device)).t()  # [H, 2·length − 1]
        return by_offset.unfold(-1, length, 1).flip(-2).unsqueeze(0)

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor) -> Tensor:
        """`x` [B, T, D] attends to `memory` [B, S, D]; `bias` is added to the scores."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q(x), self.k(memory), self.v(memory))
        )
        dropout = self.dropout if self.training else 0.0
        # scale=1.0: T5 does not divide by √K; its initialisation accounts for that.
        mixed = F.scaled_dot_product_attention(q, k, v, bias, dropout, scale=1.0)
        return self.o(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """ReLU (v1.0), or a linear map gated by GELU in its tanh form (v1.1, ByT5)."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.gated = config.feed_forward_proj == "gated-gelu"
        for name in ("wi_0", "wi_1") if self.gated else ("wi",):
            setattr(self, name, nn.Linear(config.d_model, config.d_ff, bias=False))
        self.wo = nn.Linear(config.d_ff, config.d_model, bias=False)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            hidden = F.gelu(self.wi_0(x), approximate="tanh") * self.wi_1(x)
        else:
            hidden = F.relu(self.wi(x))
        return self.wo(self.dropout(hidden))


class Sublayer(nn.Module):
    """Norm first, then `inner` under the name Hugging Face gives it, then dropout; residual."""

    def __init__(self, config: T5Config, name: str, inner: nn.Module) -> None:
        super().__init__()
        self.add_module(name, inner)
        self.inner_name = name
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.dropout = nn.Dropout(config.dropout_rate)

    @property
    def inner(self) -> nn.Module:
        return self.get_submodule(self.inner_name)

    def forward(self, x: Tensor, *args: Tensor) -> Tensor:
        normed = self.layer_norm(x)
        memory_and_bias = (normed, *args) if len(args) == 1 else args  # self: memory is x itself
        return x + self.dropout(self.inner(normed, *memory_and_bias))


class Block(nn.Module):
    """One layer of the encoder or the decoder: the unit of sharding and checkpointing."""

    def __init__(self, config: T5Config, *, is_decoder: bool, has_bias_table: bool) -> None:
        super().__init__()
        self_attention = Attention(
            config, bidirectional=not is_decoder, has_bias_table=has_bias_table
        )
        self.has_bias_table = has_bias_table
        self.layer = nn.ModuleList([Sublayer(config, "SelfAttention", self_attention)])
        if is_decoder:
            cross = Attention(config, bidirectional=True, has_bias_table=False)
            self.layer.append(Sublayer(config, "EncDecAttention", cross))
        self.layer.append(Sublayer(config, "DenseReluDense", FeedForward(config)))

    def forward(
        self, x: Tensor, bias: Tensor, memory: Tensor | None, memory_bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The new `x`; from the first block also the bias that the stack's other blocks reuse.

        The first block is given the mask alone and adds the stack's position bias to it: the table
        is its own parameter, so under FSDP it is only whole while this block runs.
        """
        if self.has_bias_table:
            bias = self.layer[0].inner.position_bias(x.shape[1]) + bias
        x = self.layer[0](x, bias)
        if memory is not None and memory_bias is not None:
            x = self.layer[1](x, memory, memory_bias)
        return self.layer[-1](x), bias if self.has_bias_table else None


class Stack(nn.Module):
    """The encoder's or the decoder's blocks, with a norm at the end."""

    def __init__(self, config: T5Config, *, is_decoder: bool) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            Block(config, is_decoder=is_decoder, has_bias_table=i == 0)
            for i in range(config.num_decoder_layers if is_decoder else config.num_layers)
        )
        self.final_layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(
        self,
        embedded: Tensor,
        mask: Tensor,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        x = self.dropout(embedded)
        bias = additive(mask, x.dtype)
        memory_bias = None if memory_mask is None else additive(memory_mask, x.dtype)
        for block in self.block:
            x, stack_bias = block(x, bias, memory, memory_bias)
            bias = bias if stack_bias is None else stack_bias
        return self.dropout(self.final_layer_norm(x))


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where `mask` is true, the most negative finite number elsewhere.

    Not −inf: a row that sees nothing must stay finite. Made in the type the scores have, because
    float32's lowest number rounds to −inf in bfloat16.
    """
    hidden = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return hidden.masked_fill(~mask, torch.finfo(dtype).min)


class T5(nn.Module):
    """Encoder, decoder and the head that scores the vocabulary."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.config = config
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = Stack(config, is_decoder=False)
        self.decoder = Stack(config, is_decoder=True)
        self.lm_head: nn.Linear | None = None
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)

    def forward(self, source: Tensor, source_mask: Tensor, labels: Tensor) -> Tensor:
        """Scores of the next target token, [B, T, V].

        `source` int64 [B, S], `source_mask` bool [B, S] (true on real tokens), `labels` int64
        [B, T] with −100 on padding. The decoder reads the labels shifted right by one.
        """
        memory_mask = source_mask[:, None, None, :]
        memory = self.encoder(self.shared(source), memory_mask)
        length = labels.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=labels.device).tril()
        x = self.decoder(self.shared(shift_right(labels)), causal[None, None], memory, memory_mask)
        if self.lm_head is None:
            return F.linear(x * self.config.d_model**-0.5, self.shared.weight)
        return self.lm_head(x)


def shift_right(labels: Tensor) -> Tensor:
    """The decoder's input: start token (the pad id), then all labels but the last."""
    shifted = F.pad(labels[:, :-1], (1, 0), value=PAD)
    return shifted.masked_fill(shifted == IGNORE, PAD)


def init_parameter(config: T5Config, name: str, tensor: Tensor, generator: Generator) -> None:
    """Fill `tensor`, the whole parameter `name`, with T5's initial values.

    Standard deviations as in Hugging Face's `T5PreTrainedModel._init_weights`.
    """
    if name.endswith("layer_norm.weight"):
        tensor.fill_(1.0)
        return
    d_model, inner = config.d_model, config.num_heads * config.d_kv
    last = name.removesuffix(".weight").rpartition(".")[2]
    std = {
        "shared": 1.0,
        "lm_head": config.head_init_std,
        "q": (d_model * config.d_kv) ** -0.5,
        "k": d_model**-0.5,
        "v": d_model**-0.5,
        "o": inner**-0.5,
        "relative_attention_bias": d_model**-0.5,
        "wi": d_model**-0.5,
        "wi_0": d_model**-0.5,
        "wi_1": d_model**-0.5,
        "wo": config.d_ff**-0.5,
    }[last]
    tensor.normal_(0.0, std * config.initializer_factor, generator=generator)
