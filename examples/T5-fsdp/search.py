"""Which tokens to generate: greedy or beam search, over a decoder with a cache of earlier tokens.

The decoder runs one token at a time, in `CachedDecoder`, so model.py has only the training path.
The search gives the tokens that transformers' `generate` gives for the same settings.

The model may be whole or sharded by FSDP2. If sharded, `gathered` gathers a block while it is used,
and all ranks take the same number of steps, since each step gathers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from attention import masked
from model import EOS, PAD, T5, Block
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

from fsdpkit.errors import ConfigError

NEVER = -1e9  # score of a beam that must not be chosen; finite, so that sums stay so
ENCODE = "encode"  # method of a sharded model, which it has for text alone


@dataclass(frozen=True, kw_only=True)
class Search:
    """How to choose tokens; names and meanings as in transformers."""

    max_new_tokens: int = 128
    beams: int = 1  # 1 is greedy
    length_penalty: float = 1.0  # scores are divided by length to this power
    early_stopping: bool = False  # stop at `beams` finished texts, not when none can improve
    eos_id: int = EOS


@torch.no_grad()  # and not inference mode: what FSDP gathers here, training goes on with
def generate(
    model: T5, source: Tensor, source_mask: Tensor, search: Search | None = None
) -> list[list[int]]:
    """Target ids for each row of `source`, int64 [B, S], without start token and EOS.

    `source_mask` bool [B, S], true on real tokens. The model is in evaluation mode: whole, or
    sharded by FSDP2, then with a batch on each rank, at the same time. Raises ConfigError for a
    model built with FlexAttention, which knows no single tokens.
    """
    search = search or Search()
    if model.decoder.kernel == "flex":
        raise ConfigError("FlexAttention cannot write token by token: load the model with sdpa.")
    decoder = CachedDecoder(model, source, source_mask, search)
    choose = greedy if search.beams == 1 else beam_search
    rows: list[list[int]] = choose(decoder, len(source), search).tolist()
    return [row[: row.index(search.eos_id)] if search.eos_id in row else row for row in rows]


class CachedDecoder:
    """The decoder one token at a time: keys and values of what came before are kept.

    It holds B·beams rows, the beams of a source next to each other.
    """

    def __init__(self, model: T5, source: Tensor, source_mask: Tensor, search: Search) -> None:
        self.model, self.length = model, 0
        beams = search.beams
        mask = source_mask[:, None, None, :]
        memory = encode(model, source, mask)
        self.memory_bias = masked(mask, memory.new_zeros(())).repeat_interleave(beams, 0)
        buckets = model.decoder.buckets(search.max_new_tokens, source.device)
        self.memory: list[list[Tensor]] = []
        for block in gathered(model.decoder.block):
            itself, across, _ = block.sublayers
            if not self.memory:  # the first block has the table of biases
                self.positions = itself.attention.position_bias(buckets)[None]  # [1, H, L, L]
            pair = across.attention.keys_and_values(memory)
            self.memory.append([part.repeat_interleave(beams, 0) for part in pair])
        rows, heads, _, width = self.memory[0][0].shape
        shape = rows, heads, search.max_new_tokens, width
        self.past = [[part.new_empty(shape) for part in pair] for pair in self.memory]

    def step(self, tokens: Tensor) -> Tensor:
        """Scores of the token after `tokens`, int64 [rows]: float32 [rows, V]."""
        now, self.length = self.length, self.length + 1
        bias = self.positions[:, :, now : self.length, : self.length]
        x = self.model.shared(tokens[:, None])
        for block, past, memory in zip(
            gathered(self.model.decoder.block), self.past, self.memory, strict=True
        ):
            itself, across, feed_forward = block.sublayers
            normed = itself.layer_norm(x)
            for kept, new in zip(past, itself.attention.keys_and_values(normed), strict=True):
                kept[:, :, now] = new[:, :, 0]
            keys, values = (kept[:, :, : self.length] for kept in past)
            x = itself.add(x, itself.attention.attend(normed, keys, values, bias))
            normed = across.layer_norm(x)
            keys, values = memory
            x = across.add(x, across.attention.attend(normed, keys, values, self.memory_bias))
            x = feed_forward(x)
        scores: Tensor = self.model.head(self.model.decoder.final_layer_norm(x))
        return scores[:, 0].float()

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on from what row `rows[i]` has seen; only within the beams of one source."""
        for pair in self.past:
            for kept in pair:
                kept[:, :, : self.length] = kept[rows, :, : self.length]

    def is_over(self, finished: Tensor) -> bool:
        """Whether all is `finished` (bool scalar) here, and on all ranks that share the model."""
        if isinstance(self.model, FSDPModule):
            finished = finished.int()
            dist.all_reduce(finished, dist.ReduceOp.MIN)
        return bool(finished)


def encode(model: T5, source: Tensor, mask: Tensor) -> Tensor:
    """The encoder's output [B, S, D].

    For FSDP2 this is a forward pass of the model, which makes it the root; what the root holds
    (embedding, head, last norms) then stays whole for the decoder.
    """
    if not isinstance(model, FSDPModule):
        return model.encoder(model.shared(source), mask)
    setattr(model, ENCODE, lambda: model.encoder(model.shared(source), mask))
    register_fsdp_forward_method(model, ENCODE)
    memory: Tensor = getattr(model, ENCODE)()
    model.unshard()  # whatever it was told to do after a forward pass
    return memory


def gathered(blocks: nn.ModuleList) -> Iterator[Block]:
    """Each of `blocks`, whole while it is in use, the next one's weights already on their way.

    FSDP2's own hooks know of forward passes only. A block may be a unit, have units inside, both,
    or be sharded as part of what is around it.
    """
    units = [[m for m in block.modules() if isinstance(m, FSDPModule)] for block in blocks]
    for block, own, ahead in zip(blocks, units, [*units[1:], []], strict=True):
        for unit in own:
            unit.unshard()
        for unit in ahead:
            unit.unshard(async_op=True)
        yield cast(Block, block)  # a wrapper around it passes names on
        for unit in own:
            unit.reshard()


def greedy(decoder: CachedDecoder, batch: int, search: Search) -> Tensor:
    """The likeliest token each time; int64 [batch, ≤ max_new_tokens], PAD after EOS."""
    tokens = torch.full((batch,), PAD, device=decoder.positions.device)
    finished = torch.zeros_like(tokens, dtype=torch.bool)
    written = []
    for _ in range(search.max_new_tokens):
        tokens = decoder.step(tokens).argmax(-1).masked_fill(finished, PAD)
        written.append(tokens)
        finished |= tokens == search.eos_id
        if decoder.is_over(finished.all()):
            break
    return torch.stack(written, 1)


def beam_search(decoder: CachedDecoder, batch: int, search: Search) -> Tensor:
    """The best of the texts found along `beams` paths; int64 [batch, max_new_tokens].

    Two pools a source: `running` texts, still without EOS, by the sum of their log-probabilities,
    and `ended` ones, by that sum divided by length^length_penalty. Twice as many candidates as
    beams are looked at, so that enough go on even if half of them end; only those of the better
    half may end. A source is done when its best running text, at its present length, scores no
    better than its worst ended one; what happens to it after that changes nothing.
    """
    beams, steps, device = search.beams, search.max_new_tokens, decoder.positions.device
    first_row = torch.arange(batch, device=device)[:, None] * beams
    running = torch.full((batch, beams, steps), PAD, device=device)
    running_score = torch.full((batch, beams), NEVER, device=device)
    running_score[:, 0] = 0.0  # all beams begin alike: go on from one of them
    ended, ended_score = running.clone(), torch.full_like(running_score, NEVER)
    is_ended = torch.zeros_like(running_score, dtype=torch.bool)
    may_improve = torch.ones(batch, 1, dtype=torch.bool, device=device)
    last = running[:, :, 0]
    for t in range(steps):
        log_p = decoder.step(last.flatten()).log_softmax(-1).unflatten(0, (batch, beams))
        totals = running_score[:, :, None] + log_p
        score, flat = totals.flatten(1).topk(2 * beams)
        parent, token = flat // log_p.shape[-1], flat % log_p.shape[-1]
        candidates = pick(running, parent)
        candidates[:, :, t] = token
        ends = (token == search.eos_id) | (t + 1 == steps)

        counts = ends & may_improve
        counts[:, beams:] = False
        if search.early_stopping:
            counts &= ~is_ended.all(1, keepdim=True)
        penalty = (t + 1) ** search.length_penalty
        final = torch.where(counts, score / penalty, -torch.inf)
        ended_score, best = torch.cat([ended_score, final], 1).topk(beams)
        ended = pick(torch.cat([ended, candidates], 1), best)
        is_ended = pick(torch.cat([is_ended, counts], 1), best)

        running_score, best = (score + ends * NEVER).topk(beams)
        running, last = pick(candidates, best), pick(token, best)
        decoder.reorder((pick(parent, best) + first_row).flatten())

        worst = torch.where(is_ended, ended_score.amin(1, keepdim=True), NEVER)
        may_improve &= (running_score[:, :1] / penalty > worst).any(1, keepdim=True)
        done = ~may_improve.any() | ends.all()
        if search.early_stopping:
            done |= is_ended.all()
        if decoder.is_over(done):
            break
    return ended[:, 0]


def pick(values: Tensor, which: Tensor) -> Tensor:
    """`values[b, which[b, i]]` for each b and i: [B, n, …] and [B, m] to [B, m, …]."""
    return values.take_along_dim(which.reshape(*which.shape, *[1] * (values.ndim - 2)), 1)
