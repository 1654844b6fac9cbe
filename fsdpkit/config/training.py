"""What the reference T5 trainer can be told: the `[training]` tables of a job file, typed.

One sentence per field, here and nowhere else: command line help, the JSON Schema and the
documentation are made from it. The module never imports torch, so that a login node can validate a
job in milliseconds; what only a rank can know (is there a GPU, how many samples are there) is
checked by the trainer itself.

Field names and sizes of the model are those of a Hugging Face T5 `config.json`.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fsdpkit.config.loading import Layered, build, overrides

_V1_0 = {"vocab_size": 32128, "feed_forward_proj": "relu", "tie_word_embeddings": True}
_V1_1 = {"vocab_size": 32128, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_BYT5 = {"vocab_size": 384, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def _size(
    family: Mapping[str, Any],
    d_model: int,
    d_ff: int,
    d_kv: int,
    heads: int,
    layers: tuple[int, int],
) -> dict[str, Any]:
    return {
        **family,
        "d_model": d_model,
        "d_ff": d_ff,
        "d_kv": d_kv,
        "num_heads": heads,
        "num_layers": layers[0],
        "num_decoder_layers": layers[1],
        "dropout_rate": 0.1,
    }


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny-byt5": {
        **_size(_BYT5, 128, 256, 32, 4, (2, 2)),
        "dropout_rate": 0.0,
        "head_init_std": 128**-0.5,  # ours: starts at the loss of guessing, ln(384)
    },
    "t5-small": _size(_V1_0, 512, 2048, 64, 8, (6, 6)),
    "t5-base": _size(_V1_0, 768, 3072, 64, 12, (12, 12)),
    "t5-large": _size(_V1_0, 1024, 4096, 64, 16, (24, 24)),
    "t5-3b": _size(_V1_0, 1024, 16384, 128, 32, (24, 24)),
    "t5-11b": _size(_V1_0, 1024, 65536, 128, 128, (24, 24)),
    "t5-v1.1-small": _size(_V1_1, 512, 1024, 64, 6, (8, 8)),
    "t5-v1.1-base": _size(_V1_1, 768, 2048, 64, 12, (12, 12)),
    "t5-v1.1-large": _size(_V1_1, 1024, 2816, 64, 16, (24, 24)),
    "t5-v1.1-xl": _size(_V1_1, 2048, 5120, 64, 32, (24, 24)),
    "t5-v1.1-xxl": _size(_V1_1, 4096, 10240, 64, 64, (24, 24)),
    "byt5-small": _size(_BYT5, 1472, 3584, 64, 6, (12, 4)),
    "byt5-base": _size(_BYT5, 1536, 3968, 64, 12, (18, 6)),
    "byt5-large": _size(_BYT5, 1536, 3840, 64, 16, (36, 12)),
    "byt5-xl": _size(_BYT5, 2560, 6720, 64, 32, (36, 12)),
    "byt5-xxl": _size(_BYT5, 4672, 12352, 64, 64, (36, 12)),
}
"""The published sizes (T5: Raffel et al. 2020, v1.1 and ByT5: their Hugging Face `config.json`)
and `tiny-byt5`, which a laptop trains in a minute."""

PresetName = Literal[
    "tiny-byt5",
    "t5-small",
    "t5-base",
    "t5-large",
    "t5-3b",
    "t5-11b",
    "t5-v1.1-small",
    "t5-v1.1-base",
    "t5-v1.1-large",
    "t5-v1.1-xl",
    "t5-v1.1-xxl",
    "byt5-small",
    "byt5-base",
    "byt5-large",
    "byt5-xl",
    "byt5-xxl",
]


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.model]`: which T5; a dimension given here replaces the preset's."""

    preset: Annotated[
        PresetName, Meta(description="Published size to start from, or the demo's.")
    ] = "tiny-byt5"
    d_model: Annotated[
        Annotated[int, Meta(ge=1, le=65536)] | None,
        Meta(description="Width of the residual stream; unset takes the preset's."),
    ] = None
    d_ff: Annotated[
        Annotated[int, Meta(ge=1, le=1048576)] | None,
        Meta(description="Inner width of the feed-forward layers; unset takes the preset's."),
    ] = None
    d_kv: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="Width of one attention head; unset takes the preset's."),
    ] = None
    num_heads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="Attention heads in each layer; unset takes the preset's."),
    ] = None
    num_layers: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(description="Blocks in the encoder; unset takes the preset's."),
    ] = None
    num_decoder_layers: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(description="Blocks in the decoder; unset takes the preset's."),
    ] = None
    vocab_size: Annotated[
        Annotated[int, Meta(ge=2, le=10_000_000)] | None,
        Meta(description="Rows of the embedding table; unset takes the preset's."),
    ] = None
    dropout_rate: Annotated[
        Annotated[float, Meta(ge=0, lt=1)] | None,
        Meta(description="Dropout probability everywhere in the model; unset takes the preset's."),
    ] = None

    def dimensions(self) -> dict[str, Any]:
        """The preset with the overrides applied: arguments of the example's T5Config."""
        overrides = {k: v for k, v in msgspec.structs.asdict(self).items() if v is not None}
        del overrides["preset"]
        return {**PRESETS[self.preset], **overrides}


class DataSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.data]`: what the model reads and what it should write."""

    source: Annotated[
        str,
        Meta(
            description='"python-docs" (Python\'s own documentation, no download), '
            "or the path of a .jsonl or .csv file.",
            min_length=1,
            max_length=4096,
        ),
    ] = "python-docs"
    task: Annotated[
        Literal["docstring", "span-corruption", "pairs"],
        Meta(
            description="docstring: write a function's docstring from its code; span-corruption: "
            "fill gaps in text; pairs: source and target fields of the file."
        ),
    ] = "docstring"
    source_field: Annotated[
        str, Meta(description="Field of the file that holds the source text.", min_length=1)
    ] = "source"
    target_field: Annotated[
        str, Meta(description="Field of the file that holds the target text.", min_length=1)
    ] = "target"
    source_length: Annotated[
        int, Meta(description="Longest source in tokens; longer ones are cut.", ge=2, le=1048576)
    ] = 96
    target_length: Annotated[
        int, Meta(description="Longest target in tokens; longer ones are cut.", ge=2, le=1048576)
    ] = 32
    held_out: Annotated[
        float,
        Meta(
            description="Share of the samples kept for evaluation, never trained on.", ge=0, le=0.5
        ),
    ] = 0.02
    workers: Annotated[
        int,
        Meta(description="Loader processes per rank; 0 loads in the rank itself.", ge=0, le=64),
    ] = 0


class ShardingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.sharding]`: how the model is spread over the ranks."""

    engine: Annotated[
        Literal["fsdp2", "fsdp1"],
        Meta(description="fsdp2: fully_shard; fsdp1: the older FullyShardedDataParallel class."),
    ] = "fsdp2"
    strategy: Annotated[
        Literal["full_shard", "shard_grad_op", "hybrid_shard", "no_shard"],
        Meta(
            description="full_shard saves most memory; shard_grad_op keeps weights gathered until "
            "backward; hybrid_shard shards in a group and replicates across; no_shard is like DDP."
        ),
    ] = "full_shard"
    shard_size: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Ranks in one hybrid_shard group; unset takes the ranks of one node."),
    ] = None
    limit_all_gathers: Annotated[
        bool,
        Meta(
            description="Keep at most two units gathered ahead of the computation; "
            "fsdp2 always does."
        ),
    ] = True
    activation_checkpointing: Annotated[
        Literal["none", "full"],
        Meta(description="full: keep only each block's input and recompute the rest in backward."),
    ] = "none"
    cpu_offload: Annotated[
        bool,
        Meta(
            description="Keep shards of weights, gradients and optimizer in host memory; "
            "saves most, and is slow."
        ),
    ] = False


Dtype = Literal["auto", "float32", "bfloat16"]


class PrecisionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.precision]`: shards stay float32; these are the types used while computing."""

    param: Annotated[
        Dtype,
        Meta(description="Type of gathered weights; auto is bfloat16 on GPUs, float32 on CPUs."),
    ] = "auto"
    reduce: Annotated[
        Literal["float32", "bfloat16"],
        Meta(description="Type in which gradients are summed over ranks."),
    ] = "float32"


class OptimizerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.optimizer]`: the update rule and its learning rate over time."""

    name: Annotated[Literal["adamw", "sgd"], Meta(description="Update rule.")] = "adamw"
    lr: Annotated[float, Meta(description="Peak learning rate.", gt=0, le=100)] = 4e-3
    warmup_steps: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="Steps over which the rate rises linearly from zero; "
            "unset takes a tenth of the run, at most 1000."
        ),
    ] = None
    schedule: Annotated[
        Literal["constant", "linear", "cosine", "inverse-sqrt"],
        Meta(description="Learning rate after warm-up; linear and cosine end at min_lr_ratio."),
    ] = "cosine"
    min_lr_ratio: Annotated[
        float, Meta(description="Where linear and cosine end, as a share of lr.", ge=0, le=1)
    ] = 0.1
    weight_decay: Annotated[
        float, Meta(description="Decoupled weight decay on matrices; norms have none.", ge=0, le=10)
    ] = 0.0
    beta1: Annotated[
        float, Meta(description="Decay of AdamW's mean; momentum of sgd.", ge=0, lt=1)
    ] = 0.9
    beta2: Annotated[float, Meta(description="Decay of AdamW's squared mean.", ge=0, lt=1)] = 0.98
    eps: Annotated[float, Meta(description="AdamW's guard against division by zero.", gt=0)] = 1e-8


class CheckpointSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.checkpoint]`: when to save, what to keep, whether to go on from it."""

    every_steps: Annotated[
        int,
        Meta(
            description="Steps between checkpoints; 0 saves only at the end or when stopped.", ge=0
        ),
    ] = 50
    keep_last: Annotated[int, Meta(description="Newest checkpoints to keep.", ge=1)] = 2
    at_end: Annotated[bool, Meta(description="Also save after the last step.")] = True
    resume: Annotated[
        Literal["auto", "never"],
        Meta(description="auto: go on from the run's newest complete checkpoint, if there is one."),
    ] = "auto"
    start: Annotated[
        str | None,
        Meta(description="An earlier run's directory to go on from, unless this run has begun."),
    ] = None


class TrainingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training]`: one run of the reference T5 trainer."""

    steps: Annotated[int, Meta(description="Optimizer steps in all.", ge=1, le=10**9)] = 100
    batch_size: Annotated[
        int, Meta(description="Samples per rank in one forward pass.", ge=1, le=65536)
    ] = 4
    accumulate: Annotated[
        int, Meta(description="Forward passes summed into one optimizer step.", ge=1, le=65536)
    ] = 1
    seed: Annotated[
        int, Meta(description="Seed of weights, data order and dropout.", ge=0, lt=2**31)
    ] = 42
    log_every: Annotated[int, Meta(description="Steps between two lines of metrics.", ge=1)] = 5
    eval_batches: Annotated[
        int,
        Meta(
            description="Most held-out batches per rank for the final evaluation; 0 skips it.", ge=0
        ),
    ] = 8
    grad_clip: Annotated[
        float, Meta(description="Largest global gradient norm; 0 does not clip.", ge=0)
    ] = 1.0
    timeout_s: Annotated[
        int,
        Meta(description="Seconds a collective may wait before the run fails.", ge=10, le=86400),
    ] = 600
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


BYTE_IDS = 259
"""Ids of ByT5's vocabulary that text can use: pad, eos, unk and the 256 bytes."""


def problems(
    settings: TrainingSettings, world_size: int | None, ranks_per_node: int | None = None
) -> list[str]:
    """Combinations that cannot work, one plain sentence each with the remedy; empty when all fit.

    `world_size` is the number of ranks (nodes × GPUs per node) and `ranks_per_node` its share on
    one node; None leaves out the checks that need it.
    """
    sharding, data, optimizer = settings.sharding, settings.data, settings.optimizer
    found: list[str] = []

    hybrid = sharding.strategy == "hybrid_shard"
    shard_size = sharding.shard_size or ranks_per_node
    if sharding.shard_size is not None and not hybrid:
        found.append(
            f"training.sharding.shard_size is only for hybrid_shard, but the strategy is "
            f'{sharding.strategy}: remove it, or set strategy = "hybrid_shard".'
        )
    elif hybrid and shard_size and world_size and world_size % shard_size:
        found.append(
            f"hybrid_shard in groups of {shard_size} does not divide {world_size} ranks: set "
            f"training.sharding.shard_size to one of {_divisors(world_size)}."
        )
    if sharding.engine == "fsdp2" and not sharding.limit_all_gathers:
        found.append(
            "fsdp2 always limits its all-gathers: leave training.sharding.limit_all_gathers at "
            'true, or set engine = "fsdp1".'
        )
    if sharding.cpu_offload and sharding.strategy == "no_shard":
        found.append(
            "cpu_offload needs sharded weights, but the strategy is no_shard: choose full_shard, "
            "or set training.sharding.cpu_offload = false."
        )
    if sharding.cpu_offload and sharding.engine == "fsdp1" and settings.accumulate > 1:
        found.append(
            'fsdp1 cannot accumulate gradients with cpu_offload: use engine = "fsdp2", or '
            "raise batch_size instead of accumulate."
        )

    if data.source == "python-docs":
        if data.task == "pairs":
            found.append(
                'task "pairs" needs a file: set training.data.source to a .jsonl or .csv path, or '
                'training.data.task to "docstring" or "span-corruption".'
            )
    else:
        if not data.source.endswith((".jsonl", ".csv")):
            found.append(
                f'training.data.source is {data.source!r}: it must be "python-docs" or end in '
                ".jsonl or .csv."
            )
        if data.task == "docstring":
            found.append(
                'task "docstring" reads Python\'s own sources only: for a file set '
                'training.data.task to "pairs" (or "span-corruption" on its source field).'
            )
    if data.task == "pairs" and data.source_field == data.target_field:
        found.append(
            f"training.data.source_field and target_field are both {data.source_field!r}: the "
            "model would learn to copy; name two fields."
        )
    vocab_size = settings.model.dimensions()["vocab_size"]
    if vocab_size < BYTE_IDS:
        found.append(
            f"training.model.vocab_size is {vocab_size}, but bytes need {BYTE_IDS} ids: raise it "
            "(ByT5 has 384)."
        )
    if optimizer.warmup_steps is not None and optimizer.warmup_steps > settings.steps:
        found.append(
            f"training.optimizer.warmup_steps ({optimizer.warmup_steps}) is more than "
            f"training.steps ({settings.steps}): the peak rate would never be reached."
        )
    return found


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)


def load_settings(
    table: Mapping[str, Any], sets: Sequence[str] = (), *, origin: str = "[training]"
) -> TrainingSettings:
    """The settings in `table` (a job's `training` key) with `KEY=VALUE` overrides on top.

    A key may be written with or without the leading `training.`. `origin` says in messages where
    the table came from. Raises ConfigError naming key, allowed values and nearest spelling.
    """
    layered = Layered()
    layered.overlay(table, origin)
    assignments = (item.strip().removeprefix("training.") for item in sets)
    layered.overlay(overrides(TrainingSettings, assignments), "--set")
    return build(TrainingSettings, layered, "training")
