"""Combinations of `[training]` settings that cannot work, told before a job is queued.

Each is one plain sentence with its remedy. Only settings and the number of ranks are looked at;
`fsdpkit.data.inputs` looks at the files they name.
"""

from collections.abc import Iterator

from fsdpkit.config.training.checkpoint import BEST_IS_HIGHEST, EVALUATED, LOGGED, ROUGE
from fsdpkit.config.training.data import DataSettings
from fsdpkit.config.training.optimizer import OptimizerSettings
from fsdpkit.config.training.settings import PrecisionSettings, TrainingSettings
from fsdpkit.config.training.sharding import ShardingSettings
from fsdpkit.config.training.torch_schedules import schedule_problems

BYTE_IDS = 259
"""Ids of ByT5's vocabulary that text can use: pad, eos, unk and the 256 bytes."""


def problems(
    settings: TrainingSettings, world_size: int | None, ranks_per_node: int | None = None
) -> list[str]:
    """Combinations that cannot work, one plain sentence each with the remedy; empty when all fit.
    `world_size` is the number of ranks (nodes × GPUs per node) and `ranks_per_node` its share on
    one node; None leaves out the checks that need it."""
    return [
        *_steps(settings),
        *_keep_best(settings),
        *_rouge(settings),
        *_groups_of_ranks(settings.sharding, world_size, ranks_per_node),
        *_units(settings.sharding),
        *_engine(settings),
        *_precision(settings.precision, settings.sharding),
        *_optimizer(settings.optimizer, settings.sharding),
        *schedule_problems(
            settings.optimizer.schedule,
            settings.optimizer.schedule_arguments,
            every=settings.optimizer.schedule_every,
        ),
        *_master(settings),
        *_data_problems(settings.data),
        *_model(settings),
    ]


def _steps(settings: TrainingSettings) -> Iterator[str]:
    micro, warmup = settings.micro_batch, settings.optimizer.warmup_steps
    steps, evaluation = settings.most_steps, settings.evaluation
    if isinstance(micro, int) and settings.batch_size % micro:
        yield (
            f"training.micro_batch ({micro}) does not divide training.batch_size "
            f"({settings.batch_size}): choose one of {_divisors(settings.batch_size)}."
        )
    if warmup is not None and 0 < steps < warmup:
        yield (
            f"training.optimizer.warmup_steps ({warmup}) is more than "
            f"training.steps ({steps}): the peak rate would never be reached."
        )
    if evaluation.patience and not evaluation.repeats:
        yield (
            "training.evaluation.patience waits for evaluations, but there is only the last one: "
            "set training.evaluation.every_steps or every_epochs."
        )
    if (evaluation.patience or evaluation.repeats) and not (
        evaluation.batches and settings.data.holds_out
    ):
        yield (
            "training.evaluation has nothing to evaluate: set training.data.held_out and "
            "training.evaluation.batches above 0."
        )
    if settings.startup_timeout_s < settings.timeout_s:
        yield (
            f"training.startup_timeout_s ({settings.startup_timeout_s}) is shorter than "
            f"training.timeout_s ({settings.timeout_s}): the start takes longer, raise it."
        )


def _keep_best(settings: TrainingSettings) -> Iterator[str]:
    """Whether anything is ever measured that the best could be told by."""
    saving, metric = settings.saving, settings.saving.keep_best
    if metric is None:
        return
    if metric not in (*EVALUATED, *LOGGED):
        import difflib  # only to explain a mistake

        near = difflib.get_close_matches(metric, [*EVALUATED, *LOGGED], 1)
        yield (
            f"training.checkpoint.keep_best: no metric is called {metric!r}."
            + (f" Did you mean {near[0]!r}?" if near else "")
            + f" Evaluations have {', '.join(EVALUATED)}, logged lines {', '.join(LOGGED)}."
        )
    elif metric in ROUGE and not settings.evaluation.rouge:
        yield (
            f'training.checkpoint.keep_best = "{metric}" needs the score: set '
            "training.evaluation.rouge = true."
        )
    elif saving.best_is and saving.highest_is_best != (metric in BEST_IS_HIGHEST):
        better = "higher" if metric in BEST_IS_HIGHEST else "lower"
        yield (
            f'training.checkpoint.keep_best = "{metric}" is better the {better} it is: leave '
            "training.checkpoint.best_is unset."
        )
    elif metric in EVALUATED:
        evaluation = settings.evaluation
        there_are = evaluation.repeats and evaluation.batches and settings.data.holds_out
        if settings.checkpoint.keep_best and not there_are:  # patience has said so
            yield (
                f'training.checkpoint.keep_best = "{metric}" needs evaluations while training: set '
                "training.evaluation.every_steps, training.evaluation.batches and "
                "training.data.held_out above 0."
            )
    elif not saving.every_steps or saving.every_steps % settings.metrics.every_steps:
        yield (
            f'training.checkpoint.keep_best = "{metric}" compares checkpoints whose step was '
            f"logged: set training.checkpoint.every_steps ({saving.every_steps}) to a multiple of "
            f"training.metrics.every_steps ({settings.metrics.every_steps})."
        )


def _rouge(settings: TrainingSettings) -> Iterator[str]:
    if not settings.evaluation.rouge:
        return
    what = "training.evaluation.rouge"
    if not (settings.evaluation.batches and settings.data.holds_out):
        yield (
            f"{what} has nothing to score: set training.data.held_out or held_out_source, and "
            "training.evaluation.batches above 0."
        )
    if settings.sharding.engine != "fsdp2":
        yield (
            f"{what} writes with the sharded model, which fsdp1 cannot: set "
            'training.sharding.engine = "fsdp2", or score afterwards with generate.py --rouge.'
        )
    if settings.data.task == "span-corruption":
        yield f'{what} compares texts, and span-corruption has none to compare: set task = "pairs".'
    if settings.data.packing:
        yield (
            f"{what} reads a text a row, but packing puts several in one: set "
            "training.data.packing = false, or score afterwards with generate.py --rouge."
        )
    if settings.model.attention == "flex":
        yield (
            f"{what}: FlexAttention cannot write token by token: set training.model.attention = "
            '"sdpa".'
        )


def _groups_of_ranks(
    sharding: ShardingSettings, world_size: int | None, ranks_per_node: int | None
) -> Iterator[str]:
    shard_size = sharding.shard_size or ranks_per_node
    if sharding.shard_size is not None and not sharding.hybrid:
        yield (
            f"training.sharding.shard_size is only for hybrid_shard, but the strategy is "
            f'{sharding.strategy}: remove it, or set strategy = "hybrid_shard".'
        )
    elif sharding.hybrid and shard_size and world_size and world_size % shard_size:
        yield (
            f"{sharding.strategy} in groups of {shard_size} does not divide {world_size} ranks: "
            f"set training.sharding.shard_size to one of {_divisors(world_size)}."
        )

    if sharding.reshard_to is None:
        return
    if sharding.engine != "fsdp2" or sharding.strategy != "full_shard":
        yield (
            "training.sharding.reshard_to belongs to fsdp2's full_shard, but this is "
            f"{sharding.engine} {sharding.strategy}: remove it."
        )
        return
    keep = ranks_per_node if sharding.reshard_to == "node" else sharding.reshard_to
    if keep and world_size and world_size % keep:
        yield (
            f"training.sharding.reshard_to ({keep} ranks) does not divide {world_size} ranks: "
            f"choose one of {_divisors(world_size)}."
        )


def _units(sharding: ShardingSettings) -> Iterator[str]:
    if sharding.wrap == "names" and not sharding.wrap_names:
        yield 'wrap = "names" needs training.sharding.wrap_names, such as ["encoder.block.*"].'
    if sharding.wrap != "names" and sharding.wrap_names:
        yield (
            f'training.sharding.wrap_names is only for wrap = "names", but wrap is '
            f"{sharding.wrap!r}: set it, or remove the names."
        )
    if sharding.blocks_per_unit > 1 and sharding.engine == "fsdp1":
        yield (
            'fsdp1 wraps one module at a time: use engine = "fsdp2", or leave '
            "training.sharding.blocks_per_unit at 1."
        )
    if sharding.prefetch > 1 and sharding.engine == "fsdp1":
        yield (
            'fsdp1 gathers one unit ahead at most: use engine = "fsdp2", or set '
            "training.sharding.prefetch to 0 or 1."
        )
    if sharding.checkpoint_every > 1 and sharding.activation_checkpointing == "none":
        yield (
            "training.sharding.checkpoint_every needs activation_checkpointing: set it to full, "
            "selective or offload."
        )


def _engine(settings: TrainingSettings) -> Iterator[str]:
    sharding, micro = settings.sharding, settings.micro_batch
    fsdp1 = sharding.engine == "fsdp1"
    if not fsdp1 and not sharding.limit_all_gathers:
        yield (
            "fsdp2 always limits its all-gathers: leave training.sharding.limit_all_gathers at "
            'true, or set engine = "fsdp1".'
        )
    if not fsdp1 and sharding.backward_prefetch != "pre":
        yield (
            "fsdp2 gathers the next unit before a unit's gradients are computed: leave "
            'training.sharding.backward_prefetch at "pre", or set engine = "fsdp1".'
        )
    if sharding.ignore and sharding.cpu_offload:
        yield (
            "training.sharding.ignore keeps parameters on the GPU, but cpu_offload updates shards "
            "in host memory, and one optimizer does not do both: remove one of them."
        )
    if sharding.cpu_offload and sharding.strategy == "no_shard":
        yield (
            "cpu_offload needs sharded weights, but the strategy is no_shard: choose full_shard, "
            "or set training.sharding.cpu_offload = false."
        )
    if fsdp1 and micro == "auto":
        yield (
            "fsdp1 cannot take up again a step that ran out of memory: give "
            'training.micro_batch a number, or set engine = "fsdp2".'
        )
    if fsdp1 and sharding.cpu_offload and micro not in (None, "auto", settings.batch_size):
        yield (
            'fsdp1 cannot accumulate gradients with cpu_offload: use engine = "fsdp2", or '
            "leave training.micro_batch unset."
        )


def _precision(precision: PrecisionSettings, sharding: ShardingSettings) -> Iterator[str]:
    if precision.buffer is not None and sharding.engine == "fsdp2":
        yield (
            "fsdp2 leaves buffers in the type they have: remove training.precision.buffer, or set "
            'engine = "fsdp1".'
        )
    if precision.reduce == "float16" and precision.param != "float16":
        yield (
            "training.precision.reduce float16 overflows without a loss scale, which only "
            'param = "float16" has: use float32 or bfloat16.'
        )
    if precision.output not in (None, "float32"):
        yield (
            f"training.precision.output {precision.output} would round the loss, which is what the "
            "T5 trainer's model gives: remove it."
        )
    if precision.param == "float16" and sharding.cpu_offload:
        yield (
            "float16 unscales gradients on the GPU, but cpu_offload keeps them in host memory: "
            'use param = "bfloat16", or no cpu_offload.'
        )


def _optimizer(optimizer: OptimizerSettings, sharding: ShardingSettings) -> Iterator[str]:
    whole_matrix = optimizer.name in ("adafactor", "adamw-scaled")
    if whole_matrix and sharding.engine == "fsdp1":
        yield (
            f"{optimizer.name} needs each matrix's own rows and mean, which fsdp1's flat shards do "
            'not show: use engine = "fsdp2", or adamw.'
        )
    if whole_matrix and optimizer.implementation == "fused":
        yield f"{optimizer.name} has no fused implementation: use auto, foreach or loop."
    if (optimizer.name, optimizer.implementation, sharding.engine) == ("sgd", "fused", "fsdp2"):
        yield "torch has no fused sgd for fsdp2's shards: use auto, foreach or loop."


def _master(settings: TrainingSettings) -> Iterator[str]:
    precision, optimizer = settings.precision, settings.optimizer
    if precision.master == "float32":
        if optimizer.rounding is not None:
            yield (
                "training.optimizer.rounding is for bfloat16 weights: set "
                'training.precision.master = "bfloat16", or remove it.'
            )
        return
    if optimizer.rounding is None:
        yield (
            'training.precision.master = "bfloat16" rounds small updates away: set '
            'training.optimizer.rounding = "stochastic", or "compensated".'
        )
    if optimizer.name != "adamw":
        yield (
            f"{optimizer.name} has no rounding for bfloat16 weights: use adamw, or "
            'training.precision.master = "float32".'
        )
    if optimizer.implementation not in ("auto", "loop"):
        yield (
            "training.optimizer.rounding updates one parameter at a time: set "
            'training.optimizer.implementation to "auto" or "loop".'
        )
    if precision.param == "float16":
        yield (
            "float16 has another range than bfloat16 weights: use "
            'training.precision.param = "bfloat16", or master = "float32".'
        )


def _model(settings: TrainingSettings) -> Iterator[str]:
    model, data = settings.model, settings.data
    if model.pretrained and model.config:
        yield (
            "training.model.pretrained brings its own config.json: remove training.model.config, "
            "or pretrained."
        )
    elif not (model.pretrained or model.config) and data.tokenizer in (None, "bytes"):
        # The files of the other cases are looked at where files are.
        vocab_size = model.dimensions()["vocab_size"]
        if vocab_size < BYTE_IDS and data.source.endswith((*_FILES, "python-docs")):
            yield (
                f"training.model.vocab_size is {vocab_size}, but bytes need {BYTE_IDS} ids: raise "
                "it (ByT5 has 384)."
            )
    if model.attention == "flex":
        dropout = model.dropout_rate
        if dropout is None and not (model.pretrained or model.config):
            dropout = model.dimensions()["dropout_rate"]
        if dropout:
            yield (
                "FlexAttention has no dropout: set training.model.dropout_rate = 0, or "
                'attention = "sdpa".'
            )
        if settings.deterministic:
            yield (
                "FlexAttention adds up bias gradients in any order, which training.deterministic "
                'forbids: set attention = "sdpa".'
            )


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)


_FILES = (".jsonl", ".csv", ".parquet", ".txt")


def _data_problems(data: DataSettings) -> Iterator[str]:
    """One plain sentence for each, with its remedy; no file is looked at."""
    yield from _source(data)
    yield from _held_out_source(data)
    yield from _source_prefix(data)


def _source(data: DataSettings) -> Iterator[str]:
    suffix = data.source.rpartition("/")[2].rpartition(".")
    is_file = bool(suffix[1])
    if data.source == "python-docs":
        if data.task == "pairs":
            yield (
                'task "pairs" needs a file: set training.data.source to a .jsonl, .csv or .parquet '
                'path, or training.data.task to "docstring" or "span-corruption".'
            )
    elif is_file and not data.source.endswith(_FILES):
        yield (
            f'training.data.source is {data.source!r}: it must be "python-docs", end in '
            f"{', '.join(_FILES)}, or be a directory that `fsdpkit data prepare` made."
        )
    elif data.task == "docstring":
        yield (
            'task "docstring" reads Python\'s own sources only: for a file set '
            'training.data.task to "pairs" (or "span-corruption" on its source field).'
        )
    elif data.task == "pairs" and data.source.endswith(".txt"):
        yield (
            f"training.data.source {data.source!r} is plain text, which has no pairs: set "
            'training.data.task = "span-corruption".'
        )
    if data.task == "pairs" and data.source_field == data.target_field:
        yield (
            f"training.data.source_field and target_field are both {data.source_field!r}: the "
            "model would learn to copy; name two fields."
        )
    if data.packing and data.buckets not in ("auto", 0, 1):
        yield (
            "training.data.packing fills rows of one size: leave training.data.buckets at 0 or 1."
        )


def _held_out_source(data: DataSettings) -> Iterator[str]:
    source = data.held_out_source
    if source is None:
        return
    if source == data.source:
        yield (
            f"training.data.held_out_source is {source!r}, what is trained on: name other data, or "
            "leave it unset and set training.data.held_out."
        )
    elif source == "python-docs" or data.task == "docstring":
        yield (
            "training.data.held_out_source is a file or prepared directory beside one: leave it "
            "unset for Python's own documentation, of which training.data.held_out keeps a share."
        )
    elif data.task == "pairs" and source.endswith(".txt"):
        yield (
            f"training.data.held_out_source {source!r} is plain text, which has no pairs: name a "
            ".jsonl, .csv or .parquet file."
        )
    elif "." in source.rpartition("/")[2] and not source.endswith(_FILES):
        yield (
            f"training.data.held_out_source is {source!r}: it must end in {', '.join(_FILES)}, or "
            "be a directory that `fsdpkit data prepare` made."
        )


def _source_prefix(data: DataSettings) -> Iterator[str]:
    if not data.source_prefix:
        return
    if data.task == "span-corruption":
        yield (
            "training.data.source_prefix tells T5 a task with source and target; span-corruption "
            "has none: leave it unset."
        )
    taken = len(data.source_prefix.encode(errors="replace"))
    # A prepared directory has the tokenizer it was made with.
    in_bytes = data.tokenizer == "bytes" or (
        data.tokenizer is None and data.source.endswith((*_FILES, "python-docs"))
    )
    if in_bytes and taken >= data.source_length - 1:
        yield (
            f"training.data.source_prefix takes {taken} bytes, and training.data.source_length is "
            f"{data.source_length}: nothing of a text is left; shorten the one or raise the other."
        )
