"""Hugging Face's T5 under Accelerate's FSDP2, as benchmarks/peers/accelerate_t5.py has it, from
random weights: eager, sdpa and compiled, each at the first of its batches that fits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_parts.part import Part, Row
from benchmarks.gpu_parts.trial import Batch, Plan, Trial, plan, time_steps, unmarked

PEERS = (
    # name, its attention, compiled, rows to try
    ("Hugging Face sdpa", "sdpa", False, (32, 16)),
    ("Hugging Face eager", "eager", False, (16, 8)),
    ("Hugging Face sdpa, compiled", "sdpa", True, (64, 32)),
)


def run(part: Part) -> None:
    missing = [name for name in ("transformers", "accelerate") if find_spec(name) is None]
    for name, attention, compiled, batches in PEERS:
        task = plan("t5-v1.1-large", f"compile={str(compiled).lower()}", dry=part.dry)
        part.measure(
            name,
            functools.partial(first_fit, part, task, attention, (2,) if part.dry else batches),
            needs_s=75 if compiled else 20,
            lacks=f"{missing[0]} is not installed" if missing else None,
        )


def first_fit(part: Part, task: Plan, attention: str, batches: tuple[int, ...]) -> Row:
    for rows in batches:
        try:
            return time_steps(Peer(part, task, attention), part.device, rows)
        except torch.cuda.OutOfMemoryError:
            part.device.free()
    raise RuntimeError(f"out of memory with {batches[-1]} rows")


class Peer(Trial):
    """Hugging Face's model in Accelerate's loop: backward, clipping, AdamW, zero_grad."""

    def __init__(self, part: Part, task: Plan, attention: str) -> None:
        from benchmarks.peers.accelerate_t5 import adamw, fsdp_accelerator, sharded

        self.plan, self.ranks, self.settings = task, part.ranks, task.settings
        theirs = untrained(part, task, attention)
        self.accelerator: Any = fsdp_accelerator(
            part.device.torch,
            torch.bfloat16,
            compiled=task.settings.compile is True,
            loads=False,
        )
        given = self.settings.optimizer
        optimizer = adamw(theirs, given.lr, (given.beta1, given.beta2), given.eps)
        self.model, self.optimizer = sharded(self.accelerator, theirs, optimizer)

    def step(self, batch: Batch, mark: Callable[[], None] = unmarked) -> Tensor:
        loss: Tensor = self.model(
            input_ids=batch.source, attention_mask=batch.mask, labels=batch.labels
        ).loss
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def untrained(part: Part, task: Plan, attention: str) -> Any:
    """Hugging Face's T5 of this size with its own initial values, float32."""
    from transformers import T5Config, T5ForConditionalGeneration

    names = ("vocab_size", "d_model", "d_ff", "d_kv", "num_heads", "num_layers", "dropout_rate")
    fields: dict[str, Any] = {
        **{name: getattr(task.config, name) for name in (*names, "num_decoder_layers")},
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "use_cache": False,
        "decoder_start_token_id": 0,
        "attn_implementation": attention,
    }
    torch.manual_seed(0)
    with part.device.torch:
        theirs = T5ForConditionalGeneration(T5Config(**fields))
    return theirs.train()
