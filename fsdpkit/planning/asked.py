"""What is to be planned: settings, ranks and a card, decided before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from fsdpkit.config.gpu import compute_type, type_problem
from fsdpkit.config.training import TrainingSettings, for_device
from fsdpkit.config.training.automatic import Device
from fsdpkit.config.trust import TrustedModel, TrustedScript
from fsdpkit.errors import ConfigError
from fsdpkit.planning.cards import Card


@dataclass(frozen=True)
class AskedStep:
    """One rank's training step, and the GPU that it is to fit."""

    settings: TrainingSettings
    nodes: int
    gpus: int
    """Per node."""
    card: Card
    entry: TrustedScript
    """The trainer of the job."""
    model: TrustedModel | None = None
    """FILE.py:FUNCTION, or a directory in Hugging Face's format, in the place of the trainer."""
    rows: int | None = None
    """Samples of one rank in a step, where they are to be others than `model` itself gives."""
    length: int | None = None
    """Of a sequence, likewise."""
    args: tuple[str, ...] = ()
    """What the script is told; `model` reads it as its own, in `sys.argv`."""
    compiled: bool = False
    """Whether blocks that the trainer compiles are followed as their graphs (compiled.py)."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus


def on_card(asked: AskedStep) -> TrainingSettings:
    """The settings as a run on the card has them. Raises ConfigError for a type that it lacks."""
    given = asked.settings
    if problem := type_problem(given.precision.param, asked.card.capability, asked.card.name):
        raise ConfigError(problem)
    device = Device(on_gpu=True, capability=asked.card.capability, triton=True, cores=8)
    settings = for_device(given, device)
    param = compute_type(given.precision.param, on_gpu=True, capability=asked.card.capability)
    return replace(settings, precision=replace(settings.precision, param=param))


def resolved(asked: AskedStep) -> tuple[TrainingSettings, tuple[str, ...]]:
    """The settings as they are on the card, but with a kernel that can be followed, and uncompiled
    unless `asked.compiled`; what was changed for that, in words. Raises ConfigError for a type that
    the card lacks."""
    settings, notes = on_card(asked), []
    if settings.compile and not asked.model and not asked.compiled:
        notes.append(
            "blocks are compiled on the GPU and not here: activations are those of the uncompiled "
            "blocks, and compiled ones usually keep less: see --compiled"
        )
    if not asked.compiled:
        settings = replace(settings, compile=False)
    if settings.model.attention == "flex":
        notes.append("attention is planned by sdpa, whose bias is a tensor: flex takes less")
        settings = replace(settings, model=replace(settings.model, attention="sdpa"))
    if settings.sharding.activation_checkpointing == "offload":
        notes.append(
            "activations that are offloaded count as kept on the GPU: a run takes less than this"
        )
        sharding = replace(settings.sharding, activation_checkpointing="none")
        settings = replace(settings, sharding=sharding)
    if settings.micro_batch == "auto":
        notes.append(
            'micro_batch = "auto" is planned with whole batches; a run takes less if needed'
        )
        settings = replace(settings, micro_batch=None)
    return settings, tuple(notes)
