"""Train T5 with FSDP over any number of nodes; one page, top to bottom.

    torchrun --nproc-per-node 2 examples/T5-fsdp/fsdp_t5.py --set steps=20
    torchrun … fsdp_t5.py --job RUN/job.json --set training.optimizer.lr=1e-3

The six differences from a single-process loop are marked: [1] process group, [2] FSDP with its
precision, [3] sampler, [4] teardown, [5] activation checkpointing, [6] torchrun's variables. The
run's directory (metrics, checkpoints, stop request) is $FSDPKIT_TASK_DIR, or ./fsdp-t5-run.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from data import Batch, collate, fingerprint, load_samples, split
from model import IGNORE, T5, Block, T5Config, init_parameter
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader

from fsdpkit.config.training import OptimizerSettings, TrainingSettings, load_settings, problems
from fsdpkit.errors import STOPPED_EARLY, ConfigError, FsdpkitError, NotFoundError
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.checkpoint import Progress, checkpoints, resume, save
from fsdpkit.training.distributed import (
    Ranks,
    check_same_everywhere,
    process_group,
    seed_step,
    sum_over_ranks,
)
from fsdpkit.training.metrics import Metrics
from fsdpkit.training.sampler import GlobalBatches, GlobalOrderSampler
from fsdpkit.training.sharding import clip_gradients, compute_dtype, gradient_sync, shard
from fsdpkit.training.stopping import StopRequest, require_finite


@record  # an exception reaches torchrun's error file with its traceback
def main() -> int:
    gc.freeze()  # what was imported is no garbage: spare each later collection the walk over it
    settings = read_settings()
    paths = TaskPaths(Path(os.environ.get("FSDPKIT_TASK_DIR", "fsdp-t5-run")))
    with process_group(settings.timeout_s) as ranks:  # [1] join, [6] from torchrun's variables
        return train(settings, paths, ranks)  # [4] leaving waits for all ranks, then tears down


def train(settings: TrainingSettings, paths: TaskPaths, ranks: Ranks) -> int:
    began = time.perf_counter()
    if found := problems(settings, ranks.world_size, ranks.local_world_size):
        raise ConfigError("\n".join(found))

    # [3] Data: the same list on every rank, each rank its share of it.
    samples = load_samples(settings.data, settings.seed)
    train_samples, held_out = split(samples, settings.data.held_out)
    if len(train_samples) < ranks.world_size:
        raise ConfigError(
            f"{settings.data.source} has {len(train_samples)} training samples for "
            f"{ranks.world_size} ranks: give it more, or run on fewer ranks."
        )
    check_same_everywhere("training data", f"{len(samples)} samples, sha {fingerprint(samples)}")
    sampler, loader = make_loader(train_samples, settings, ranks, shuffle=True)

    # [2] Model: built without memory, then each rank fills only its shard. [5] Activation
    # checkpointing is part of the same setting, and so the same on every rank.
    config = T5Config(**settings.model.dimensions())
    with torch.device("meta"):
        model: nn.Module = T5(config)
    parameters = sum(p.numel() for p in model.parameters())
    model = shard(
        model,
        settings.sharding,
        settings.precision,
        ranks,
        blocks=[Block],
        fill=functools.partial(init_parameter, config),
        seed=settings.seed,
    )
    if ranks.device.type == "cuda":
        # cuDNN's attention has returned NaN gradients for some masked lengths (pytorch#196678).
        torch.backends.cuda.enable_cudnn_sdp(False)
    optimizer = make_optimizer(model, settings.optimizer)

    progress = Progress()
    if settings.checkpoint.resume == "auto":
        progress = resume(paths, ranks, model, optimizer) or progress
        if settings.checkpoint.start and not progress.step:
            progress = from_earlier(settings.checkpoint.start, ranks, model, optimizer)
    elif checkpoints(paths):
        raise ConfigError(
            f"{paths.checkpoints} holds checkpoints of an earlier run, which a new one would mix "
            'with its own: move them away, or set training.checkpoint.resume = "auto".'
        )
    describe(settings, ranks, parameters, len(train_samples), len(held_out), progress)

    metrics = Metrics(paths, ranks, tokens=progress.tokens)
    stop = StopRequest(paths, ranks)
    batches = stream(sampler, loader, progress)
    model.train()
    while progress.step < settings.steps:
        seed_step(settings.seed, progress.step, ranks.rank)
        micro = [next(batches).to(ranks.device) for _ in range(settings.accumulate)]
        target_tokens, all_tokens, votes = sum_over_ranks(
            sum((b.labels != IGNORE).sum() for b in micro),
            sum((b.labels != IGNORE).sum() + b.source_mask.sum() for b in micro),
            stop.wanted(),
            device=ranks.device,
        )
        # A token weighs the same wherever it is: sums, divided once by the tokens of all ranks.
        # FSDP averages over ranks; the factor undoes that.
        weight = (ranks.world_size / target_tokens).float()
        loss_sum = torch.zeros((), device=ranks.device)
        for i, batch in enumerate(micro):
            with gradient_sync(model, i == len(micro) - 1):
                loss = token_loss_sum(model, batch)
                (loss * weight).backward()
            loss_sum += loss.detach()
        grad_norm = clip_gradients(model, settings.grad_clip)
        require_finite(grad_norm, f"The gradient of step {progress.step + 1}")
        lr = set_learning_rate(optimizer, settings.optimizer, progress.step, settings.steps)
        optimizer.step()
        optimizer.zero_grad()

        progress.step += 1
        last = progress.step == settings.steps
        metrics.step(loss_sum, target_tokens, all_tokens)
        if progress.step % settings.log_every == 0 or last:
            line = metrics.log(progress.step, lr=lr, grad_norm=grad_norm)
            ranks.say(
                f"step {progress.step:>6}/{settings.steps}  loss {line['loss']:.4f}  "
                f"grad norm {line['grad_norm']:.2f}  lr {lr:.2e}  "
                f"{line['tokens_per_s']:,.0f} tokens/s  {line['step_time_s']:.3f} s/step"
            )
        stop.decide(votes)
        stopping = stop.agreed() and not last
        every = settings.checkpoint.every_steps
        due = every and progress.step % every == 0
        if due or stopping or (last and settings.checkpoint.at_end):
            progress.tokens = metrics.settle()
            where = save(
                paths, ranks, model, optimizer, progress, keep_last=settings.checkpoint.keep_last
            )
            ranks.say(f"checkpoint {where}")
        if stopping:
            stop.answered()
            ranks.say(
                f"stopped on request after step {progress.step}; to go on, submit again with "
                f"--set training.checkpoint.start={paths.dir}"
            )
            return STOPPED_EARLY

    if settings.eval_batches and held_out:
        _, eval_loader = make_loader(held_out, settings, ranks, shuffle=False)
        eval_loss = evaluate(model, eval_loader, settings.eval_batches, ranks)
        metrics.record(step=progress.step, eval_loss=eval_loss)
        ranks.say(f"held-out loss {eval_loss:.4f}")
    ranks.say(
        f"done: {progress.step} steps, {metrics.tokens:,} target tokens, "
        f"{time.perf_counter() - began:.1f} s in this process"
    )
    metrics.close()
    return 0


def from_earlier(
    start: str, ranks: Ranks, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Progress:
    """Where another run's newest checkpoint leaves off; it is read, never changed."""
    progress = resume(TaskPaths(Path(start)), ranks, model, optimizer)
    if progress is None:
        raise NotFoundError(f"training.checkpoint.start: {start} holds no complete checkpoint")
    return progress


def token_loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy summed over the batch's real target tokens, float32 scalar."""
    scores = model(batch.source, batch.source_mask, batch.labels)
    return F.cross_entropy(
        scores.flatten(0, 1).float(), batch.labels.flatten(), ignore_index=IGNORE, reduction="sum"
    )


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader[Batch], batches: int, ranks: Ranks) -> float:
    """Mean loss per held-out target token, all ranks together."""
    model.eval()
    loss = torch.zeros((), device=ranks.device)
    tokens = torch.zeros((), device=ranks.device)
    for _, cpu_batch in zip(range(batches), loader, strict=False):
        batch = cpu_batch.to(ranks.device)
        loss += token_loss_sum(model, batch)
        tokens += (batch.labels != IGNORE).sum()
    model.train()
    loss_sum, token_sum = sum_over_ranks(loss, tokens, device=ranks.device).tolist()
    return loss_sum / max(1.0, token_sum)


def make_loader(
    samples: list, settings: TrainingSettings, ranks: Ranks, *, shuffle: bool
) -> tuple[GlobalOrderSampler, DataLoader[Batch]]:
    sampler = GlobalOrderSampler(
        samples,
        num_replicas=ranks.world_size,
        rank=ranks.rank,
        shuffle=shuffle,
        seed=settings.seed,
    )
    loader: DataLoader[Batch] = DataLoader(
        samples,
        batch_sampler=GlobalBatches(sampler, settings.batch_size),
        collate_fn=collate,
        num_workers=settings.data.workers,
        pin_memory=ranks.device.type == "cuda",
    )
    return sampler, loader


def stream(
    sampler: GlobalOrderSampler, loader: DataLoader[Batch], progress: Progress
) -> Iterator[Batch]:
    """Batches without end, epoch after epoch, from where `progress` stands; keeps it up to date."""
    while True:
        sampler.set_epoch(progress.epoch, progress.position)
        for batch in loader:
            progress.position += loader.batch_sampler.global_batch_size
            yield batch
        progress.epoch, progress.position = progress.epoch + 1, 0


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Over the sharded model's parameters; norms are not decayed."""
    norms = [p for n, p in model.named_parameters() if n.endswith("layer_norm.weight")]
    rest = [p for n, p in model.named_parameters() if not n.endswith("layer_norm.weight")]
    groups = [
        {"params": rest, "weight_decay": settings.weight_decay},
        {"params": norms, "weight_decay": 0.0},
    ]
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.beta1, fused=True)
    betas = (settings.beta1, settings.beta2)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=betas, eps=settings.eps, fused=True)


def set_learning_rate(
    optimizer: torch.optim.Optimizer, settings: OptimizerSettings, step: int, steps: int
) -> float:
    lr = settings.lr * rate(settings, step, steps)
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr


def rate(settings: OptimizerSettings, step: int, steps: int) -> float:
    """Learning rate of step `step` (from 0) of `steps`, as a share of the peak."""
    warmup = settings.warmup_steps
    warmup = min(1000, steps // 10) if warmup is None else warmup
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    low = settings.min_lr_ratio
    match settings.schedule:
        case "linear":
            return low + (1 - low) * (1 - done)
        case "cosine":
            return low + (1 - low) * (1 + math.cos(math.pi * done)) / 2
        case "inverse-sqrt":
            return math.sqrt(max(1, warmup) / max(1, warmup, step + 1))
        case _:
            return 1.0


def read_settings() -> TrainingSettings:
    parser = argparse.ArgumentParser(
        description="Train T5 with FSDP; start it with torchrun.", allow_abbrev=False
    )
    parser.add_argument("--job", type=Path, help='JSON file whose key "training" has the settings')
    parser.add_argument(
        "--set", dest="sets", action="append", default=[], metavar="KEY=VALUE",
        help="override a setting, for instance optimizer.lr=1e-3",
    )  # fmt: skip
    arguments = parser.parse_args()
    table = {}
    if arguments.job:
        try:
            table = dict(json.loads(arguments.job.read_text(encoding="utf-8"))["training"])
        except FileNotFoundError:
            raise NotFoundError(f"{arguments.job}: no such file (--job).") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f'{arguments.job}: not a JSON object with a key "training": {error!r}.'
            ) from None
    return load_settings(table, arguments.sets, origin=str(arguments.job or "[training]"))


def describe(
    settings: TrainingSettings,
    ranks: Ranks,
    parameters: int,
    train_samples: int,
    held_out: int,
    progress: Progress,
) -> None:
    sharding, data = settings.sharding, settings.data
    nodes = ranks.world_size // ranks.local_world_size
    dtype = str(compute_dtype(settings.precision, ranks.device)).removeprefix("torch.")
    gathers = "inherent" if sharding.engine == "fsdp2" else str(sharding.limit_all_gathers).lower()
    lines = [
        f"ranks      {ranks.world_size} ({nodes} node{'s' if nodes > 1 else ''} × "
        f"{ranks.local_world_size}) on {ranks.device.type}, torch {torch.__version__}",
        f"model      {settings.model.preset}, {parameters:,} parameters",
        f"sharding   {sharding.engine} {sharding.strategy}, limit_all_gathers {gathers}, "
        f"activation checkpointing {sharding.activation_checkpointing}, "
        f"cpu_offload {str(sharding.cpu_offload).lower()}",
        f"precision  {dtype}, gradients summed in {settings.precision.reduce}",
        f"data       {data.source} {data.task}: {train_samples:,} samples, {held_out} held out",
        f"batch      {settings.batch_size} × {settings.accumulate} × {ranks.world_size} ranks",
    ]
    if progress.step:
        lines.append(f"resumed    after step {progress.step}")
    if progress.step >= settings.steps:
        lines.append(f"nothing left to train: training.steps is {settings.steps}")
    ranks.say("\n".join(lines))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FsdpkitError as error:
        print(f"fsdp_t5: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
