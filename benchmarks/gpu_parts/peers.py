"""Hugging Face's T5 under Accelerate's FSDP2, as benchmarks/peers/accelerate_t5.py has it, from
random weights: eager, sdpa and compiled, a process each, each at its own best batch.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_parts.part import Part, Row
from benchmarks.gpu_parts.speed import COMPILING_S, search
from benchmarks.gpu_parts.steps import COMMON
from benchmarks.gpu_parts.trial import Batch, Plan, Trial, plan, seed_step


def run_eager(part: Part) -> None:
    run(part, "Hugging Face eager", "eager", compiled=False, rows=16)


def run_sdpa(part: Part) -> None:
    run(part, "Hugging Face sdpa", "sdpa", compiled=False, rows=32)


def run_compiled(part: Part) -> None:
    run(part, "Hugging Face sdpa, compiled", "sdpa", compiled=True, rows=64)


def run(part: Part, name: str, attention: str, *, compiled: bool, rows: int) -> None:
    task = plan("t5-v1.1-large", *COMMON, f"compile={str(compiled).lower()}", dry=part.dry)
    part.measure(
        name,
        functools.partial(best_of, part, task, attention, 2 if part.dry else rows),
        needs_s=COMPILING_S if compiled else 20,
        lacks=lacks(),
    )


def lacks() -> str | None:
    try:
        import accelerate  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        return f"{error.name} is not installed"
    return None


def best_of(part: Part, task: Plan, attention: str, rows: int) -> Row:
    def make(task: Plan) -> Trial:
        return Peer(part, task, attention)

    return {
        **search(part, task, rows, make),
        "attention": f"Hugging Face's {attention}",
        "framework": "Accelerate FSDP2",
    }


class Peer(Trial):
    """Hugging Face's model in Accelerate's loop: backward, clipping, AdamW, zero_grad."""

    def __init__(self, part: Part, task: Plan, attention: str) -> None:
        self.plan, self.ranks, self.settings = task, part.ranks, task.settings
        self.done = 0
        self.accelerator, model = accelerated(part, task)
        theirs = untrained(part, task, attention)
        optimizer = torch.optim.AdamW(
            theirs.parameters(),
            lr=self.settings.optimizer.lr,
            betas=(self.settings.optimizer.beta1, self.settings.optimizer.beta2),
            eps=self.settings.optimizer.eps,
            weight_decay=0.0,
            fused=True,
        )
        self.model, self.optimizer = model(theirs, optimizer)

    def step(self, batch: Batch) -> Tensor:
        seed_step(self.settings.seed, self.done, self.ranks.rank)
        loss: Tensor = self.model(
            input_ids=batch.source, attention_mask=batch.mask, labels=batch.labels
        ).loss
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1
        return loss.detach()


def accelerated(part: Part, task: Plan) -> tuple[Any, Any]:
    """An Accelerator with FSDP2, and its `prepare` with a check that it has sharded."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType, TorchDynamoPlugin
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

    AcceleratorState._reset_state(reset_partial_state=True)  # of the trial before
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["T5Block"],
        cpu_ram_efficient_loading=False,  # weights are made on each rank
        mixed_precision_policy=MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        ),
    )
    dynamo = TorchDynamoPlugin(backend="inductor", use_regional_compilation=True)
    accelerator = Accelerator(
        fsdp_plugin=plugin,
        dynamo_plugin=dynamo if task.settings.compile and part.device.on_gpu else None,
        cpu=not part.device.on_gpu,
    )
    # Accelerate gives FSDP to several GPUs, or where it is launched with it: told here.
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    AcceleratorState._shared_state["distributed_type"] = DistributedType.FSDP
    state = AcceleratorState()
    state.fsdp_plugin = plugin

    def prepare(*objects: Any) -> Any:
        prepared = accelerator.prepare(*objects)
        if not isinstance(prepared[0], FSDPModule):
            raise RuntimeError("Accelerate has not sharded the model")
        return prepared

    return accelerator, prepare


def untrained(part: Part, task: Plan, attention: str) -> Any:
    """Hugging Face's T5 of this size with its own initial values, float32."""
    from transformers import T5Config, T5ForConditionalGeneration

    ours = task.config
    names = ("vocab_size", "d_model", "d_ff", "d_kv", "num_heads", "num_layers", "dropout_rate")
    fields: dict[str, Any] = {
        **{name: getattr(ours, name) for name in (*names, "num_decoder_layers")},
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "use_cache": False,
        "decoder_start_token_id": 0,
        "attn_implementation": attention,
    }
    torch.manual_seed(0)
    with part.device.torch:
        theirs = T5ForConditionalGeneration(T5Config(**fields))
    # prepare() ties weights again by this word, and nothing else ties the stacks' embeddings.
    theirs.config.tie_word_embeddings = False
    theirs.encoder.embed_tokens = theirs.decoder.embed_tokens = theirs.shared
    theirs.train()
    return theirs
