"""T5 in plain torch: v1.0, v1.1, Flan and ByT5, to be read in one sitting.

An encoder reads the source, a decoder writes the target one token at a time while looking at the
encoder's output. Architecture: Raffel et al. 2020 (arXiv 1910.10683), Shazeer 2020 for the gated
feed-forward (arXiv 2002.05202), Xue et al. 2022 for ByT5 (arXiv 2105.13626). Parameter names are
those of a Hugging Face T5 state dict, so that weights can be exchanged.

What is unlike other transformers: no biases, no positions in the embeddings (a learned bias per
head and bucketed distance instead), attention scores that are not scaled, and norms that do not
subtract the mean. The file knows nothing of sharding or ranks. Beside it: attention.py has the
kernels, biases and masks, loss.py scores against the labels, weights.py reads and writes files,
generate.py decodes with a cache.

Shapes: B batch, S source tokens, T target tokens, D d_model, H heads, K d_kv, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from attention import (
    ATTEND,
    Bias,
    FlexBias,
    causal,
    masked,
    relative_buckets,
    same_sample,
    visible_blocks,
)
from loss import IGNORE, scored
from torch import Generator, Tensor, nn

from fsdpkit.errors import ConfigError

PAD, EOS = 0, 1


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
    scale_decoder_outputs: bool | None = None  # unset: as v1.0 and v1.1 do, tied heads only

    @property
    def scales_decoder_outputs(self) -> bool:
        """Whether the decoder's output is multiplied by D^-½ before the head."""
        if self.scale_decoder_outputs is None:
            return self.tie_word_embeddings
        return self.scale_decoder_outputs


class RMSNorm(nn.Module):
    """Divide by the root mean square, then scale; the variance is taken in float32 at least.

    torch's own, which rounds once; written out for a compiler, which makes one kernel of it.
    """

    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype is self.weight.dtype and not torch.compiler.is_compiling():
            return F.rms_norm(x, [*self.weight.shape], self.weight, self.eps)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        variance = wide.pow(2).mean(-1, keepdim=True)
        normed = x * torch.rsqrt(variance + self.eps)
        return self.weight * normed.to(self.weight.dtype)


class _Together(torch.autograd.Function):
    """One product with weights that lie next to each other for the moment.

    Backward multiplies by each weight as it is: otherwise the joined copy, as large as what FSDP
    has gathered of them, would be kept from forward to backward in every block.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, *weights)
        return F.linear(x, torch.cat(weights))

    @staticmethod
    def backward(ctx: Any, towards: Tensor) -> tuple[Tensor, ...]:
        x, *weights = ctx.saved_tensors
        widths = [len(weight) for weight in weights]
        of_weights = (towards.flatten(0, -2).t() @ x.flatten(0, -2)).split(widths)
        first, *others = [
            part @ weight for part, weight in zip(towards.split(widths, -1), weights, strict=True)
        ]
        return sum(others, first), *of_weights


def products(x: Tensor, *layers: nn.Linear) -> Sequence[Tensor]:
    """What each of `layers` makes of `x`; in a compiled block, one product with all their weights.

    The weights' names, and how they are sharded, stay as they are. Not where there is more to a
    layer than its weight.
    """
    plain = all(
        type(layer) is nn.Linear
        and layer.bias is None
        and layer.weight.dtype is x.dtype
        and not (layer._forward_hooks or layer._forward_pre_hooks)
        for layer in layers
    )
    if not (plain and torch.compiler.is_compiling()):
        return [layer(x) for layer in layers]
    weights = [layer.weight for layer in layers]
    learns = torch.is_grad_enabled() and (x.requires_grad or any(w.requires_grad for w in weights))
    # Without anything to learn Dynamo would call forward without a context.
    joined = _Together.apply(x, *weights) if learns else F.linear(x, torch.cat(weights))
    return joined.split([len(weight) for weight in weights], -1)


class Attention(nn.Module):
    """Multi-head attention; the first block of a stack also holds the table of relative biases."""

    def __init__(self, config: T5Config, attention: str, *, has_bias_table: bool) -> None:
        super().__init__()
        inner = config.num_heads * config.d_kv  # need not equal d_model
        self.heads, self.dropout = config.num_heads, config.dropout_rate
        self.kernel = attention
        self.q = nn.Linear(config.d_model, inner, bias=False)
        self.k = nn.Linear(config.d_model, inner, bias=False)
        self.v = nn.Linear(config.d_model, inner, bias=False)
        self.o = nn.Linear(inner, config.d_model, bias=False)
        if has_bias_table:
            self.relative_attention_bias = nn.Embedding(
                config.relative_attention_num_buckets, self.heads
            )

    def bias_by_offset(self, buckets: Tensor) -> Tensor:
        """The bias depends only on key − query: [H, 2·L − 1] from the buckets of those offsets."""
        return self.relative_attention_bias(buckets).t()

    def position_bias(self, buckets: Tensor) -> Tensor:
        """Bias of every query–key pair, [H, L, L]: each query's row is a window into the vector."""
        by_offset = self.bias_by_offset(buckets)
        # In float32, because backward adds up to L gradients for each offset. Contiguous, because
        # no fused kernel reads a bias whose innermost dimension is the heads.
        windows = by_offset.float().contiguous().unfold(-1, (len(buckets) + 1) // 2, 1).flip(-2)
        return windows.to(by_offset.dtype)

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """What a query meets in `memory` [B, S, D]: two tensors [B, H, S, K]."""
        return self.split(self.k(memory)), self.split(self.v(memory))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def attend(self, x: Tensor, keys: Tensor, values: Tensor, bias: Bias) -> Tensor:
        return self.mix(self.split(self.q(x)), keys, values, bias)

    def mix(self, q: Tensor, keys: Tensor, values: Tensor, bias: Bias) -> Tensor:
        if isinstance(bias, Tensor) and bias.dtype != q.dtype:
            # Only where some modules compute in another type: kernels misread such a bias.
            bias = bias.clamp(min=torch.finfo(q.dtype).min).to(q.dtype)
        dropout = self.dropout if self.training else 0.0
        mixed = ATTEND[self.kernel](q, keys, values, bias, dropout)
        return self.o(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, bias: Bias, memory: Tensor | None = None) -> Tensor:
        """`x` [B, T, D] attends to `memory` [B, S, D], or to itself."""
        if memory is None:
            parts = products(x, self.q, self.k, self.v)
        else:
            parts = self.q(x), *products(memory, self.k, self.v)
        q, keys, values = [self.split(part) for part in parts]
        return self.mix(q, keys, values, bias)


class FeedForward(nn.Module):
    """ReLU (v1.0), or a linear map gated by GELU in its tanh form (v1.1, Flan, ByT5)."""

    wi: nn.Linear
    wi_0: nn.Linear
    wi_1: nn.Linear

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.gated = config.feed_forward_proj == "gated-gelu"
        for name in ("wi_0", "wi_1") if self.gated else ("wi",):
            setattr(self, name, nn.Linear(config.d_model, config.d_ff, bias=False))
        self.wo = nn.Linear(config.d_ff, config.d_model, bias=False)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            gate, linear = products(x, self.wi_0, self.wi_1)
            hidden = F.gelu(gate, approximate="tanh") * linear
        else:
            hidden = F.relu(self.wi(x))
        # Under float16 `wo` may be kept in float32, as its products overflow first.
        return self.wo(self.dropout(hidden).to(self.wo.weight.dtype))


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

    @property
    def attention(self) -> Attention:
        """`inner` of a sublayer that attends; FSDP1's wrapper of one passes names on."""
        return cast(Attention, self.inner)

    def add(self, x: Tensor, change: Tensor) -> Tensor:
        x = x + self.dropout(change)
        if x.dtype is torch.float16:  # sums of many layers may pass its largest number, 65504
            largest = torch.finfo(x.dtype).max
            limit = torch.where(x.isinf().any(), largest - 1000, largest)
            x = x.clamp(-limit, limit)
        return x

    def forward(self, x: Tensor, *bias_and_memory: Bias) -> Tensor:
        return self.add(x, self.inner(self.layer_norm(x), *bias_and_memory))


class Block(nn.Module):
    """One layer of the encoder or the decoder: the unit of sharding and checkpointing."""

    def __init__(
        self, config: T5Config, attention: str, *, is_decoder: bool, has_bias_table: bool
    ) -> None:
        super().__init__()
        itself = Attention(config, attention, has_bias_table=has_bias_table)
        self.layer = nn.ModuleList([Sublayer(config, "SelfAttention", itself)])
        if is_decoder:
            cross = Attention(config, attention, has_bias_table=False)
            self.layer.append(Sublayer(config, "EncDecAttention", cross))
        self.layer.append(Sublayer(config, "DenseReluDense", FeedForward(config)))

    def forward(
        self,
        x: Tensor,
        bias: Bias,
        memory: Tensor | None,
        memory_bias: Bias | None,
        buckets: Tensor | None = None,
    ) -> tuple[Tensor, Bias | None]:
        """The new `x`; from the first block also the bias that the stack's other blocks reuse.

        The first block is given `buckets`, and the bare bool mask as `bias`, into which it writes
        the stack's position bias: the table is its own parameter, so under FSDP it is only whole
        while this block runs.
        """
        if buckets is not None:
            bias = self.with_positions(bias, buckets)
        x = self.layers(x, bias, memory, memory_bias)
        return x, None if buckets is None else bias

    @property
    def sublayers(self) -> Sequence[Sublayer]:
        """`layer` with its type: self-attention, in a decoder cross-attention, feed-forward."""
        return [cast(Sublayer, sublayer) for sublayer in self.layer]

    def with_positions(self, bias: Bias, buckets: Tensor) -> Bias:
        itself = self.sublayers[0].attention
        if isinstance(bias, FlexBias):
            return bias._replace(positions=itself.position_bias(buckets))
        return masked(bias, itself.position_bias(buckets))

    compiled_method = "layers"
    """What `fsdpkit.training.sharding` compiles: the part that all blocks of a stack share, so that
    the first one needs no graphs of its own."""

    def layers(
        self, x: Tensor, bias: Bias, memory: Tensor | None, memory_bias: Bias | None
    ) -> Tensor:
        x = self.layer[0](x, bias)
        if memory is not None and memory_bias is not None:
            x = self.layer[1](x, memory_bias, memory)
        return self.layer[-1](x)


class Stack(nn.Module):
    """The encoder's or the decoder's blocks, with a norm at the end."""

    def __init__(self, config: T5Config, attention: str, *, is_decoder: bool) -> None:
        super().__init__()
        self.config, self.kernel, self.is_decoder = config, attention, is_decoder
        self.block = nn.ModuleList(
            Block(config, attention, is_decoder=is_decoder, has_bias_table=i == 0)
            for i in range(config.num_decoder_layers if is_decoder else config.num_layers)
        )
        self.final_layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.dropout = nn.Dropout(config.dropout_rate)

    def buckets(self, length: int, device: torch.device) -> Tensor:
        return relative_buckets(
            length,
            not self.is_decoder,
            self.config.relative_attention_num_buckets,
            self.config.relative_attention_max_distance,
            device,
        )

    def first_bias(self, mask: Tensor, queries: int) -> Bias:
        """`mask` of so many queries as the kernel takes it, still without positions."""
        return FlexBias(None, visible_blocks(mask, queries)) if self.kernel == "flex" else mask

    def forward(
        self,
        embedded: Tensor,
        mask: Tensor,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """`embedded` [B, T, D]; `mask` bool, true where a token may look, to broadcast to
        [B, 1, T, T]; `memory_mask` the same to [B, 1, T, S]."""
        x = self.dropout(embedded)
        length = x.shape[1]
        bias = self.first_bias(mask, length)
        memory_bias = None if memory_mask is None else self.first_bias(memory_mask, length)
        if isinstance(memory_bias, Tensor):
            memory_bias = masked(memory_bias, x.new_zeros(()))
        buckets = self.buckets(length, x.device)
        for i, block in enumerate(self.block):
            x, made = block(x, bias, memory, memory_bias, None if i else buckets)
            bias = bias if made is None else made
        return self.dropout(self.final_layer_norm(x))


class Head(nn.Linear):
    """Scores of the vocabulary, or their loss: all that needs the weight happens in its forward, so
    that it can be gathered by itself."""

    def __init__(self, config: T5Config) -> None:
        super().__init__(config.d_model, config.vocab_size, bias=False)

    def forward(
        self,
        x: Tensor,
        labels: Tensor | None = None,
        how: str | None = None,
        compiled: bool = False,
    ) -> Tensor:
        """As loss.py's `scored`."""
        return scored(x, self.weight, labels, how, compiled=compiled)


class T5(nn.Module):
    """Encoder, decoder and the head that scores the vocabulary.

    `attention`: "sdpa", "flex" or "math"; the same numbers to rounding. Raises ConfigError for
    another name.
    """

    def __init__(self, config: T5Config, attention: str = "sdpa") -> None:
        super().__init__()
        if attention not in ATTEND:
            raise ConfigError(f"attention is {attention!r}, but must be one of {', '.join(ATTEND)}")
        self.config = config
        self.compiled_loss = False
        """Whether the chunked loss is compiled, too; see loss.py."""
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = Stack(config, attention, is_decoder=False)
        self.decoder = Stack(config, attention, is_decoder=True)
        self.lm_head: Head | None = None
        if not config.tie_word_embeddings:
            self.lm_head = Head(config)

    def forward(
        self,
        source: Tensor,
        source_mask: Tensor,
        labels: Tensor,
        segments: tuple[Tensor, Tensor] | None = None,
        loss: Literal["whole", "chunked"] | None = None,
    ) -> Tensor:
        """Scores of the next target token, [B, T, V]; or, by `loss`, their summed cross-entropy.

        `source` int64 [B, S], `source_mask` bool [B, S] (true on real tokens), `labels` int64
        [B, T] with −100 on padding. The decoder reads the labels shifted right by one.

        `segments`, in rows that hold several samples: the number of each token's sample in its row
        (from 1; 0 on padding), int64 [B, S] for the source and [B, T] for the labels. Samples do
        not see each other, and the scores are those of each alone: biases know distances only.

        `loss`: a float32 scalar, summed over target tokens; loss.py says what the two ways are.
        """
        decoder_input = shift_right(labels)
        if segments is None:
            own_source = memory_mask = source_mask[:, None, None, :]
            own_target = causal(labels.shape[1], labels.device)
        else:
            of_source, of_target = segments
            own_source = same_sample(of_source, of_source)
            memory_mask = same_sample(of_target, of_source)
            own_target = same_sample(of_target, of_target) & causal(labels.shape[1], labels.device)
            begins = of_target != F.pad(of_target[:, :-1], (1, 0))
            decoder_input = decoder_input.masked_fill(begins, PAD)
        memory = self.encoder(self.shared(source), own_source)
        x = self.decoder(self.shared(decoder_input), own_target, memory, memory_mask)
        return self.head(x, labels, loss)

    def head(self, x: Tensor, labels: Tensor | None = None, loss: str | None = None) -> Tensor:
        """Scores [B, T, V] of the decoder's output [B, T, D], or by `loss` that of `labels`."""
        x = self.scaled(x)
        if self.lm_head is None:
            return scored(x, self.shared.weight, labels, loss, compiled=self.compiled_loss)
        asked = () if loss is None else (labels, loss, self.compiled_loss)
        found: Tensor = self.lm_head(x, *asked)
        return found

    def scaled(self, x: Tensor) -> Tensor:
        """The decoder's output as the head multiplies it."""
        return x * self.config.d_model**-0.5 if self.config.scales_decoder_outputs else x


def last_of(config: T5Config) -> list[str]:
    """What `fsdpkit.training.shard` may gather by itself, for forward ends with it: a head of its
    own."""
    return [] if config.tie_word_embeddings else ["lm_head"]


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
