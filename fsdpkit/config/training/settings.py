"""The `[training]` tables of a job file, typed; one sentence per field, here and nowhere else.

Command line help, the JSON Schema and the documentation are made from these sentences. The module
never imports torch, so that a login node can validate a job in milliseconds; what only a rank can
know (which device, how many samples) is checked by the trainer itself.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fsdpkit.config.loading import Layered, build, overrides
from fsdpkit.config.training.data import DataSettings
from fsdpkit.config.training.model import ModelSettings, Name

Count = Annotated[int, Meta(ge=1)]


Strategy = Literal["full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "no_shard"]


Schedule = Literal[
    "constant",
    "linear",
    "cosine",
    "inverse-sqrt",
    "StepLR",
    "MultiStepLR",
    "ConstantLR",
    "LinearLR",
    "ExponentialLR",
    "PolynomialLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "OneCycleLR",
    "LambdaLR",
    "MultiplicativeLR",
    "SequentialLR",
    "ChainedScheduler",
    "ReduceLROnPlateau",
]


class ShardingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.sharding]`: how the model is spread over the ranks."""

    engine: Annotated[
        Literal["fsdp2", "fsdp1"],
        Meta(description="fsdp2: fully_shard; fsdp1: the older FullyShardedDataParallel class."),
    ] = "fsdp2"
    strategy: Annotated[
        Strategy,
        Meta(
            description="full_shard saves most memory; shard_grad_op keeps weights gathered until "
            "backward; the hybrids do either in a group and replicate across; no_shard is DDP."
        ),
    ] = "full_shard"
    shard_size: Annotated[
        Count | None,
        Meta(description="Ranks in one group of a hybrid; unset takes the ranks of one node."),
    ] = None
    reshard_to: Annotated[
        Count | Literal["node"] | None,
        Meta(
            description="After forward, keep each unit spread over this many ranks only (or one "
            "node's), so that backward gathers nearby; fsdp2's full_shard."
        ),
    ] = None
    wrap: Annotated[
        Literal["class", "size", "names"],
        Meta(
            description="Units are the instances of the block classes, or modules of at least "
            "wrap_parameters, or those that wrap_names lists."
        ),
    ] = "class"
    wrap_parameters: Annotated[
        int, Meta(description="Minimum number of parameters of a unit when wrap is size.", ge=1)
    ] = 1_000_000
    wrap_names: Annotated[
        tuple[Name, ...],
        Meta(description='Modules to wrap when wrap is names, such as "encoder.block.*".'),
    ] = ()
    blocks_per_unit: Annotated[
        Count,
        Meta(
            description="Neighbouring blocks gathered together; more means fewer, larger messages."
        ),
    ] = 1
    limit_all_gathers: Annotated[
        bool,
        Meta(
            description="Keep at most two units gathered ahead of the computation; "
            "fsdp2 always does."
        ),
    ] = True
    prefetch: Annotated[
        int,
        Meta(
            description="Units gathered ahead by name, forward and backward; 0 leaves it to the "
            "engine, which gathers one ahead.",
            ge=0,
            le=16,
        ),
    ] = 0
    backward_prefetch: Annotated[
        Literal["pre", "post", "none"],
        Meta(
            description="When backward gathers the next unit: pre, before a unit's gradients are "
            "computed, is fastest; post after them; none not ahead. fsdp2 always does pre."
        ),
    ] = "pre"
    ignore: Annotated[
        tuple[Name, ...],
        Meta(
            description="Parameters that are not sharded but replicated on every rank, by name "
            "pattern, "
            'such as "lm_head.*".'
        ),
    ] = ()
    activation_checkpointing: Annotated[
        Literal["none", "full", "selective", "offload"],
        Meta(
            description="full: keep only each block's input and recompute the rest in backward; "
            "selective: also keep attention and every second matrix product; offload: recompute "
            "nothing, keep what backward needs in host memory."
        ),
    ] = "none"
    checkpoint_every: Annotated[
        Count, Meta(description="Activation checkpointing or offload on every n-th block only.")
    ] = 1
    cpu_offload: Annotated[
        bool,
        Meta(
            description="Keep shards of weights, gradients and optimizer in host memory; "
            "saves the most memory, and is slow."
        ),
    ] = False
    sync_module_states: Annotated[
        bool,
        Meta(
            description="Broadcast rank 0's initial weights and buffers, for a model that was "
            "built with values; otherwise they must be equal on all ranks, which is "
            "checked."
        ),
    ] = False


class PrecisionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.precision]`: the types used while computing, and that of the shards."""

    param: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Meta(
            description="Type of gathered weights; auto is bfloat16 on GPUs that have it (from "
            "compute capability 8.0), else float32. "
            "float16 scales its loss."
        ),
    ] = "auto"
    master: Annotated[
        Literal["float32", "bfloat16"],
        Meta(
            description="Type of the shards that the optimizer updates; bfloat16 takes half the "
            "memory and needs optimizer.rounding."
        ),
    ] = "float32"
    reduce: Annotated[
        Literal["float32", "bfloat16", "float16"],
        Meta(description="Type in which gradients are summed over ranks."),
    ] = "float32"
    output: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        Meta(description="Type that the model's output is cast to; unset leaves it."),
    ] = None
    buffer: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        Meta(description="Type of the model's buffers, fsdp1 only; unset leaves them."),
    ] = None
    keep_float32: Annotated[
        tuple[Name, ...],
        Meta(
            description='Modules that compute in float32, by name pattern, such as "*layer_norm".'
        ),
    ] = ()
    loss_scale: Annotated[
        float, Meta(description="Initial loss scale under float16.", ge=1, le=2**24)
    ] = 65536.0


class ParameterGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[training.optimizer.groups]]`: parameters with a rate or decay of their own."""

    match: Annotated[
        Name,
        Meta(
            description='Pattern of parameter names, such as "*.layer_norm.weight"; '
            "the first match wins."
        ),
    ]
    lr_scale: Annotated[
        float, Meta(description="Factor on the learning rate; 0 freezes.", ge=0, le=1000)
    ] = 1.0
    weight_decay: Annotated[
        Annotated[float, Meta(ge=0, le=10)] | None,
        Meta(description="Decoupled weight decay of the group; unset takes the optimizer's."),
    ] = None


class OptimizerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.optimizer]`: the update rule and its learning rate over time."""

    name: Annotated[
        Literal["adamw", "adamw-scaled", "adafactor", "adam", "sgd"],
        Meta(
            description="Update rule; adam adds its decay to the gradient; adamw-scaled multiplies "
            "each update by its weight's root mean square, which pre-training T5 needs."
        ),
    ] = "adamw"
    implementation: Annotated[
        Literal["auto", "fused", "foreach", "loop"],
        Meta(
            description="fused: one kernel; foreach: fewer kernels, more memory; loop: least "
            "memory; auto is the fastest available for the update rule."
        ),
    ] = "auto"
    lr: Annotated[float, Meta(description="Peak learning rate.", gt=0, le=100)] = 4e-3
    warmup_steps: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="Steps over which the rate rises linearly from zero; "
            "unset takes a tenth of the run, at most 1000, or none before a torch scheduler."
        ),
    ] = None
    schedule: Annotated[
        Schedule,
        Meta(
            description="Learning rate after warm-up; linear and cosine end at min_lr_ratio. Or a "
            "class of torch.optim.lr_scheduler, with schedule_arguments."
        ),
    ] = "cosine"
    schedule_arguments: Annotated[
        dict[str, bool | int | float | str | list[int | float]],
        Meta(description="Arguments of a torch scheduler, such as {step_size = 30, gamma = 0.1}."),
    ] = {}
    schedule_every: Annotated[
        Count,
        Meta(
            description="Optimizer steps between two steps of a torch scheduler; for a scheduler "
            "that steps once per epoch, set the number of steps in an epoch."
        ),
    ] = 1
    min_lr_ratio: Annotated[
        float, Meta(description="Where linear and cosine end, as a share of lr.", ge=0, le=1)
    ] = 0.1
    weight_decay: Annotated[
        float,
        Meta(
            description="Weight decay of matrices, decoupled but for adam; norms, biases and other "
            "vectors have none.",
            ge=0,
            le=10,
        ),
    ] = 0.0
    beta1: Annotated[
        float, Meta(description="Decay of AdamW's mean; momentum of sgd.", ge=0, lt=1)
    ] = 0.9
    beta2: Annotated[float, Meta(description="Decay of AdamW's squared mean.", ge=0, lt=1)] = 0.98
    eps: Annotated[float, Meta(description="AdamW's guard against division by zero.", gt=0)] = 1e-8
    rounding: Annotated[
        Literal["stochastic", "compensated", "nearest"] | None,
        Meta(
            description="How adamw updates bfloat16 weights: stochastic rounds up or down by "
            "chance, compensated keeps what was rounded off; nearest loses small updates, to "
            "compare with."
        ),
    ] = None
    groups: Annotated[
        tuple[ParameterGroup, ...],
        Meta(description="Parameters with a rate or decay of their own."),
    ] = ()


ROUGE = ("eval_rouge1", "eval_rouge2", "eval_rougeL")
EVALUATED = ("eval_loss", *ROUGE)
"""Metrics of an evaluation."""

LOGGED = ("loss", "grad_norm", "step_time_s", "tokens_per_s", "tflops_per_device", "memory_bytes")
"""Metrics of a logged line by which one checkpoint may be better than another; see
`fsdpkit.training.metrics`."""

BEST_IS_HIGHEST = (*ROUGE, "tokens_per_s", "tflops_per_device")
"""Of the metrics that are recorded here; others are taken for losses."""


class CheckpointSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.checkpoint]`: when to save, what to keep, whether to go on from it."""

    every_steps: Annotated[
        int,
        Meta(
            description="Steps between checkpoints; 0 saves only at the end or when stopped.", ge=0
        ),
    ] = 50
    every_epochs: Annotated[
        int, Meta(description="Also save at the end of every n-th epoch; 0 does not.", ge=0)
    ] = 0
    every_minutes: Annotated[
        float,
        Meta(
            description="Also save when this long has passed since the last checkpoint; 0 never.",
            ge=0,
        ),
    ] = 0
    background: Annotated[
        bool,
        Meta(description="Write while training goes on, from a copy of the shards in host memory."),
    ] = True
    keep_last: Annotated[int, Meta(description="Newest checkpoints to keep.", ge=1)] = 2
    keep_best: Annotated[
        Name | None,
        Meta(
            description="Also keep the checkpoint that is best by this metric, such as eval_loss; "
            "an evaluation that is the best so far saves one. Unset: eval_loss with "
            "evaluation.patience, else none."
        ),
    ] = None
    best_is: Annotated[
        Literal["lowest", "highest"] | None,
        Meta(
            description="Which value of keep_best is the best. Unset: the highest ROUGE and speed, "
            "of all others the lowest."
        ),
    ] = None
    at_end: Annotated[bool, Meta(description="Also save after the last step.")] = True
    export: Annotated[
        bool,
        Meta(
            description="After the last step also write config.json and safetensors for "
            "Hugging Face, in the run's export directory: of the best checkpoint if one is kept."
        ),
    ] = False
    resume: Annotated[
        Literal["auto", "never"],
        Meta(
            description="auto: resume from the run's newest complete checkpoint, if there is one."
        ),
    ] = "auto"
    may_differ: Annotated[
        tuple[Literal["data", "seed"], ...],
        Meta(
            description="What may differ from the checkpoint that training resumes from; the epoch "
            "then starts again. Any other difference is refused."
        ),
    ] = ()
    start: Annotated[
        str | None,
        Meta(
            description="An earlier run's directory to continue from, or weights to start from (a "
            "file of torch.save, safetensors or Lightning, a directory of torch's or Hugging "
            "Face's), unless this run has already started."
        ),
    ] = None

    @property
    def highest_is_best(self) -> bool:
        """Of `keep_best`."""
        return self.best_is == "highest" or (
            self.best_is is None and self.keep_best in BEST_IS_HIGHEST
        )


class EvaluationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.evaluation]`: the held-out samples, and when to stop for them."""

    every_steps: Annotated[
        int, Meta(description="Steps between evaluations; 0 evaluates after the last one.", ge=0)
    ] = 0
    every_epochs: Annotated[
        int, Meta(description="Also evaluate at the end of every n-th epoch; 0 does not.", ge=0)
    ] = 0
    batches: Annotated[
        int,
        Meta(description="Maximum number of held-out batches per rank; 0 never evaluates.", ge=0),
    ] = 8
    patience: Annotated[
        int,
        Meta(
            description="Stop after this many evaluations without a lower loss; 0 never does.", ge=0
        ),
    ] = 0

    rouge: Annotated[
        bool,
        Meta(
            description="Also generate a text for each of these samples, at most target_length "
            "tokens, and score it by ROUGE-1, -2 and -L; needs the extra `rouge`."
        ),
    ] = False

    @property
    def repeats(self) -> bool:
        """Whether there are evaluations before the last step."""
        return self.every_steps > 0 or self.every_epochs > 0


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.metrics]`: what a run writes down about itself, and shows."""

    every_steps: Annotated[int, Meta(description="Steps between two lines of metrics.", ge=1)] = 5
    tensorboard: Annotated[
        bool, Meta(description="Also write TensorBoard events; needs the extra `tensorboard`.")
    ] = False
    progress: Annotated[
        Literal["auto", "bar", "lines"],
        Meta(description="A progress bar or plain lines; auto: a bar on a terminal."),
    ] = "auto"
    stragglers_every: Annotated[
        int,
        Meta(
            description="Number of logged lines between comparisons of the ranks' step times.", ge=0
        ),
    ] = 10
    peak_tflops: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="Dense peak of one device that MFU divides by; unset: the GPU's published "
            "peak; MFU is omitted where that is unknown."
        ),
    ] = None


class DebugSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.debug]`: what to look at when a run is slow, stuck or out of memory."""

    profile_from: Annotated[
        Count | None,
        Meta(description="First step that the PyTorch profiler records; unset records none."),
    ] = None
    profile_steps: Annotated[Count, Meta(description="Steps that the profiler records.")] = 3
    memory_snapshot: Annotated[
        bool,
        Meta(description="Write the allocator's history when a GPU runs out of memory."),
    ] = False
    memory_summary: Annotated[
        bool,
        Meta(description="Print rank 0's CUDA allocator summary at the end."),
    ] = False
    flight_recorder: Annotated[
        int,
        Meta(
            description="Collectives that NCCL's flight recorder keeps, dumped when one times out.",
            ge=0,
        ),
    ] = 2000


DEFAULT_STEPS = 100
"""Of a run that was given neither steps nor epochs."""


class TrainingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training]`: one run of the reference T5 trainer."""

    steps: Annotated[
        int,
        Meta(
            description="Maximum number of optimizer steps; 0: as many as `epochs` needs, else "
            f"{DEFAULT_STEPS}.",
            ge=0,
            le=10**9,
        ),
    ] = 0
    epochs: Annotated[
        int,
        Meta(
            description="Passes over the training data after which training ends, unless `steps` "
            "ends it earlier; 0: no such limit.",
            ge=0,
            le=10**6,
        ),
    ] = 0
    tokens: Annotated[
        int,
        Meta(
            description="Target tokens after which training ends, unless `steps` ends it earlier; "
            "0: no such limit. The schedule follows `steps` or `epochs`.",
            ge=0,
        ),
    ] = 0
    batch_size: Annotated[
        int, Meta(description="Samples per rank in one optimizer step.", ge=1, le=1_000_000)
    ] = 4
    micro_batch: Annotated[
        Count | Literal["auto"] | None,
        Meta(
            description="Samples per rank in one forward pass, with accumulated gradients; unset: "
            "the whole batch; auto: the most that fits in memory, reduced if it runs "
            "out."
        ),
    ] = None
    seed: Annotated[
        int, Meta(description="Seed of weights, data order and dropout.", ge=0, lt=2**31)
    ] = 42
    deterministic: Annotated[
        bool, Meta(description="Use only deterministic operations; slower.")
    ] = False
    compile: Annotated[
        bool | Literal["auto"],
        Meta(
            description="torch.compile each block; set data.buckets for few shapes; auto: on an "
            "NVIDIA GPU with Triton and a C compiler, unless deterministic."
        ),
    ] = "auto"
    loss: Annotated[
        Literal["whole", "chunked"],
        Meta(
            description="chunked: score the vocabulary for some target tokens at a time, and never "
            "hold all scores."
        ),
    ] = "whole"
    grad_clip: Annotated[
        float, Meta(description="Largest global gradient norm; 0 does not clip.", ge=0)
    ] = 1.0
    non_finite: Annotated[
        Literal["stop", "skip"],
        Meta(
            description="A gradient that is not finite ends the run before the update, or its step "
            "is skipped and counted."
        ),
    ] = "stop"
    timeout_s: Annotated[
        int,
        Meta(description="Seconds a collective may wait before the run fails.", ge=10, le=86400),
    ] = 600
    startup_timeout_s: Annotated[
        int,
        Meta(
            description="The same until the first step is complete: loading and compiling take "
            "longer.",
            ge=10,
            le=86400,
        ),
    ] = 1800
    model: Annotated[ModelSettings, Meta(description="Which T5.")] = msgspec.field(
        default_factory=ModelSettings
    )
    data: Annotated[DataSettings, Meta(description="What it reads and writes.")] = msgspec.field(
        default_factory=DataSettings
    )
    sharding: Annotated[
        ShardingSettings, Meta(description="How the model is spread over the ranks.")
    ] = msgspec.field(default_factory=ShardingSettings)
    precision: Annotated[PrecisionSettings, Meta(description="Types used while computing.")] = (
        msgspec.field(default_factory=PrecisionSettings)
    )
    optimizer: Annotated[OptimizerSettings, Meta(description="The update rule.")] = msgspec.field(
        default_factory=OptimizerSettings
    )
    checkpoint: Annotated[CheckpointSettings, Meta(description="Saving and resuming.")] = (
        msgspec.field(default_factory=CheckpointSettings)
    )
    evaluation: Annotated[EvaluationSettings, Meta(description="The held-out samples.")] = (
        msgspec.field(default_factory=EvaluationSettings)
    )
    metrics: Annotated[MetricsSettings, Meta(description="What is written down and shown.")] = (
        msgspec.field(default_factory=MetricsSettings)
    )
    debug: Annotated[DebugSettings, Meta(description="When a run is slow or stuck.")] = (
        msgspec.field(default_factory=DebugSettings)
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
    """The settings in `table` (a job's `training` key) with `KEY=VALUE` overrides on top.

    A key may be written with or without the leading `training.`. `origin` says in messages where
    the table came from. Raises ConfigError naming key, allowed values and nearest spelling.
    """
    layered = Layered()
    layered.overlay(table, origin)
    assignments = (item.lstrip().removeprefix("training.") for item in sets)
    layered.overlay(overrides(TrainingSettings, assignments), "--set")
    return build(TrainingSettings, layered, "training")
