"""The `[training]` tables of a job file, typed; one sentence per field, here and nowhere else.

The longer tables have a file each beside this one: model, data, sharding, optimizer, checkpoint.
Command line help, the JSON Schema and the documentation are made from these sentences. The module
never imports torch, so that a login node can validate a job in milliseconds; what only a rank can
know (which device, how many samples) is checked by the trainer itself.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fsdpkit.config.fields import Count, doc
from fsdpkit.config.loading import Layered, build, overrides
from fsdpkit.config.training.checkpoint import EVALUATED, CheckpointSettings
from fsdpkit.config.training.data import DataSettings
from fsdpkit.config.training.model import ModelSettings, Name
from fsdpkit.config.training.optimizer import OptimizerSettings
from fsdpkit.config.training.sharding import ShardingSettings


class PrecisionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.precision]`: the types used while computing, and that of the shards."""

    param: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        doc(
            "Type of gathered weights; auto is bfloat16 on GPUs that have it (from compute "
            "capability 8.0), else float32. float16 scales its loss."
        ),
    ] = "auto"
    master: Annotated[
        Literal["float32", "bfloat16"],
        doc(
            "Type of the shards that the optimizer updates; bfloat16 takes half the "
            "memory and needs optimizer.rounding."
        ),
    ] = "float32"
    reduce: Annotated[
        Literal["float32", "bfloat16", "float16"],
        doc("Type in which gradients are summed over ranks."),
    ] = "float32"
    output: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        doc("Type that the model's output is cast to; unset leaves it."),
    ] = None
    buffer: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        doc("Type of the model's buffers, fsdp1 only; unset leaves them."),
    ] = None
    keep_float32: Annotated[
        tuple[Name, ...],
        doc('Modules that compute in float32, by name pattern, such as "*layer_norm".'),
    ] = ()
    loss_scale: Annotated[float, doc("Initial loss scale under float16.", ge=1, le=2**24)] = 65536.0


class EvaluationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.evaluation]`: the held-out samples, and when to stop for them."""

    every_steps: Annotated[
        int, doc("Steps between evaluations; 0 evaluates after the last one.", ge=0)
    ] = 0
    every_epochs: Annotated[
        int, doc("Also evaluate at the end of every n-th epoch; 0 does not.", ge=0)
    ] = 0
    batches: Annotated[
        int, doc("Maximum number of held-out batches per rank; 0 never evaluates.", ge=0)
    ] = 8
    patience: Annotated[
        int, doc("Stop after this many evaluations without a lower loss; 0 never does.", ge=0)
    ] = 0

    rouge: Annotated[
        bool,
        doc(
            "Also generate a text for each of these samples, at most target_length "
            "tokens, and score it by ROUGE-1, -2 and -L; needs the extra `rouge`."
        ),
    ] = False

    @property
    def repeats(self) -> bool:
        """Whether there are evaluations before the last step."""
        return self.every_steps > 0 or self.every_epochs > 0


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.metrics]`: what a run writes down about itself, and shows."""

    every_steps: Annotated[int, doc("Steps between two lines of metrics.", ge=1)] = 5
    progress: Annotated[
        Literal["auto", "bar", "lines"],
        doc("A progress bar or plain lines; auto: a bar on a terminal."),
    ] = "auto"
    stragglers_every: Annotated[
        int, doc("Number of logged lines between comparisons of the ranks' step times.", ge=0)
    ] = 10
    peak_tflops: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        doc(
            "Dense peak of one device that MFU divides by; unset: the GPU's published "
            "peak; MFU is omitted where that is unknown."
        ),
    ] = None


class DebugSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.debug]`: what to look at when a run is slow, stuck or out of memory."""

    profile_from: Annotated[
        Count | None, doc("First step that the PyTorch profiler records; unset records none.")
    ] = None
    profile_steps: Annotated[Count, doc("Steps that the profiler records.")] = 3
    memory_snapshot: Annotated[
        bool, doc("Write the allocator's history when a GPU runs out of memory.")
    ] = False
    memory_summary: Annotated[bool, doc("Print rank 0's CUDA allocator summary at the end.")] = (
        False
    )
    flight_recorder: Annotated[
        int, doc("Collectives that NCCL's flight recorder keeps, dumped when one times out.", ge=0)
    ] = 2000


DEFAULT_STEPS = 100
"""Of a run that was given neither steps nor epochs."""


class TrainingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training]`: one run of the reference T5 trainer."""

    steps: Annotated[
        int,
        doc(
            "Maximum number of optimizer steps; 0: as many as `epochs` needs, else "
            f"{DEFAULT_STEPS}.",
            ge=0,
            le=10**9,
        ),
    ] = 0
    epochs: Annotated[
        int,
        doc(
            "Passes over the training data after which training ends, unless `steps` "
            "ends it earlier; 0: no such limit.",
            ge=0,
            le=10**6,
        ),
    ] = 0
    tokens: Annotated[
        int,
        doc(
            "Target tokens after which training ends, unless `steps` ends it earlier; "
            "0: no such limit. The schedule follows `steps` or `epochs`.",
            ge=0,
        ),
    ] = 0
    batch_size: Annotated[
        int, doc("Samples per rank in one optimizer step.", ge=1, le=1_000_000)
    ] = 4
    micro_batch: Annotated[
        Count | Literal["auto"] | None,
        doc(
            "Samples per rank in one forward pass, with accumulated gradients; unset: the whole "
            "batch; auto: the most that fits in memory, reduced if it runs out."
        ),
    ] = None
    seed: Annotated[int, doc("Seed of weights, data order and dropout.", ge=0, lt=2**31)] = 42
    deterministic: Annotated[bool, doc("Use only deterministic operations; slower.")] = False
    compile: Annotated[
        bool | Literal["auto"],
        doc(
            "torch.compile each block; set data.buckets for few shapes; auto: on an "
            "NVIDIA GPU with Triton and a C compiler, unless deterministic."
        ),
    ] = "auto"
    loss: Annotated[
        Literal["whole", "chunked"],
        doc(
            "chunked: score the vocabulary for some target tokens at a time, and never "
            "hold all scores."
        ),
    ] = "whole"
    grad_clip: Annotated[float, doc("Largest global gradient norm; 0 does not clip.", ge=0)] = 1.0
    non_finite: Annotated[
        Literal["stop", "skip"],
        doc(
            "A gradient that is not finite ends the run before the update, or its step "
            "is skipped and counted."
        ),
    ] = "stop"
    timeout_s: Annotated[
        int, doc("Seconds a collective may wait before the run fails.", ge=10, le=86400)
    ] = 600
    startup_timeout_s: Annotated[
        int,
        doc(
            "The same until the first step is complete: loading and compiling take longer.",
            ge=10,
            le=86400,
        ),
    ] = 1800
    model: Annotated[ModelSettings, doc("Which T5.")] = msgspec.field(default_factory=ModelSettings)
    data: Annotated[DataSettings, doc("What it reads and writes.")] = msgspec.field(
        default_factory=DataSettings
    )
    sharding: Annotated[ShardingSettings, doc("How the model is spread over the ranks.")] = (
        msgspec.field(default_factory=ShardingSettings)
    )
    precision: Annotated[PrecisionSettings, doc("Types used while computing.")] = msgspec.field(
        default_factory=PrecisionSettings
    )
    optimizer: Annotated[OptimizerSettings, doc("The update rule.")] = msgspec.field(
        default_factory=OptimizerSettings
    )
    checkpoint: Annotated[CheckpointSettings, doc("Saving and resuming.")] = msgspec.field(
        default_factory=CheckpointSettings
    )
    evaluation: Annotated[EvaluationSettings, doc("The held-out samples.")] = msgspec.field(
        default_factory=EvaluationSettings
    )
    metrics: Annotated[MetricsSettings, doc("What is written down and shown.")] = msgspec.field(
        default_factory=MetricsSettings
    )
    debug: Annotated[DebugSettings, doc("When a run is slow or stuck.")] = msgspec.field(
        default_factory=DebugSettings
    )

    @property
    def saving(self) -> CheckpointSettings:
        """`checkpoint`, where who stops for the held-out loss keeps the best of it."""
        if self.checkpoint.keep_best is None and self.evaluation.patience:
            return msgspec.structs.replace(self.checkpoint, keep_best="eval_loss")
        return self.checkpoint

    @property
    def goes_by_evaluations(self) -> str | None:
        """The setting that means nothing where no sample is held out."""
        if self.evaluation.patience:
            return "training.evaluation.patience"
        if self.evaluation.rouge:
            return "training.evaluation.rouge"
        by_one = self.checkpoint.keep_best in EVALUATED
        return "training.checkpoint.keep_best" if by_one else None

    @property
    def most_steps(self) -> int:
        """Steps after which training ends whatever `epochs` says; 0: it alone ends it."""
        return self.steps or (0 if self.epochs else DEFAULT_STEPS)

    @property
    def names_files(self) -> bool:
        """True when something outside of the job file has to be read: data, tokenizer, model."""
        return bool(
            self.data.source != "python-docs"
            or self.data.held_out_source
            or self.data.tokenizer not in (None, "bytes")
            or self.model.pretrained
            or self.model.config
        )


def load_settings(
    table: Mapping[str, Any], sets: Sequence[str] = (), *, origin: str = "[training]"
) -> TrainingSettings:
    """The settings in `table` (a job's `training` key) with `KEY=VALUE` overrides on top. A key may
    be written with or without the leading `training.`. `origin` says in messages where the table
    came from. Raises ConfigError naming key, allowed values and nearest spelling."""
    layered = Layered()
    layered.say(table, origin)
    assignments = (item.lstrip().removeprefix("training.") for item in sets)
    layered.say(overrides(TrainingSettings, assignments), "--set")
    return build(TrainingSettings, layered, "training")
