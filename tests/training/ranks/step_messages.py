"""The trainer's own step on four ranks: what it sends and when, what the host reads, its update.

Found, per case: messages of a step by kind, those that were sent before the
count of tokens was waited for, what makes the host wait for a device, and how far norms and weights
are from those of one process that holds all rows, in float64.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsdp_t5
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from data import Batch
from model import IGNORE, T5, T5Config
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fsdpkit.config.training import TrainingSettings, load_settings
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.agreement import SaveClock, StopRequest, Votes
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.gradients import loss_scaler
from fsdpkit.training.metrics import Metrics
from fsdpkit.training.optimizers import make_optimizer
from fsdpkit.training.out_of_memory import MicroBatches
from fsdpkit.training.whole import whole_weights

STEPS, ROWS, LENGTH, VOCABULARY = 2, 4, 9, 32
SMALL = [
    "model.d_model=16", "model.d_ff=24", "model.num_layers=2", "model.num_decoder_layers=1",
    "model.num_heads=2", "model.d_kv=8", f"model.vocab_size={VOCABULARY}", "model.dropout_rate=0",
    f"batch_size={ROWS}", f"data.target_length={LENGTH}", "steps=5", "optimizer.name=sgd",
    "optimizer.lr=0.5", "optimizer.beta1=0", "optimizer.weight_decay=0",
    "optimizer.schedule=constant", "optimizer.warmup_steps=0", "grad_clip=0.5",
]  # fmt: skip
BFLOAT16 = ["precision.param=bfloat16"]
STRATEGIES = {
    "full_shard": [],
    "shard_grad_op": ["sharding.strategy=shard_grad_op"],
    "hybrid_shard": ["sharding.strategy=hybrid_shard", "sharding.shard_size=2"],
    "hybrid_shard_zero2": ["sharding.strategy=hybrid_shard_zero2", "sharding.shard_size=2"],
    "no_shard": ["sharding.strategy=no_shard"],
}
CASES = {
    f"{engine} {name}{suffix}": [f"sharding.engine={engine}", *words, *more]
    for engine in ("fsdp1", "fsdp2")
    for name, words in STRATEGIES.items()
    for suffix, more in {"": [], " accumulated": ["micro_batch=2"]}.items()
}
CASES |= {
    f"{engine} {name}": [f"sharding.engine={engine}", *words]
    for engine in ("fsdp1", "fsdp2")
    for name, words in {
        "not clipped": ["grad_clip=0"],
        "float16": ["precision.param=float16", "precision.reduce=float16"],
        "uneven": [],
        "bfloat16 masters": [*BFLOAT16, "precision.master=bfloat16"],
    }.items()
}
CASES |= {
    "fsdp2 bfloat16": BFLOAT16,
    "fsdp2 bfloat16 reduced in it": [*BFLOAT16, "precision.reduce=bfloat16"],
    "fsdp2 one rank without a token": [],
    "fsdp2 no token": [],
    "fsdp2 non-finite skipped": ["non_finite=skip"],
    "fsdp2 ignored": ["sharding.ignore=['lm_head.*', '*.final_layer_norm.weight']"],
    "fsdp2 auto": ["micro_batch=auto"],
    "fsdp2 stopping": [],
}


class Messages(TorchDispatchMode):
    """What is sent, by kind, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        if name.startswith("c10d"):
            self.sent.append(kind(name))
        return function(*args, **(kwargs or {}))

    def __enter__(self):
        # What a DTensor sends, such as its norm's share, passes the dispatcher by.
        self._original = functional.all_reduce

        def counted(*arguments, **named):
            self.sent.append("allreduce")
            return self._original(*arguments, **named)

        functional.all_reduce = counted
        return super().__enter__()

    def __exit__(self, *error):
        functional.all_reduce = self._original
        return super().__exit__(*error)


class Waits(TorchFunctionMode):
    """What would make the host wait for a GPU: reading numbers, shapes that depend on them.

    Seen where Python asks for it, for on a CPU not all of it goes through the dispatcher.
    """

    NAMES = ("tolist", "item", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__",
             "nonzero", "masked_select", "unique", "equal", "is_nonzero", "argwhere")  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if (name := getattr(function, "__name__", "")) in self.NAMES:
            self.seen[name] += 1
        return function(*args, **(kwargs or {}))


def kind(name: str) -> str:
    for each in ("reduce_scatter", "allreduce", "allgather", "all_gather"):
        if each in name:
            return each.replace("all_gather", "allgather").replace("allgather", "gather")
    return name


def rows(case: str, step: int, ranks: int) -> list[list[tuple[list[int], list[int]]]]:
    """(source, target) of every row of every rank, of lengths that differ by rank."""
    random = torch.Generator().manual_seed(100 + step)
    found = []
    for rank in range(ranks):
        most = 1 + rank * 2 if case.endswith("uneven") else LENGTH
        if case.endswith("no token") or (case.endswith("without a token") and rank == 1):
            most = 0
        lengths = torch.randint(min(1, most), most + 1, (ROWS,), generator=random).tolist()
        texts = [torch.randint(2, VOCABULARY, (n + 3,), generator=random).tolist() for n in lengths]
        found.append([(t, t[:n]) for t, n in zip(texts, lengths, strict=True)])
    return found


def batch_of(of_rank: list[tuple[list[int], list[int]]]) -> Batch:
    source = torch.zeros(ROWS, LENGTH + 3, dtype=torch.long)
    labels = torch.full((ROWS, LENGTH), IGNORE)
    for row, (text, target) in enumerate(of_rank):
        source[row, : len(text)] = torch.tensor(text)
        labels[row, : len(target)] = torch.tensor(target)
    return Batch(source, source != 0, labels)


def alone(
    case: str, config: T5Config, settings: TrainingSettings, weights: dict[str, Tensor], ranks: int
) -> tuple[list[float], dict[str, Tensor]]:
    """Norms before clipping and weights after plain SGD in float64 on all ranks' rows."""
    model = T5(config, "math").double()
    model.load_state_dict(weights)
    norms = []
    for step in range(STEPS):
        batches = [batch_of(each) for each in rows(case, step, ranks)]
        loss = sum(model(*batch, loss="full") for batch in batches)
        tokens = sum(int((batch.labels != IGNORE).sum()) for batch in batches)
        (loss / max(1, tokens)).backward()
        limit = settings.grad_clip or float("inf")
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit)))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= settings.optimizer.lr * parameter.grad
                parameter.grad = None
    return norms, model.state_dict()


_first: dict[str, dict[str, Tensor]] = {}


def first_weights(model: Any, settings: TrainingSettings) -> dict[str, Tensor]:
    """Asked of one sharded model for each type of weights: a seed gives all of them the same."""
    if (master := settings.precision.master) not in _first:
        _first[master] = {name: weight.double() for name, weight in whole_weights(model)}
    return _first[master]


def steps_of(case: str, ranks: Ranks, folder: Path) -> dict:
    settings = load_settings({}, [*SMALL, *CASES[case]])
    model, config = fsdp_t5.build(settings, VOCABULARY, ranks)
    initial = first_weights(model, settings)
    # What the first rank reports is compared.
    norms, weights = (
        alone(case, config, settings, initial, ranks.world_size)
        if ranks.is_first
        else ([], initial)
    )
    paths = TaskPaths(folder)
    stop = StopRequest(paths, ranks)
    votes = Votes(ranks, stop, SaveClock(ranks, 0))
    parts = fsdp_t5.Parts(
        settings, ranks, config, model, make_optimizer(model, settings.optimizer),
        loss_scaler(settings.precision, model, ranks), Metrics(paths, ranks), votes,
        MicroBatches(model, ranks, settings.micro_batch, settings.batch_size),
    )  # fmt: skip
    found: dict = {"norms": [], "expected norms": norms, "stopping": []}
    for step in range(STEPS):
        if case.endswith("stopping") and step == 1 and ranks.is_first:
            paths.stop_requested.touch()
            stop._next_look = 0.0
        batches = iter([batch_of(rows(case, step, ranks.world_size)[ranks.rank])])
        # Of the last step: what engines set up once is no message of a step.
        messages, waits, before = Messages(), Waits(), []
        watched = replace(parts, votes=noting(votes, messages, before))
        with ExitStack() as watching:
            if step == STEPS - 1:
                watching.enter_context(messages)
                watching.enter_context(waits)
            done = fsdp_t5.train_step(watched, batches, step)
        found["norms"].append(float(done.grad_norm))
        found["stopping"].append(stop.agreed())
    found["messages"] = Counter(messages.sent)
    found["before the count"] = Counter(before[0])
    found["waits"] = waits.seen
    found["tokens"] = float(done.trained_tokens)
    after = dict(whole_weights(model))
    moved = max(float((weights[name] - initial[name]).norm()) for name in after)
    found["off"] = max(float((after[name] - weights[name]).norm()) for name in after) / (moved or 1)
    parts.metrics.close()
    return found


def noting(votes: Votes, messages: Messages, before: list[list[str]]) -> Any:
    """`votes`, noting what was sent before each of its sums was waited for."""

    def begin(*counts: Tensor) -> Callable[[], Tensor]:
        end = votes.begin(*counts)

        def ending() -> Tensor:
            before.append(list(messages.sent))
            return end()

        return ending

    return SimpleNamespace(begin=begin)


def main(ranks: Ranks, _: Path) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for number, case in enumerate(CASES):
            try:
                found[case] = steps_of(case, ranks, Path(folder) / str(number))
            except Exception as error:
                raise RuntimeError(case) from error
        gathered: list = [None] * ranks.world_size
        dist.all_gather_object(gathered, {c: (f["norms"], f["stopping"]) for c, f in found.items()})
        found["ranks differ"] = [c for c in CASES if len({str(g[c]) for g in gathered}) > 1]
        return found
