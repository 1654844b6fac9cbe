"""T5 v1.1-large and -xl in bfloat16: sequences a second, each step of the plan kept if it pays.

Beside our own, in a process and at a batch of their own, Hugging Face's T5 with both its kinds of
attention, sharded, clipped and updated by the same functions as ours.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_parts.part import Part, Row
from benchmarks.gpu_parts.steps import COMMON, KEPT, PAYS, START, STEPS
from benchmarks.gpu_parts.trial import (
    Batch,
    Make,
    Plan,
    Speed,
    Trial,
    fastest,
    init_parameter,
    plan,
    report,
    time_steps,
)
from fsdpkit.training.sharding import shard


def run_large(part: Part) -> None:
    best = plan("t5-v1.1-large", *COMMON, *START, dry=part.dry)
    rows = 1 if part.dry else 16
    row = measure(part, "large, attention math", best, rows, needs_s=15)
    fastest_yet = row.get("sequences_per_s", 0.0)
    rows = row.get("rows", rows)
    kept = []
    for step in STEPS:
        lacks = part.device.lacks(step.words[0].partition("=")[2])
        tried = best.and_(*step.words)
        needs_s = 30 if tried.settings.compile else 15
        row = measure(
            part,
            f"large, + {step.name}",
            tried,
            rows,
            largest=step.saves_memory,
            needs_s=needs_s,
            lacks=lacks,
        )
        pays = row.get("sequences_per_s", 0.0) >= PAYS * fastest_yet
        if part.dry:  # speeds mean nothing, and compiled parts take long to start
            pays = row["status"] == "measured" and not tried.settings.compile
        if pays:
            best, rows, fastest_yet = tried, row["rows"], row["sequences_per_s"]
            kept.append(step.name)
            part.record(KEPT, {"status": "measured", "kept": kept})
    with_dropout = best.and_("model.dropout_rate=0.1")
    if with_dropout.settings.model.attention == "flex":
        with_dropout = with_dropout.and_("model.attention=sdpa")
    measure(
        part,
        "large, all that paid, dropout 0.1",
        with_dropout,
        rows,
        largest=False,
        needs_s=45,
    )


def run_xl(part: Part, kept: tuple[str, ...]) -> None:
    """The steps that paid for large, with as little recomputation as the memory allows."""
    best = plan("t5-v1.1-xl", *COMMON, *kept, dry=part.dry)
    for recompute in ("none", "selective", "full"):
        tried = best.and_(f"sharding.activation_checkpointing={recompute}")
        name = f"xl, activation checkpointing {recompute}"
        row = measure(part, name, tried, 1 if part.dry else 8, needs_s=40)
        if row["status"] == "measured":
            break


def measure(
    part: Part, name: str, tried: Plan, rows: int, *, largest: bool = True, **conditions: Any
) -> Row:
    """A row of speed at `rows` a batch, or with `largest` at the best batch that fits."""
    action = functools.partial(search if largest else at_batch, part, tried, rows)
    return part.measure(name, action, **conditions)


def search(part: Part, tried: Plan, rows: int) -> Row:
    most = 1024
    if part.dry:
        most = 1 if tried.settings.compile else 2
    make: Make = functools.partial(_trial, part)
    best, tries = fastest(make, tried, part.device, rows, most=most)
    return {**report(tried, best, part.device), "tries": tries}


def _trial(part: Part, tried: Plan) -> Trial:
    return Trial(tried, part.ranks)


def run_peers(part: Part, kept: tuple[str, ...]) -> None:
    """Ours and Hugging Face's, one after the other at the batch that fits Hugging Face's eager."""
    ours = plan("t5-v1.1-large", *COMMON, *kept, dry=part.dry)
    lacks = lacks_transformers()
    eager = part.measure(
        "Hugging Face eager", functools.partial(search_eager, part, ours), lacks=lacks, needs_s=20
    )
    rows = eager.get("rows", 1 if part.dry else 16)
    ways = [
        ("ours", None, ours),
        ("ours, not compiled", None, ours.and_("compile=false")),
        ("Hugging Face sdpa", "sdpa", ours.and_("compile=false")),
        ("Hugging Face sdpa, compiled", "sdpa", ours.and_("compile=true")),
        ("Hugging Face eager, compiled", "eager", ours.and_("compile=true")),
    ]
    for name, attention, tried in ways:
        part.measure(
            name,
            functools.partial(at_batch, part, tried, rows, attention),
            lacks=lacks if attention else None,
            needs_s=30 if tried.settings.compile else 10,
        )


def lacks_transformers() -> str | None:
    try:
        import transformers  # noqa: F401
    except ImportError:
        return "transformers is not installed"
    return None


def search_eager(part: Part, ours: Plan) -> Row:
    tried = ours.and_("compile=false")

    def make(tried: Plan) -> Trial:
        return peer(part, tried, "eager")

    best, tries = fastest(
        make, tried, part.device, 2 if part.dry else 16, most=4 if part.dry else 64
    )
    return {
        **report(tried, best, part.device),
        "tries": tries,
        "attention": "Hugging Face's eager",
    }


def at_batch(part: Part, tried: Plan, rows: int, attention: str | None = None) -> Row:
    """Ours, or Hugging Face's with its kind of `attention`."""
    part.device.free()
    trial = peer(part, tried, attention) if attention else Trial(tried, part.ranks)
    found: Speed = time_steps(trial, part.device, rows)
    row = report(tried, found, part.device)
    if attention:
        row["attention"] = f"Hugging Face's {attention}"
    del trial
    part.device.free()
    return row


def peer(part: Part, tried: Plan, attention: str) -> Trial:
    """Hugging Face's T5 with our initial weights, in our loop."""
    from transformers import T5Config, T5ForConditionalGeneration
    from transformers.models.t5.modeling_t5 import T5Block

    ours, settings = tried.config, tried.settings
    names = ("vocab_size", "d_model", "d_ff", "d_kv", "num_heads", "num_layers", "dropout_rate")
    fields: dict[str, Any] = {
        **{name: getattr(ours, name) for name in (*names, "num_decoder_layers")},
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "use_cache": False,
        "decoder_start_token_id": 0,
        "attn_implementation": attention,
    }
    with torch.device("meta"):
        theirs = T5ForConditionalGeneration(T5Config(**fields))
    # What its loading does for weights that come from files.
    theirs.encoder.embed_tokens = theirs.decoder.embed_tokens = theirs.shared
    model = shard(
        theirs,
        settings.sharding,
        settings.precision,
        part.ranks,
        blocks=[T5Block],
        fill=functools.partial(init_parameter, ours),
        compile=settings.compile,
    )
    if part.device.on_gpu:
        torch.backends.cuda.enable_cudnn_sdp(True)  # guard_kernels turned it off for the process
    return Trial(tried, part.ranks, model, their_loss)


def their_loss(model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = model(
        input_ids=batch.source, attention_mask=batch.mask, labels=batch.labels
    ).loss
    return loss
