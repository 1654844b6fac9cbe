"""Contestant: Hugging Face T5 under Accelerate's FSDP2, as its FSDP2 guide has it.

https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2. Accelerate gives FSDP to
several GPUs only: on CPUs it falls back to plain data parallelism without a word, on one GPU to
none. There its state is set to FSDP, and every line after that is Accelerate's own.
"""

from __future__ import annotations

from typing import Any

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
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from transformers import T5ForConditionalGeneration

from benchmarks.peers.workload import Task, held_bytes, measure


def main() -> None:
    task = Task.from_arguments()
    work = task.work
    accelerator = fsdp_accelerator(task.device, task.param_dtype, compiled=False, loads=True)
    before = held_bytes(task.device)
    model = T5ForConditionalGeneration.from_pretrained(
        task.directory,
        attn_implementation="sdpa",
        dtype=torch.float32,
    )
    model.config.use_cache = False
    model.train()
    optimizer = adamw(model, work.lr, (work.beta1, work.beta2), work.eps)
    model, optimizer = sharded(accelerator, model, optimizer)

    def step(source: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = model(input_ids=source, labels=labels).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), work.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    measure(task, step, before)
    dist.destroy_process_group()


def fsdp_accelerator(
    device: torch.device, param_dtype: torch.dtype | None, *, compiled: bool, loads: bool
) -> Accelerator:
    """An Accelerator with FSDP2; `loads`: weights come from files, read by the first rank."""
    AcceleratorState._reset_state(reset_partial_state=True)  # of one made before
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["T5Block"],
        cpu_ram_efficient_loading=loads,
        # Given here rather than as Accelerator(mixed_precision=…), which adds autocast to it.
        mixed_precision_policy=MixedPrecisionPolicy(
            param_dtype=param_dtype, reduce_dtype=torch.float32
        ),
    )
    dynamo = TorchDynamoPlugin(backend="inductor", use_regional_compilation=True)
    accelerator = Accelerator(
        fsdp_plugin=plugin,
        dynamo_plugin=dynamo if compiled else None,
        cpu=device.type == "cpu",
    )
    if device.type == "cpu" or accelerator.num_processes == 1:
        shard_anyway(plugin)
    return accelerator


def adamw(
    model: nn.Module, lr: float, betas: tuple[float, float], eps: float
) -> torch.optim.Optimizer:
    """AdamW (fused) without decay, as the reference trainer has it."""
    return torch.optim.AdamW(
        model.parameters(), lr=lr, betas=betas, eps=eps, weight_decay=0.0, fused=True
    )


def sharded(accelerator: Accelerator, model: Any, optimizer: torch.optim.Optimizer) -> Any:
    """Model and optimizer as `prepare` makes them. Raises RuntimeError if nothing is sharded."""
    # prepare() ties weights again by this word, which transformers sets for every T5: v1.1's head
    # is not tied. Then nothing ties the stacks' embeddings to `shared`, so they become that module.
    model.config.tie_word_embeddings = False
    model.encoder.embed_tokens = model.decoder.embed_tokens = model.shared
    prepared = accelerator.prepare(model, optimizer)
    if not isinstance(prepared[0], FSDPModule):
        raise RuntimeError("Accelerate has not sharded the model")
    return prepared


def shard_anyway(plugin: FullyShardedDataParallelPlugin) -> None:
    """What AcceleratorState does on several GPUs when it is given an FSDP plugin."""
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    state = AcceleratorState()  # copies what PartialState says, at every call
    state.fsdp_plugin = plugin


if __name__ == "__main__":
    main()
