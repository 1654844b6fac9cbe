"""What fsdpkit's own trainer tells the launcher of its settings before a job queues.

The checks themselves lie with the settings (fsdpkit/config/training) and the data that they name
(fsdpkit/data/inputs.py). Imported on a login node: no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from fsdpkit.config.gpu import compute_type, parse_capability, type_note, type_problem
from fsdpkit.config.partition import NodeType
from fsdpkit.config.trainer import CheckpointSize, GpuVerdict, Trainer, TrainingLength
from fsdpkit.config.training import TrainingSettings, problems
from fsdpkit.config.training.footprint import (
    checkpoint_bytes,
    least_gpu_bytes,
    memory_problem,
    parameter_count,
)
from fsdpkit.errors import FsdpkitError

_PATHS = (
    ("data", "source"),
    ("data", "held_out_source"),
    ("data", "tokenizer"),
    ("model", "pretrained"),
    ("model", "config"),
    ("checkpoint", "start"),
)
"""Settings that may name a file or directory."""


class T5Trainer(Trainer):
    """The trainer of `examples/T5-fsdp`, and of each script that reads `[training]` as it does."""

    Settings = TrainingSettings

    def problems(self, settings: TrainingSettings, ranks: int, ranks_per_node: int) -> list[str]:
        return problems(settings, ranks, ranks_per_node)

    def file_problems(self, settings: TrainingSettings, ranks: int, work_dir: Path) -> list[str]:
        if not settings.names_files:
            return []
        from fsdpkit.data.inputs import input_problems

        return input_problems(settings, ranks, work_dir)

    def check_start(self, settings: TrainingSettings, work_dir: Path) -> None:
        """A directory may yet get its first checkpoint."""
        start = settings.checkpoint.start
        if start is not None and not (path := work_dir / start).is_dir():
            from fsdpkit.runs.starting_points import starting_point

            starting_point(path)

    def in_place(self, settings: TrainingSettings, work_dir: Path) -> TrainingSettings:
        model = settings.model
        if directory := model.pretrained:
            model = replace(model, pretrained=str(work_dir / directory))
        elif file := model.config:
            model = replace(model, config=str(work_dir / file))
        return replace(settings, model=model)

    def moved(self, settings: TrainingSettings, move: Callable[[str], str]) -> TrainingSettings:
        for table, key in _PATHS:
            below = getattr(settings, table)
            if isinstance(value := getattr(below, key), str):
                settings = replace(settings, **{table: replace(below, **{key: move(value)})})
        return settings

    def inputs(self, settings: TrainingSettings) -> list[str]:
        data = settings.data
        return list(filter(None, (data.source, data.held_out_source, settings.model.pretrained)))

    def on_gpus(
        self,
        settings: TrainingSettings,
        ranks: int,
        ranks_per_node: int,
        node: NodeType,
        *,
        files: bool,
    ) -> GpuVerdict:
        notes = []
        if node.compute_capability is not None:
            param, capability = settings.precision.param, parse_capability(node.compute_capability)
            if problem := type_problem(param, capability, node.gpu):
                return GpuVerdict(problem)
            if note := type_note(param, capability, node.gpu):
                notes.append(note)
        computed = _computed_on(settings, node, files=files)
        if computed is None or node.gpu_memory_gb is None:
            return GpuVerdict(None, tuple(notes))
        problem = memory_problem(computed, ranks, ranks_per_node, node.gpu, node.gpu_memory_gb)
        return GpuVerdict(problem, tuple(notes))

    def least_gpu_bytes(
        self,
        settings: TrainingSettings,
        ranks: int,
        ranks_per_node: int,
        node: NodeType,
        *,
        files: bool,
    ) -> int | None:
        computed = _computed_on(settings, node, files=files)
        if computed is None:
            return None
        parameters = parameter_count(computed.model.dimensions())
        return least_gpu_bytes(computed, parameters, ranks, ranks_per_node)

    def checkpoints(self, settings: TrainingSettings) -> CheckpointSize | None:
        saving = settings.checkpoint
        if not (saving.at_end or saving.every_steps or saving.every_epochs or saving.every_minutes):
            return None
        what = settings.model.source
        return CheckpointSize(what, checkpoint_bytes(settings), saving.keep_last + 1)

    def length(self, settings: TrainingSettings, ranks: int, work_dir: Path) -> TrainingLength:
        try:
            steps, source, is_estimate = _steps_to_do(settings, ranks, work_dir)
        except (FsdpkitError, OSError) as error:
            why = str(error).splitlines()[0]
            return TrainingLength(source=f"{why}; training.steps would say it")
        saving, evaluation = settings.saving, settings.evaluation
        evaluates = evaluation.batches > 0 and settings.data.holds_out
        per_epoch = steps // settings.epochs if settings.epochs else 0
        saves = _times(steps, saving.every_steps, saving.every_epochs * per_epoch)
        evaluations = _times(steps, evaluation.every_steps, evaluation.every_epochs * per_epoch)
        not_counted = [
            *(["checkpoint.every_minutes"] if saving.every_minutes else []),
            *(["evaluation.rouge"] if evaluates and evaluation.rouge else []),
        ]
        return TrainingLength(
            steps=steps,
            source=source,
            is_estimate=is_estimate,
            saves=max(saves, 1 if saving.at_end else 0),
            background=saving.background,
            evaluations=max(evaluations, 1) if evaluates else 0,
            evaluated=evaluation.batches,
            not_counted=tuple(not_counted),
        )


def _steps_to_do(settings: TrainingSettings, ranks: int, work_dir: Path) -> tuple[int, str, bool]:
    """Steps until the first of `steps`, `epochs` and `tokens` ends training; what that is, in
    words; whether it is estimated. Raises FsdpkitError or OSError for data that is not counted."""
    batch = settings.batch_size * ranks
    ends = [(settings.most_steps, "training.steps", False)] if settings.most_steps else []
    if settings.tokens:  # shorter texts have fewer, and take more steps
        steps = -(-settings.tokens // (batch * settings.data.target_length))
        ends.append((steps, "training.tokens in full texts", True))
    if settings.epochs:
        from fsdpkit.data.counting import count_samples

        try:
            found = count_samples(settings.data, work_dir)
        except (FsdpkitError, OSError):
            if not ends:
                raise
        else:
            about = "about " if found.is_estimate else ""
            said = f"training.epochs of {about}{found.samples:,} samples"
            ends.append((settings.epochs * -(-found.samples // batch), said, found.is_estimate))
    return min(ends)


def _times(steps: int, *every: int) -> int:
    """How often something is due that is due every so many steps, by one or the other; 0: never."""
    return sum(steps // each for each in {*every} if each)


def _computed_on(
    settings: TrainingSettings, node: NodeType, *, files: bool
) -> TrainingSettings | None:
    """The settings with the type that such GPUs compute in; None where how large the model is is
    not known here."""
    if node.gpu_memory_gb is None:
        return None
    if (settings.model.pretrained or settings.model.config) and not files:
        return None
    capability = node.compute_capability and parse_capability(node.compute_capability)
    param = compute_type(settings.precision.param, on_gpu=True, capability=capability or None)
    return replace(settings, precision=replace(settings.precision, param=param))


TRAINER = T5Trainer()
