"""Contestant: Hugging Face T5 under Lightning Fabric's FSDP strategy, as its guide has it.

https://lightning.ai/docs/fabric/stable/advanced/model_parallel/fsdp.html. Fabric rather than
Trainer: it has the loop of the others and none of Trainer's own work. The strategy is FSDP1.
Fabric refuses it on a CPU by its class, and names the device by its index, which a CPU has not; a
subclass wraps the model with the same arguments and the device itself.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies import FSDPStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from transformers import T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Block

from benchmarks.peers.workload import Task, held_bytes, measure


class FSDPOnCPU(FSDPStrategy):  # type: ignore[misc]
    """The strategy's own wrapping, but for `device_id`."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        return FullyShardedDataParallel(
            module,
            cpu_offload=self.cpu_offload,
            mixed_precision=self.mixed_precision_config,
            sharding_strategy=self.sharding_strategy,
            device_id=self.root_device,
            **self._fsdp_kwargs,
        )


def main() -> None:
    task = Task.from_arguments()
    work = task.work
    on_cpu = task.device.type == "cpu"
    strategy = (FSDPOnCPU if on_cpu else FSDPStrategy)(
        auto_wrap_policy={T5Block},
        sharding_strategy="FULL_SHARD",
        mixed_precision=None
        if task.param_dtype is None
        else MixedPrecision(param_dtype=task.param_dtype, reduce_dtype=torch.float32),
    )
    fabric = Fabric(accelerator="cpu" if on_cpu else "cuda", devices=work.ranks, strategy=strategy)
    fabric.launch()
    before = held_bytes(task.device)
    model = T5ForConditionalGeneration.from_pretrained(
        task.directory, attn_implementation="sdpa", dtype=torch.float32
    )
    model.config.use_cache = False
    model.train()
    model = fabric.setup_module(model)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=work.lr,
        betas=(work.beta1, work.beta2),
        eps=work.eps,
        weight_decay=0.0,
        fused=True,
    )
    optimizer = fabric.setup_optimizers(optimizer)

    def step(source: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = model(input_ids=source, labels=labels).loss
        fabric.backward(loss)
        # Whether the norm is finite is left unasked: the host would wait for the device.
        fabric.clip_gradients(model, optimizer, max_norm=work.grad_clip, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    measure(task, step, before)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
