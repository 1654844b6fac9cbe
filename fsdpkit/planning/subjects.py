"""What is trained on the tape: the job's own trainer, or a model that a function gives."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fsdpkit.config.training import TrainingSettings
from fsdpkit.config.training.footprint import parameter_count
from fsdpkit.config.trust import TrustedModel, TrustedScript
from fsdpkit.errors import UsageError
from fsdpkit.planning.own_models import given_by, imported
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.agreement import Votes
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.gradients import clip_gradients, loss_scaler, update
from fsdpkit.training.metrics import Metrics
from fsdpkit.training.optimizers import make_optimizer
from fsdpkit.training.out_of_memory import MicroBatches
from fsdpkit.training.sharding import shard


@dataclass(frozen=True)
class Subject:
    """A sharded model with its optimizer, and a step to be called with its number."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[int], None]
    close: Callable[[], None] = lambda: None
    counts: tuple[int, int] = (0, 0)
    """Samples and tokens of one rank in a step; 0: not known."""
    parameters: int = 0
    """Of the whole model; 0: not known."""
    notes: tuple[str, ...] = ()


Build = Callable[[Ranks], Subject]


def of_trainer(entry: TrustedScript, settings: TrainingSettings) -> tuple[Build, int]:
    """The trainer's own model and step, on batches as long as they can be; and the vocabulary.
    Raises UsageError for a script that is none of this shape."""
    trainer = _trainer(entry)
    vocabulary = int(settings.model.dimensions()["vocab_size"])

    def build(ranks: Ranks) -> Subject:
        model, config = trainer.build(settings, 0, ranks)
        optimizer = make_optimizer(model, settings.optimizer)
        folder = tempfile.TemporaryDirectory(prefix="fsdpkit-plan-")
        metrics = Metrics(TaskPaths(Path(folder.name)), ranks)
        parts = trainer.Parts(
            settings=settings,
            ranks=ranks,
            config=config,
            model=model,
            optimizer=optimizer,
            scaler=loss_scaler(settings.precision, model, ranks),
            metrics=metrics,
            votes=Votes(ranks),
            micro_batches=MicroBatches(model, ranks, settings.micro_batch, settings.batch_size),
        )
        model.train()
        batches = _batches(trainer, settings)

        def step(number: int) -> None:
            trainer.train_step(parts, batches, number)

        def close() -> None:
            metrics.close()
            folder.cleanup()

        data = settings.data
        tokens = settings.batch_size * (data.source_length + data.target_length)
        return Subject(
            model,
            optimizer,
            step,
            close,
            counts=(settings.batch_size, tokens),
            parameters=parameter_count(settings.model.dimensions()),
        )

    return build, vocabulary


def _trainer(entry: TrustedScript) -> Any:
    """The module of a job's script, which must be one that trains T5 step by step."""
    directory = str(entry.path.parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    source = entry.source.decode(errors="replace")
    if not all(f"def {name}(" in source for name in ("train_step", "build", "main")):
        raise UsageError(
            f"{entry.path.name} is not the T5 trainer, so its step is not known here: name a "
            f"function that returns the model and a batch, with --model FILE.py:FUNCTION"
        )
    before = sys.modules.get(entry.path.stem)
    return before if getattr(before, "__file__", None) == str(entry.path) else imported(entry)


def _batches(trainer: Any, settings: TrainingSettings) -> Iterator[Any]:
    data = settings.data
    multiple = data.multiple if isinstance(data.multiple, int) else 1
    source, target = (
        -(-n // multiple) * multiple for n in (data.source_length, data.target_length)
    )
    rows = settings.batch_size
    while True:
        ids = torch.ones(rows, source, dtype=torch.int64)
        labels = torch.ones(rows, target, dtype=torch.int64)
        segments = (ids.clone(), labels.clone()) if data.packing else None
        yield trainer.Batch(ids, ids > 0, labels, segments)


def of_model(
    model: TrustedModel,
    settings: TrainingSettings,
    args: Sequence[str] = (),
    rows: int | None = None,
    length: int | None = None,
) -> tuple[Build, int]:
    """`--model`: a directory in Hugging Face's format, or FILE.py:FUNCTION: a function that finds
    `args` in `sys.argv`, is given `length` if it has a parameter of that name, and returns a dict
    with

    - "model": on the meta device (`with torch.device("meta")`), or built with values;
    - "batch": one rank's samples of one step: a tensor, a tuple (`model(*batch)`) or a dict
      (`model(**batch)`);
    - "forward": optional, a function of the model and the batch that gives the loss, as a loop of
      one's own has it; else
    - "loss": optional, a function of the model's output and the batch; else the output itself, or
      its `loss`;
    - "blocks": optional, the classes of its repeated layers; a model of transformers names its own;
    - "vocabulary": optional, the width of its scores; "last": optional, as `shard` takes it.

    rows: samples of one rank in a step; None: as many as it gives. length: of a sequence; None: as
    the function has it. Raises UsageError.
    """
    if model.script is None:
        given = _pretrained(Path(str(model)), settings)
    else:
        given = given_by(str(model), model.script, args, length)
    if rows is not None:
        given = {**given, "batch": _with_rows(given["batch"], rows)}
    return _of_given(given, settings)


def _pretrained(directory: Path, settings: TrainingSettings) -> dict[str, Any]:
    """The model that a directory's config.json describes, and a batch as long as the job's can be:
    `data.source_length` tokens, of an encoder-decoder also `data.target_length` to be written."""
    if not (directory / "config.json").is_file():
        raise UsageError(f"--model {directory}: it holds no config.json of a transformers model")
    from fsdpkit.training.hugging_face import model_of

    model = model_of(directory)
    rows, data = settings.batch_size, settings.data
    batch = {"input_ids": torch.zeros(rows, data.source_length, dtype=torch.int64)}
    halves = getattr(model.config, "is_encoder_decoder", False)
    labels = data.target_length if halves else data.source_length
    batch["labels"] = torch.zeros(rows, labels, dtype=torch.int64)
    return {"model": model, "batch": batch}


def _of_given(given: Mapping[str, Any], settings: TrainingSettings) -> tuple[Build, int]:
    vocabulary = int(given.get("vocabulary") or _vocabulary(given["model"]))
    parameters = sum(each.numel() for each in given["model"].parameters())
    parts = list(given["model"].modules())
    if sparse := next((each for each in parts if getattr(each, "sparse", False)), None):
        raise UsageError(
            f"{type(sparse).__name__}(sparse=True) has sparse gradients, which FSDP cannot shard: "
            f"leave sparse out"
        )
    notes = (_OF_CUDNN,) if any(isinstance(each, nn.RNNBase) for each in parts) else ()

    def build(ranks: Ranks) -> Subject:
        model = shard(
            _on_meta(given["model"]),
            settings.sharding,
            settings.precision,
            ranks,
            blocks=given.get("blocks", ()),
            fill=_fill,
            fill_buffers=_fill,
            last=given.get("last", ()),
        )
        optimizer = make_optimizer(model, settings.optimizer)
        scaler = loss_scaler(settings.precision, model, ranks)
        pieces = MicroBatches(model, ranks, settings.micro_batch, _rows(given["batch"]))
        model.train()

        def forward_backward(part: _Rows) -> Tensor:
            loss = _loss(given, model, part.values)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        def step(number: int) -> None:
            batch = tree_map_only(
                Tensor, lambda t: torch.ones_like(t, device="cpu"), given["batch"]
            )
            batch = tree_map_only(Tensor, lambda t: t.to(ranks.device), batch)
            pieces.run(_Rows(batch), forward_backward)
            scaler.unscale_(optimizer)
            norm = clip_gradients(model, settings.grad_clip)
            update(optimizer, scaler, norm, settings.non_finite, ranks, number + 1)
            optimizer.zero_grad()

        return Subject(
            model, optimizer, step, counts=_counts(given), parameters=parameters, notes=notes
        )

    return build, vocabulary


_OF_CUDNN = "what cuDNN keeps of recurrent layers it does not say: it is estimated"


def _on_meta(model: nn.Module) -> nn.Module:
    """The model without values, in place; tied weights stay so, which `Module.to` unties."""
    made: dict[int, Tensor] = {}
    for module in model.modules():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for held in tables:
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = made.setdefault(id(tensor), _without_values(tensor))
    return model


def _without_values(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


@dataclass(frozen=True)
class _Rows:
    """A batch of any shape, cut along its first dimension."""

    values: Any

    def split(self, rows: int) -> list[_Rows]:
        count = _rows(self.values)
        return [
            _Rows(tree_map_only(Tensor, itemgetter(slice(at, at + rows)), self.values))
            for at in range(0, count, rows)
        ]


def _with_rows(batch: Any, rows: int) -> Any:
    """The same with another number of samples; what has no dimension of them stays."""
    now = _rows(batch)

    def resized(each: Tensor) -> Tensor:
        if not each.ndim or len(each) != now:
            return each
        return each.new_zeros((rows, *each.shape[1:]))

    return tree_map_only(Tensor, resized, batch)


def _rows(batch: Any) -> int:
    found: list[Tensor] = []
    tree_map_only(Tensor, found.append, batch)
    if not found or not found[0].ndim or not len(found[0]):
        raise UsageError('"batch" has no tensor with a dimension of samples, or none in it')
    return len(found[0])


def _counts(given: Mapping[str, Any]) -> tuple[int, int]:
    """Samples and tokens of a batch. Tokens are whole numbers, two dimensions of them; those of
    labels count beside them where a model writes one sequence for another, as the trainer's do."""
    batch = given["batch"]
    halves = getattr(getattr(given["model"], "config", None), "is_encoder_decoder", False)
    named = batch if isinstance(batch, Mapping) else {}
    wanted = ("input_ids", "labels") if halves else ("input_ids",)
    ids = [named[key] for key in wanted if key in named] if "input_ids" in named else []
    if not ids:
        tree_map_only(Tensor, ids.append, batch)
        ids = [each for each in ids if each.ndim == 2 and each.dtype in (torch.int64, torch.int32)]
        ids = ids[:1]
    return _rows(batch), sum(each.numel() for each in ids)


def _loss(given: Mapping[str, Any], model: nn.Module, batch: Any) -> Tensor:
    if forward := given.get("forward"):
        output = forward(model, batch)
    elif isinstance(batch, Mapping):
        output = model(**batch)
    else:
        output = model(*batch) if isinstance(batch, tuple | list) else model(batch)
    if wanted := given.get("loss"):
        loss = wanted(output, batch)
    else:
        loss = getattr(output, "loss", output)
    if not isinstance(loss, Tensor) or loss.ndim:
        raise UsageError(
            'the model returns no scalar loss: return a "loss" beside the model, a function of '
            'its output and the batch, or a "forward", one of the model and the batch'
        )
    return loss


def _vocabulary(model: nn.Module) -> int:
    """The most rows of an embedding: what a language model scores."""
    rows = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    return max(rows, default=0)


def _fill(name: str, tensor: Tensor, generator: torch.Generator) -> None:
    """Any finite values: they do not count here."""
    tensor.fill_(0.01)
