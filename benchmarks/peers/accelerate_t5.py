"""Contestant: Hugging Face T5 under Accelerate's FSDP2, as its FSDP2 guide has it.

https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2. Accelerate gives FSDP to GPUs
only: on a CPU it falls back to plain data parallelism without a word. There the state is told that
it is FSDP, and every line after that is Accelerate's own.

`SCRIPT WORKLOAD OUT eager` writes attention out instead of using PyTorch's fused one; `compile`
compiles block by block, as Accelerate's guide to regional compilation has it.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from accelerate import (
    Accelerator,
    FullyShardedDataParallelPlugin,
)
from accelerate.state import (
    AcceleratorState,
    PartialState,
)
from accelerate.utils import (
    DistributedType,
    TorchDynamoPlugin,
)
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from transformers import T5ForConditionalGeneration

from benchmarks.peers.workload import Task, held_bytes, measure


def main() -> None:
    task = Task.from_arguments()
    work, words = task.work, sys.argv[3:]
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["T5Block"],
        cpu_ram_efficient_loading=True,
        # Given here rather than as Accelerator(mixed_precision=…), which adds autocast to it.
        mixed_precision_policy=MixedPrecisionPolicy(
            param_dtype=task.param_dtype, reduce_dtype=torch.float32
        ),
    )
    accelerator = Accelerator(
        fsdp_plugin=plugin,
        dynamo_plugin=TorchDynamoPlugin(backend="inductor", use_regional_compilation=True)
        if "compile" in words
        else None,
        cpu=task.device.type == "cpu",
    )
    if task.device.type == "cpu":
        shard_on_cpu(plugin)
    before = held_bytes(task.device)
    model = T5ForConditionalGeneration.from_pretrained(
        task.directory,
        attn_implementation="eager" if "eager" in words else "sdpa",
        dtype=torch.float32,
    )
    # prepare() ties weights again by this word, which transformers sets for every T5: v1.1's head
    # is not tied. Then nothing ties the stacks' embeddings to `shared`, so they become that module.
    model.config.tie_word_embeddings = False
    model.encoder.embed_tokens = model.decoder.embed_tokens = model.shared
    model.config.use_cache = False
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=work.lr,
        betas=(work.beta1, work.beta2),
        eps=work.eps,
        weight_decay=0.0,
        fused=True,
    )
    model, optimizer = accelerator.prepare(model, optimizer)
    sharded = isinstance(model, FSDPModule)
    assert sharded, "Accelerate has not sharded the model"

    def step(source: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = model(input_ids=source, labels=labels).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), work.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    measure(task, step, before)
    dist.destroy_process_group()


def shard_on_cpu(plugin: FullyShardedDataParallelPlugin) -> None:
    """What AcceleratorState does on a GPU when it is given an FSDP plugin."""
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    state = AcceleratorState()  # copies what PartialState says, at every call
    state.fsdp_plugin = plugin


if __name__ == "__main__":
    main()
