"""The Triton kernel run by Triton's interpreter, on one rank that has TRITON_INTERPRET=1.

Writes to the file in argv[1]: how far it is from attention written out in float64, alone and in a
small T5, plain and sharded; and what dropout and repetition do to it.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import attention_triton
import numpy as np
import torch
from attention import TokenBias, relative_buckets
from attention_triton import Tiles, attend, tokens_first
from model import IGNORE, T5, Block, T5Config, init_parameter
from small_t5 import V1_1, batch_of, build
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from triton.runtime import interpreter

from fsdpkit.config.training import PrecisionSettings, ShardingSettings
from fsdpkit.training.activation_checkpointing import checkpoint_activations
from fsdpkit.training.distributed import Ranks, process_group
from fsdpkit.training.gradients import clip_gradients
from fsdpkit.training.sharding import shard

HEADS, BATCH = 2, 3
SAMPLES = (([5, 9, 30, 1], [7, 1]), ([8, 1], [4, 3, 22, 17, 1]))


def written_out(
    q: Tensor, k: Tensor, v: Tensor, by_offset: Tensor | None, mask: TokenBias, kept: Tensor
) -> Tensor:
    """In float64; `kept` [B, H, T, S] is what dropout multiplies the weights by."""
    q, k, v = q.double(), k.double(), v.double()
    queries, keys = q.shape[2], k.shape[2]
    scores = q @ k.mT
    if by_offset is not None:
        offset = torch.arange(keys) - torch.arange(queries)[:, None]
        scores = scores + by_offset.double()[:, offset + keys - 1]
    visible = mask.pairs(queries, q.device).expand(len(q), 1, queries, keys)
    weights = scores.masked_fill(~visible, -1e300).softmax(-1)
    return (weights * visible.any(-1, keepdim=True) * kept) @ v


def tensors(
    queries: int, keys: int, width: int, bias: bool, dtype: torch.dtype, batch: int
) -> list[Tensor]:
    """q, k, v and by_offset as a compiled block has them: heads are columns of tokens, and who
    reads the same tokens is part of the same product."""
    torch.manual_seed(queries + keys + width)
    q, k, v = torch.randn(batch, keys, 3, HEADS, width).to(dtype).permute(2, 0, 3, 1, 4)
    if queries != keys:
        q = torch.randn(batch, queries, HEADS, width).to(dtype).transpose(1, 2)
    return [q, k, v, torch.randn(HEADS, 2 * keys - 1)] if bias else [q, k, v]


def run(
    inputs: list[Tensor], mask: TokenBias, dropout: float = 0.0, seed: int = 1, far: int = 0
) -> tuple[Tensor, ...]:
    """Output, then the gradients of q, k, v and the bias, for a fixed gradient of the output."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    q, k, v, *by_offset = leaves
    torch.manual_seed(seed)
    o = attend(
        q, k, v, by_offset[0] if by_offset else None, mask.of_queries, mask.of_keys,
        causal=mask.causal, dropout=dropout, far=far,
    )  # fmt: skip
    return (o.detach(), *torch.autograd.grad(o, leaves, upstream(o)))


def upstream(o: Tensor) -> Tensor:
    return torch.linspace(-1, 1, o.numel()).cos().reshape(o.shape).to(o.dtype)


def expected(inputs: list[Tensor], mask: TokenBias, kept: Tensor | None = None) -> list[Tensor]:
    leaves = [x.detach().float().requires_grad_() for x in inputs]
    q, k, v, *by_offset = leaves
    o = written_out(
        q, k, v, by_offset[0] if by_offset else None, mask, torch.ones(()) if kept is None else kept
    )
    return [o.detach(), *torch.autograd.grad(o, leaves, upstream(o).double())]


def distances(found: tuple[Tensor, ...], wanted: list[Tensor]) -> dict[str, float]:
    """Largest error of each, as a share of the largest number; NaN if it is not finite."""
    names = ("o", "dq", "dk", "dv", "dbias")
    return {
        name: float((a.double() - b.double()).abs().max() / b.abs().max().clamp(min=0.1))
        for name, a, b in zip(names, found, wanted, strict=False)
    }


def lengths(*of_rows: int, longest: int) -> Tensor:
    return torch.arange(longest) < torch.tensor(of_rows)[:, None]


def segments(length: int, batch: int = BATCH) -> Tensor:
    """Sorted sample numbers a row, then padding's zeros."""
    numbers = torch.randint(1, 4, (batch, length)).sort(1).values
    return numbers.masked_fill(~lengths(length, length, length // 2, longest=length), 0)


def kernels() -> dict[str, dict[str, float]]:
    torch.manual_seed(3)
    causal, packed, long = TokenBias(causal=True), segments(17), segments(100)
    cases: dict[str, tuple[int, int, int, bool, TokenBias]] = {
        "encoder, padding": (100, 100, 8, True, TokenBias(None, lengths(100, 51, 0, longest=100))),
        "decoder, causal": (64, 64, 16, True, causal),
        "decoder, one token": (1, 1, 8, True, causal),
        "across, padding": (17, 100, 64, False, TokenBias(None, lengths(100, 64, 7, longest=100))),
        "encoder, packed": (17, 17, 24, True, TokenBias(packed, packed)),
        "decoder, packed": (100, 100, 16, True, TokenBias(long, long, causal=True)),
        "across, packed": (17, 100, 8, False, TokenBias(packed, long)),
        "decoder, wide heads": (33, 33, 128, True, causal),
    }
    found = {}
    for name, (queries, keys, width, bias, mask) in cases.items():
        inputs = tensors(queries, keys, width, bias, torch.float32, BATCH)
        found[name] = distances(run(inputs, mask), expected(inputs, mask))
    return found


def copies() -> dict[str, int]:
    """How many of q, k and v are copied for the kernels, by how they lie in memory."""
    q, k, v = tensors(17, 17, 8, False, torch.float32, BATCH)
    apart = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    one = [x[:1] for x in (q, k, v)]
    generated = [q[:, :, -1:], *apart[1:]]
    cases = {
        "parts of a product": [q, k, v], "own tensors": apart, "one row": one,
        "one query of many": generated, "heads apart": [x.contiguous() for x in (q, k, v)],
        "k and v unlike": [q, k, apart[2]],
    }  # fmt: skip
    found = {}
    for name, of in cases.items():
        read = [*tokens_first(of[0]), *tokens_first(*of[1:])]
        found[name] = sum(a.data_ptr() != b.data_ptr() for a, b in zip(read, of, strict=True))
        mask = TokenBias(None, torch.ones(len(of[1]), 17, dtype=torch.bool))
        wrong = distances(run(of, mask), expected(of, mask))
        assert max(wrong.values()) < 1e-5, (name, wrong)
    return found


def own_tiles() -> dict[str, float]:
    """With the tiles that a GPU gets for float32, many to a sequence."""
    inputs = tensors(70, 70, 64, True, torch.float32, 1)
    return distances(run(inputs, TokenBias(causal=True)), expected(inputs, TokenBias(causal=True)))


def far_biases() -> dict[str, dict[str, float]]:
    """Where most tiles have one bias. Compared is the gradient of the table of buckets, which is
    all that a promise of `far` keeps; on one program a head, and on one for each tile of keys."""
    attention_triton.tiles = lambda kernel, q: Tiles(16, 16 if kernel == "forward" else 32, 4, 1)
    found = {}
    for causal, far in ((False, 9), (True, 12), (True, 1)):
        length = 49
        buckets = relative_buckets(length, not causal, 8, max(far, 5), torch.device("cpu"))
        if far == 1:  # one bias behind, itself included, and one ahead
            buckets = (torch.arange(2 * length - 1) >= length).long()
        q, k, v = tensors(length, length, 8, False, torch.float32, 1)
        table = torch.randn(HEADS, 32)[:, buckets]
        mask = TokenBias(None, lengths(49, longest=49), causal=causal)
        if far == 1:
            table[:, length - 1] = table[:, length]
            buckets[length - 1] = 1
        wanted = expected([q, k, v, table], mask)
        for programs in (1,) if far == 1 else (1, 256):
            attention_triton.PROGRAMS = programs
            got = run([q, k, v, table], mask, far=far)
            both = (
                [*x[:4], torch.zeros(HEADS, 32, dtype=x[4].dtype).index_add_(1, buckets, x[4])]
                for x in (got, wanted)
            )
            found[f"causal {causal}, far {far}, {programs}"] = distances(*both)
    attention_triton.PROGRAMS = 256
    return found


def half_precision() -> dict[str, dict[str, float]]:
    found = {}
    for dtype in (torch.bfloat16, torch.float16):
        inputs = tensors(40, 40, 16, True, dtype, 1)
        found[str(dtype)] = distances(run(inputs, TokenBias()), expected(inputs, TokenBias()))
    return found


def repetition() -> dict[str, bool]:
    """With few programs, so that some take several tiles of keys."""
    attention_triton.PROGRAMS = 8
    inputs = tensors(20, 20, 8, True, torch.float32, BATCH)
    first, again = run(inputs, TokenBias()), run(inputs, TokenBias())
    wanted = expected(inputs, TokenBias())
    return {
        "same bits": all(torch.equal(a, b) for a, b in zip(first, again, strict=True)),
        "right": max(distances(first, wanted).values()) < 1e-4,
    }


def dropout() -> dict[str, Any]:
    """Values are unit vectors, so that the output shows which weights were kept."""
    length = width = 16
    share, mask = 0.25, TokenBias(causal=True)
    inputs = tensors(length, length, width, True, torch.float32, BATCH)
    inputs[2] = torch.eye(length).expand(BATCH, HEADS, -1, -1)
    found = run(inputs, mask, share)
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    kept = (found[0] != 0) & seen
    rows, heads = kept[:, :, seen].unbind(0), kept[:, :, seen].unbind(1)

    def checkpointed(q: Tensor, k: Tensor, v: Tensor, by_offset: Tensor) -> Tensor:
        return attend(q, k, v, by_offset, None, None, causal=True, dropout=share)

    leaves = [x.detach().requires_grad_() for x in inputs]
    torch.manual_seed(1)
    o = checkpoint(checkpointed, *leaves, use_reentrant=False)
    recomputed = (o.detach(), *torch.autograd.grad(o, leaves, upstream(o)))
    usual = attention_triton.tiles
    attention_triton.tiles = lambda kernel, q: Tiles(16, 16, 4, 1)
    tiled = run(inputs, mask, share)
    attention_triton.tiles = usual
    return {
        "distances": distances(found, expected(inputs, mask, kept / (1 - share))),
        "share": 1 - float(kept[:, :, seen].double().mean()),
        "rows differ": not torch.equal(rows[0], rows[1]),
        "heads differ": not torch.equal(heads[0], heads[1]),
        "queries differ": not torch.equal(kept[:, :, 15, :8], kept[:, :, 7, :8]),
        "keys differ": not torch.equal(kept[:, :, 15, :8], kept[:, :, 15, 8:]),
        "seeds differ": not torch.equal(found[0], run(inputs, mask, share, seed=2)[0]),
        "same when recomputed": all(map(torch.equal, found, recomputed)),
        "same in other tiles": torch.equal(tiled[0] != 0, found[0] != 0),
    }


def packed() -> tuple[Tensor, ...]:
    """Row 0: both samples, then padding; row 1: the second alone."""
    joined = (SAMPLES[0][0] + SAMPLES[1][0], SAMPLES[0][1] + SAMPLES[1][1])
    source, mask, labels = batch_of(joined, SAMPLES[1], extra=1)
    of_source, of_target = torch.zeros_like(source), torch.zeros_like(labels)
    of_source[0, :4], of_source[0, 4:6], of_source[1, :2] = 1, 2, 1
    of_target[0, :2], of_target[0, 2:7], of_target[1, :5] = 1, 2, 1
    return source, mask, labels, (of_source, of_target)


def in_a_t5() -> dict[str, Any]:
    small = {**V1_1, "num_heads": 2, "num_decoder_layers": 2}
    found: dict[str, Any] = {}
    for name, batch in (("padded", batch_of(*SAMPLES, extra=1)), ("packed", packed())):
        results = {}
        for kernel in ("math", "triton"):
            model = build(kernel, **small)
            if kernel == "triton":
                checkpoint_activations(model, [Block], "full", every=2)
            scores = model(*batch)[batch[2] != IGNORE]
            loss = nn.functional.cross_entropy(scores, batch[2][batch[2] != IGNORE])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            results[kernel] = scores, loss, torch.cat([g.flatten() for g in gradients])
        found[name] = [float((a - b).abs().max()) for a, b in zip(*results.values(), strict=True)]
    model = build("triton", **small)
    model.encoder.block[0].layer[0].inner.relative_attention_bias.requires_grad_(False)
    model(*batch_of(*SAMPLES)).sum().backward()
    empty = model(*batch_of(([], []), extra=3))
    found["frozen bias"] = model.decoder.block[0].layer[0].inner.q.weight.grad is not None
    found["finite where nothing is seen"] = bool(torch.isfinite(empty).all())
    return found


def sharded(
    ranks: Ranks, kernel: str, compiled: bool, **sharding: Any
) -> tuple[list[float], list[float]]:
    """Loss and gradient norm of one step, and all strides of tokens that the kernels met, as
    multiples of a token's q."""
    met = set()

    def launch(*arguments: Any, **named: Any) -> None:
        met.update(stride / (2 * 8) for stride in arguments[7:9])
        real(*arguments, **named)

    real, attention_triton.launch = attention_triton.launch, launch
    config = T5Config(
        vocab_size=40, d_model=16, d_ff=16, d_kv=8, num_heads=2, num_layers=2,
        num_decoder_layers=1, dropout_rate=0.0,
    )  # fmt: skip
    with torch.device("meta"):
        model: nn.Module = T5(config, kernel)
    model = shard(
        model, ShardingSettings(**sharding), PrecisionSettings(param="float32"), ranks,
        blocks=[Block], fill=functools.partial(init_parameter, config), seed=7, compile=compiled,
    )  # fmt: skip
    source, mask, labels = batch_of(*SAMPLES)
    scores = model(source, mask, labels)
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
    loss.backward()
    attention_triton.launch = real
    return [float(loss.detach()), float(clip_gradients(model, 1.0))], sorted(met)


def multiply_numbers_of_bfloat16() -> None:
    """The interpreter holds bfloat16 as uint16 and hands the bits to NumPy's product."""
    builder = interpreter.InterpreterBuilder
    product = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        a, b = (
            interpreter.TensorHandle(
                (x.data.astype(np.uint32) << 16).view(np.float32), attention_triton.tl.float32
            )
            if x.dtype.scalar == attention_triton.tl.bfloat16
            else x
            for x in (a, b)
        )
        return product(self, a, b, *rest)

    builder.create_dot = create_dot


def patch_once_a_launch() -> None:
    """The interpreter puts its own functions in the place of Triton's at a launch, and looks for
    all of them anew whenever a kernel calls another function."""
    patch, language = interpreter._patch_lang, interpreter.tl

    def patch_lang(function: Any) -> Any:
        named = [id(value) for value in function.__globals__.values()]
        modules = [each for each in (language, language.core) if id(each) in named]
        if any(language.core.is_builtin(each.load) for each in modules):
            return patch(function)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = patch_lang


def main() -> None:
    torch.compile = functools.partial(torch.compile, backend="aot_eager")
    multiply_numbers_of_bfloat16()
    patch_once_a_launch()
    with process_group(timeout_s=120) as ranks:
        found = {"own tiles": own_tiles(), "far": far_biases()}
        # Larger tiles than a GPU's: the interpreter's time goes by their number.
        attention_triton.tiles = lambda kernel, q: Tiles(64, 64, 4, 1)
        found |= {
            "copies": copies(),
            "kernels": kernels(),
            "half precision": half_precision(),
            "repetition": repetition(),
            "dropout": dropout(),
            "T5": in_a_t5(),
            "sharded": {
                "unlike": sharded(ranks, "math", False),
                "fsdp2": sharded(ranks, "triton", True, activation_checkpointing="full"),
                "fsdp1": sharded(ranks, "triton", False, engine="fsdp1"),
            },
        }
        Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
