"""Train T5 with FSDP over any number of nodes; one page, top to bottom.

    torchrun --nproc-per-node 2 examples/T5-fsdp/fsdp_t5.py --set steps=20
    torchrun … fsdp_t5.py --job RUN/job.json --set training.optimizer.lr=1e-3

The six differences from a single-process loop are marked: [1] process group, [2] FSDP with its
precision, [3] sampler, [4] teardown, [5] activation checkpointing, [6] torchrun's variables. The
run's directory (metrics, checkpoints, stop request) is $FSDPKIT_TASK_DIR, or ./fsdp-t5-run.
"""

from __future__ import annotations

import functools
import gc
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from attention import attention_in_use, guard_kernels
from data import Batch, Text, make_loader, open_data, stream
from flops import FORMULA, flops_per_sequence
from loss import IGNORE
from model import T5, Block, T5Config, init_parameter, last_of
from scores import held_out_rouge
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader
from weights import check, fill_from, hugging_face

from fsdpkit.config.gpu import type_note
from fsdpkit.config.training import TrainingSettings, for_device, problems
from fsdpkit.config.training.automatic import in_words
from fsdpkit.data.tokenizers import Tokenizer
from fsdpkit.errors import STOPPED_EARLY, ConfigError, FsdpkitError
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.agreement import SaveClock, StopRequest, TokenBudget, Votes, is_due
from fsdpkit.training.checkpoint import Checkpointer
from fsdpkit.training.checkpoint_loading import settings_before
from fsdpkit.training.command_line import on_this_node, read_settings
from fsdpkit.training.debugging import Debugging, prepare
from fsdpkit.training.device_code import capability_of
from fsdpkit.training.display import Display
from fsdpkit.training.distributed import (
    Ranks,
    check_same_everywhere,
    on_first,
    process_group,
    seed_step,
    set_timeout,
    sum_over_ranks,
)
from fsdpkit.training.export import export_hugging_face
from fsdpkit.training.gradients import clip_gradients, loss_scaler, provisional_tokens, update
from fsdpkit.training.hardware import describe_peak, facts_of, peak_tflops
from fsdpkit.training.heartbeat import Heartbeat
from fsdpkit.training.metrics import Metrics
from fsdpkit.training.optimizers import make_optimizer
from fsdpkit.training.out_of_memory import MicroBatches
from fsdpkit.training.precision import compute_dtype
from fsdpkit.training.progress import Progress, lost_patience
from fsdpkit.training.rouge import scorer
from fsdpkit.training.sampler import completed_epoch, data_order, steps_of_epochs
from fsdpkit.training.schedules import set_learning_rate
from fsdpkit.training.sharding import Fill, shard


@record  # an exception reaches torchrun's error file with its traceback
def main() -> int:
    gc.freeze()  # what was imported is no garbage: spare each later collection the walk over it
    settings = read_settings("Train T5 with FSDP; start it with torchrun.")
    paths = TaskPaths.of_this_job("fsdp-t5-run")
    prepare(settings.debug, paths, deterministic=settings.deterministic)
    # [1] Join, [6] from torchrun's variables; [4] leaving waits for all ranks, then tears down.
    with process_group(settings.timeout_s, settings.startup_timeout_s) as ranks:
        return train(settings, paths, ranks)


def train(settings: TrainingSettings, paths: TaskPaths, ranks: Ranks) -> int:
    began = time.perf_counter()
    heartbeat = Heartbeat(paths, ranks)
    if found := problems(settings, ranks.world_size, ranks.local_world_size):
        raise ConfigError("\n".join(found))
    before = settings_before(paths, settings.checkpoint.start, ranks)
    given, settings = settings, for_device(settings, facts_of(ranks), before)

    # [3] Data: the same samples on every rank, each rank its share of them.
    copies = on_this_node(settings)
    text = open_data(copies.data, settings.seed)
    check_same_everywhere("training data", text.fingerprint)
    check_same_everywhere("held-out data", text.held_out_fingerprint)
    loader = make_loader(text.train, settings, ranks, shuffle=True)

    # [2] Model: built without memory, then each rank fills only its shard. [5] Activation
    # checkpointing is part of the same setting, and so the same on every rank.
    model, config = build(copies, text.vocabulary, ranks)
    optimizer = make_optimizer(model, settings.optimizer)
    scaler = loss_scaler(settings.precision, model, ranks)
    saves = Checkpointer(
        paths,
        ranks,
        model,
        optimizer,
        settings.saving,
        state={"loss_scale": scaler},
        data=data_order(loader, text.fingerprint),
        about=msgspec.to_builtins(settings),
        export=hugging_face(config, text.tokenizer.eos_id, text.tokenizer),
    )
    progress = saves.resume() or Progress()
    settings = with_steps(settings, loader, progress)
    heartbeat.resumed(progress.step)
    peak = describe(settings, ranks, config, text, progress, in_words(given, settings))
    metrics = Metrics(
        paths,
        ranks,
        progress.tokens,
        skipped=progress.skipped,
        planned_steps=settings.steps,
        settings=settings.metrics,
        peak_tflops=peak,
        model=model,
    )

    # What goes on beside the steps: each part knows when it is due.
    stop, clock = StopRequest(paths, ranks), SaveClock.of(settings.checkpoint, ranks, paths)
    budget = TokenBudget(ranks, settings.tokens, progress.tokens)
    votes = Votes(ranks, stop, clock)
    micro_batches = MicroBatches(model, ranks, settings.micro_batch, settings.batch_size)
    parts = Parts(settings, ranks, config, model, optimizer, scaler, metrics, votes, micro_batches)
    held_out = make_loader(text.held_out, settings, ranks, shuffle=False)
    evaluation = Evaluation(parts, saves, text.tokenizer, held_out)
    display = Display(ranks, settings.steps, start=progress.step, kind=settings.metrics.progress)
    debugging = Debugging(
        settings.debug, paths, ranks, step=progress.step, timeout_s=settings.timeout_s
    )

    batches = stream(loader, progress)
    model.train()
    with debugging, closing(display):
        stopping = stop.wanted_before(ranks)
        last = progress.step >= settings.steps or budget.spent or evaluation.is_enough(progress)
        while not (last or stopping):
            step = train_step(parts, batches, progress.step)
            progress.step += 1
            heartbeat.step(progress.step)
            debugging.step_done(progress.step)
            display.step(progress.step)
            last = budget.spend(step.trained_tokens) or progress.step == settings.steps
            if metrics.due(progress.step, last=last):
                line = metrics.log(progress.step, lr=step.lr, grad_norm=step.grad_norm)
                saves.measured(progress.step, line)
                display.line(line)
            epoch = completed_epoch(loader, progress)
            if evaluation.due(progress.step, last=last, epoch=epoch):
                with metrics.pause(), heartbeat.phase("evaluating"):
                    last = evaluation.run(progress) or last
            stopping = stop.agreed() and not last
            due = clock.due(progress.step, last=last, stopping=stopping, epoch=epoch)
            if due or saves.best_due(progress.step):
                progress.tokens, progress.skipped = metrics.settle(), metrics.skipped
                with metrics.pause(), heartbeat.phase("saving"):
                    saves.save(progress)
                clock.saved()
            saves.report(metrics.record)

    heartbeat.ending()
    if stopping:
        return leave(parts, saves, stop, progress)
    finish(parts, saves, paths, progress)
    ranks.say(
        f"done: {progress.step} steps, {metrics.settle():,} target tokens, "
        f"{time.perf_counter() - began:.1f} s in this process"
    )
    metrics.close()
    return 0


@dataclass(frozen=True)
class Parts:
    """What every step works with."""

    settings: TrainingSettings
    ranks: Ranks
    config: T5Config
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    metrics: Metrics
    votes: Votes
    micro_batches: MicroBatches


class Step(NamedTuple):
    """What a step leaves for those who look at it."""

    trained_tokens: Tensor
    """Target tokens of all ranks, float64 scalar; none if the step was skipped."""
    lr: float
    grad_norm: Tensor


def train_step(parts: Parts, batches: Iterator[Batch], number: int) -> Step:
    """Train on the next batch; `number` steps are done before it."""
    settings, ranks, model, optimizer = parts.settings, parts.ranks, parts.model, parts.optimizer
    seed_step(settings.seed, number, ranks.rank)
    with parts.metrics.loading():
        batch = next(batches)
    batch = batch.to(ranks.device)
    targets = (batch.labels != IGNORE).sum()
    count = parts.votes.begin(targets, targets + batch.source_mask.sum())
    # A token weighs the same wherever it is: sums, divided once by the tokens of all ranks. These
    # are counted meanwhile, so that no rank waits for the slowest before it begins: first sums are
    # divided by a number that all ranks know, and gradients set right before they are clipped. FSDP
    # averages over ranks; the factor undoes that, too.
    provisional = provisional_tokens(settings.batch_size * settings.data.target_length)
    loss_sum = parts.micro_batches.run(
        batch,
        functools.partial(forward_backward, model, settings.loss, parts.scaler, 1 / provisional),
    )
    target_tokens, all_tokens = count()
    parts.scaler.unscale_(optimizer)
    scale = (ranks.world_size * provisional / target_tokens.clamp(min=1)).float()
    grad_norm = clip_gradients(model, settings.grad_clip, scale)
    lr = set_learning_rate(optimizer, settings.optimizer, number, settings.steps)
    updated = update(optimizer, parts.scaler, grad_norm, settings.non_finite, ranks, number + 1)
    if updated:
        lengths = batch.source.shape[1], batch.labels.shape[1]
        flops = len(batch.source) * flops_per_sequence(parts.config, *lengths)
        parts.metrics.step(loss_sum, target_tokens, all_tokens, flops=flops)
    else:
        parts.metrics.skip()
    optimizer.zero_grad()
    return Step(target_tokens * updated, lr, grad_norm)


@dataclass(frozen=True)
class Evaluation:
    """The held-out loss: when it is due, and whether it still falls."""

    parts: Parts
    saves: Checkpointer
    tokenizer: Tokenizer
    loader: DataLoader[Batch]

    def __post_init__(self) -> None:
        settings = self.parts.settings
        if settings.evaluation.rouge:
            scorer("training.evaluation.rouge")  # a missing package is told now
        if self.is_empty and (goes_by := settings.goes_by_evaluations):
            raise ConfigError(
                f"No sample is held out, and {goes_by} goes by those that are: name a "
                "training.data.held_out_source, or raise training.data.held_out "
                f"({settings.data.held_out})."
            )

    @property
    def is_empty(self) -> bool:
        return not len(self.loader.dataset)  # type: ignore[arg-type]

    def due(self, step: int, *, last: bool, epoch: int) -> bool:
        settings = self.parts.settings.evaluation
        there_is_any = settings.batches > 0 and not self.is_empty
        on_this_step = is_due(step, settings.every_steps) or is_due(epoch, settings.every_epochs)
        return there_is_any and (last or on_this_step)

    def run(self, progress: Progress) -> bool:
        """Evaluate; True when the loss has not fallen for too long, so that training ends."""
        parts, patience = self.parts, self.parts.settings.evaluation.patience
        size = parts.micro_batches.size
        loss = evaluate(parts.model, self.loader, parts.settings, size, parts.ranks)
        scores = self.rouge()
        parts.metrics.record(step=progress.step, eval_loss=loss, **scores)
        self.saves.measured(progress.step, {"eval_loss": loss, **scores})
        shown = "".join(f", {name[5:]} {score:.2f}" for name, score in scores.items())
        parts.ranks.say(f"held-out loss {loss:.4f}{shown}")
        if not lost_patience(progress, loss, patience):
            return False
        parts.ranks.say(f"stopping early: {progress.worse} evaluations without a lower loss")
        return True

    def rouge(self) -> dict[str, float]:
        """`eval_rouge1` and its like, in percent, if they are asked for."""
        settings, model, ranks = self.parts.settings, self.parts.model, self.parts.ranks
        if not settings.evaluation.rouge:
            return {}
        assert isinstance(model, T5)  # `problems` refuses FSDP1, which puts it into a wrapper
        batches = islice(self.loader, settings.evaluation.batches)
        size = self.parts.micro_batches.size
        parts = (part for batch in batches for part in batch.to(ranks.device).split(size))
        model.eval()
        found = held_out_rouge(model, parts, self.tokenizer, settings.data.target_length, ranks)
        model.train()
        return found

    def is_enough(self, progress: Progress) -> bool:
        """Whether training had ended for that before this process began."""
        return 0 < self.parts.settings.evaluation.patience <= progress.worse


def leave(parts: Parts, saves: Checkpointer, stop: StopRequest, progress: Progress) -> int:
    """End as it was asked for, with everything saved; the exit status that says so."""
    saves.close()
    saves.report(parts.metrics.record)
    stop.answered()
    parts.ranks.say(
        f"stopped on request after step {progress.step}; to go on: fsdpkit resume RUN, "
        "or start the same command again"
    )
    return STOPPED_EARLY


def finish(parts: Parts, saves: Checkpointer, paths: TaskPaths, progress: Progress) -> None:
    """Wait for the last checkpoint, and export it when asked, or the best if one is kept."""
    settings, ranks = parts.settings, parts.ranks
    if settings.checkpoint.export:
        saves.save(progress)  # for a run that had nothing left to train
    saves.close()
    saves.report(parts.metrics.record)
    chosen = paths.checkpoints / f"step-{progress.step}"
    if best := saves.best():
        chosen, why = best
        ranks.say(f"best: {chosen.name}, {why}")
    if settings.checkpoint.export:
        set_timeout(settings.startup_timeout_s)  # the others wait for the one that writes
        on_first(ranks, lambda: export_hugging_face(chosen, paths.export))
        ranks.say(f"exported {chosen.name} to {paths.export}")


def with_steps(
    settings: TrainingSettings, loader: DataLoader[Batch], progress: Progress
) -> TrainingSettings:
    """`settings` with the number of steps after which they end the run."""
    most, epochs = settings.most_steps, settings.epochs
    steps = steps_of_epochs(loader, progress, epochs) if epochs else most
    settings = msgspec.structs.replace(settings, steps=min(steps, most) if most else steps)
    if settings.steps and (found := problems(settings, None)):
        raise ConfigError("\n".join(found))
    return settings


def build(settings: TrainingSettings, vocabulary: int, ranks: Ranks) -> tuple[nn.Module, T5Config]:
    """The sharded model, its weights drawn from the seed or read from a Hugging Face directory."""
    settings = for_device(settings, facts_of(ranks))  # for who builds without `train`
    config = T5Config(**settings.model.dimensions())
    if vocabulary > config.vocab_size:
        raise ConfigError(
            f"The tokenizer has {vocabulary} ids, the model's embedding table only "
            f"{config.vocab_size} rows: set training.model.vocab_size, or another tokenizer."
        )
    fill: Fill = functools.partial(init_parameter, config)
    if settings.model.pretrained:
        config = check(Path(settings.model.pretrained), config)
        fill = fill_from(Path(settings.model.pretrained), config)
    with torch.device("meta"):
        whole = T5(config, settings.model.attention)
    whole.compiled_loss = settings.compile is True
    guard_kernels(ranks.device)
    model = shard(
        whole,
        settings.sharding,
        settings.precision,
        ranks,
        blocks=[Block],
        fill=fill,
        seed=settings.seed,
        compile=settings.compile,
        last=last_of(config),
    )
    return model, config


def forward_backward(
    model: nn.Module, how: str, scaler: torch.amp.GradScaler, weight: float, batch: Batch
) -> Tensor:
    """Add the gradient of `weight` × the loss to what there is; the unweighted loss, detached."""
    loss_sum = token_loss_sum(model, batch, how)
    scaler.scale(loss_sum * weight).backward()
    return loss_sum.detach()


def token_loss_sum(model: nn.Module, batch: Batch, how: str) -> Tensor:
    """Cross-entropy summed over the batch's real target tokens, float32 scalar."""
    loss_sum: Tensor = model(*batch, loss=how)
    return loss_sum


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: DataLoader[Batch],
    settings: TrainingSettings,
    micro_batch: int,
    ranks: Ranks,
) -> float:
    """Mean loss per held-out target token, all ranks together."""
    model.eval()
    loss = torch.zeros((), device=ranks.device)
    tokens = torch.zeros((), device=ranks.device)
    for _, batch in zip(range(settings.evaluation.batches), loader, strict=False):
        for part in batch.to(ranks.device).split(micro_batch):
            loss += token_loss_sum(model, part, settings.loss)
            tokens += (part.labels != IGNORE).sum()
    model.train()
    loss_sum, token_sum = sum_over_ranks(loss, tokens, device=ranks.device).tolist()
    return loss_sum / max(1.0, token_sum)


def describe(
    settings: TrainingSettings,
    ranks: Ranks,
    config: T5Config,
    text: Text,
    progress: Progress,
    automatic: str = "",
) -> float | None:
    """Say what is about to run, in a dozen lines, one of them on what `auto` has become.

    Returns the device's dense peak in TFLOP/s, if it is known.
    """
    dtype = compute_dtype(settings.precision, ranks.device)
    peak = peak_tflops(ranks.device, dtype, settings.metrics.peak_tflops)
    sharding, data = settings.sharding, settings.data
    of_held_out = f"held out in {data.held_out_source}" if data.held_out_source else "held out"
    nodes = ranks.world_size // ranks.local_world_size
    gathers = "inherent" if sharding.engine == "fsdp2" else str(sharding.limit_all_gathers).lower()
    micro = settings.micro_batch or settings.batch_size
    epoch_steps = -(-len(text.train) // (settings.batch_size * ranks.world_size))
    with torch.device("meta"):
        parameters = sum(p.numel() for p in T5(config).parameters())
    lines = [
        f"ranks      {ranks.world_size} ({nodes} node{'s' if nodes > 1 else ''} × "
        f"{ranks.local_world_size}) on {ranks.device.type}, torch {torch.__version__}",
        f"model      {settings.model.source}, {parameters:,} parameters",
        f"attention  {attention_in_use(config, settings.model.attention, ranks.device, dtype)}",
        f"sharding   {sharding.engine} {sharding.strategy}, limit_all_gathers {gathers}, "
        f"activation checkpointing {sharding.activation_checkpointing}, "
        f"cpu_offload {str(sharding.cpu_offload).lower()}",
        f"precision  {str(dtype).removeprefix('torch.')}, gradients summed in "
        f"{settings.precision.reduce}, weights kept in {settings.precision.master}",
        f"data       {data.source} {data.task}: {len(text.train):,} samples, "
        f"{len(text.held_out):,} {of_held_out}, tokenizer {text.tokenizer.name}",
        f"batch      {settings.batch_size} × {ranks.world_size} ranks, {micro} at a time",
        f"length     {settings.steps} steps; an epoch has {epoch_steps}"
        + (f", training.epochs is {settings.epochs}" if settings.epochs else ""),
        f"speed      {describe_peak(ranks.device, dtype, peak)}",
    ]
    if automatic:
        lines.append(f"automatic  {automatic}")
    if data.source_prefix:
        lines.append(f"prefix     {data.source_prefix!r} before each source text")
    if text.bad_rows.count:
        lines.append(f"bad rows   {text.bad_rows.count:,} left out, such as")
        lines += [f"           {row}" for row in text.bad_rows.examples]
    if note := type_note(settings.precision.param, capability_of(ranks.device), None):
        lines.append(f"           {note}")
    if progress.step:
        lines.append(f"resumed    after step {progress.step}")
    if progress.step >= settings.steps:
        lines.append(f"nothing left to train: training.steps is {settings.steps}")
    wrap = textwrap.TextWrapper(
        80, subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False
    )
    ranks.say("\n".join(wrap.fill(line) for line in lines))
    if peak:
        ranks.say(textwrap.indent(FORMULA, "  "))
    return peak


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FsdpkitError as error:
        print(f"fsdp_t5: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
