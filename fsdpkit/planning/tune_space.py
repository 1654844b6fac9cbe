"""What `--tune` may choose from, and what it knows of two choices without asking anybody."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import product
from typing import Any

import msgspec

from fsdpkit.config.array_tasks import text
from fsdpkit.config.job import Resources
from fsdpkit.config.placement import place_to_plan
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.training import TrainingSettings
from fsdpkit.config.training.problems import problems
from fsdpkit.errors import UsageError

STRATEGIES = ("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "no_shard")
CHECKPOINTING = ("none", "selective", "full")

_HUNGRIER = {
    "training.sharding.engine": ("fsdp2", "fsdp1"),
    "training.sharding.activation_checkpointing": ("full", "selective", "none"),
    "training.sharding.cpu_offload": (True, False),
    "training.loss": ("chunked", "whole"),
}
"""Values that take more memory the later they come, whatever else is chosen."""
_LESS_THAN = {
    "full_shard": STRATEGIES,
    "shard_grad_op": ("shard_grad_op", "hybrid_shard_zero2", "no_shard"),
    "hybrid_shard": ("hybrid_shard", "hybrid_shard_zero2", "no_shard"),
    "hybrid_shard_zero2": ("hybrid_shard_zero2", "no_shard"),
    "no_shard": ("no_shard",),
}
"""Which strategies take as much memory as this one, or more."""

STRATEGY = "training.sharding.strategy"
RESHARD = "training.sharding.reshard_to"
SHARDING = (
    STRATEGY,
    RESHARD,
    "training.sharding.engine",
    "training.sharding.activation_checkpointing",
    "training.sharding.cpu_offload",
)
LOSS = "training.loss"
MICRO = "training.micro_batch"
BATCH = "training.batch_size"
ALL = frozenset({*SHARDING, LOSS, MICRO, BATCH})
"""What the T5 trainer can be told."""

Values = Mapping[str, Any]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the space. `values` are dotted keys of a job file."""

    nodes: int
    values: dict[str, Any]
    settings: TrainingSettings

    @property
    def micro(self) -> int:
        return int(self.values[MICRO])

    @property
    def combination(self) -> tuple[Any, ...]:
        """All but the micro-batch, over which memory is close to linear."""
        rest = sorted((k, v) for k, v in self.values.items() if k not in (MICRO, BATCH))
        return (self.nodes, *(value for _, value in rest))


def candidates(
    base: TrainingSettings,
    nodes: Sequence[int],
    gpus: int,
    base_nodes: int,
    keys: Set[str] = ALL,
) -> Iterator[Candidate]:
    """Every point that `submit` accepts; `keys`: what may be chosen. Samples of one optimizer step
    over all ranks stay those of `base` on `base_nodes`, for another number of them would be another
    training; of a script whose batch nobody can set, those of a rank stay."""
    whole_batch = base.batch_size * base_nodes * gpus
    for count in nodes:
        ranks = count * gpus
        if BATCH not in keys:
            whole_batch = base.batch_size * ranks
        if whole_batch % ranks:
            continue
        batch = whole_batch // ranks
        for values in _values(base, count, batch, keys):
            settings = _apply(base, values)
            if not problems(settings, ranks, gpus):
                yield Candidate(nodes=count, values=values, settings=settings)


def _values(
    base: TrainingSettings, nodes: int, batch: int, keys: Set[str]
) -> Iterator[dict[str, Any]]:
    # What --set cannot take back stays as it was given.
    given = base.sharding.reshard_to
    reshards = (given,) if given else (None, "node") if nodes > 1 else (None,)
    dimensions: dict[str, Sequence[Any]] = {
        STRATEGY: STRATEGIES if nodes > 1 else ("full_shard", "shard_grad_op", "no_shard"),
        RESHARD: reshards,
        "training.sharding.engine": ("fsdp2", "fsdp1"),
        "training.sharding.activation_checkpointing": CHECKPOINTING,
        "training.sharding.cpu_offload": (False, True),
        LOSS: ("whole", "chunked"),
        MICRO: [n for n in range(batch, 0, -1) if batch % n == 0],
    }
    for key in dimensions.keys() - keys:
        now = batch if key == MICRO else _get(base, key)
        dimensions[key] = (now,)
    if MICRO not in keys and isinstance(base.micro_batch, int):
        dimensions[MICRO] = (base.micro_batch,)
    for values in product(*dimensions.values()):
        yield {**dict(zip(dimensions, values, strict=True)), BATCH: batch}


def _apply(base: TrainingSettings, values: Values) -> TrainingSettings:
    top = {k.removeprefix("training."): v for k, v in values.items() if k.count(".") == 1}
    sharding = {k.rpartition(".")[2]: v for k, v in values.items() if "sharding." in k}
    return msgspec.structs.replace(
        base, **top, sharding=msgspec.structs.replace(base.sharding, **sharding)
    )


def nodes_that_fit(
    resources: Resources, site: LoadedSite, wanted: Iterable[int]
) -> tuple[list[int], dict[int, str]]:
    """Of the wanted numbers of nodes those that the site has a place for; why not the others."""
    fit: list[int] = []
    refused: dict[int, str] = {}
    for nodes in wanted:
        try:
            place_to_plan(msgspec.structs.replace(resources, nodes=nodes), site)
            fit.append(nodes)
        except UsageError as error:
            refused[nodes] = str(error)
    return fit, refused


def takes_no_less(one: Candidate, other: Candidate) -> bool:
    """Whether `one` surely needs at least the memory of `other`: then it does not fit either."""
    if one.nodes != other.nodes or one.micro < other.micro:
        return False
    if one.values[STRATEGY] not in _LESS_THAN[other.values[STRATEGY]]:
        return False
    if one.values[RESHARD] != other.values[RESHARD] and one.values[RESHARD] is None:
        return False
    return all(
        _hungry(key, one) >= _hungry(key, other)
        if {one.values[key], other.values[key]} <= {*order}
        else one.values[key] == other.values[key]
        for key, order in _HUNGRIER.items()
    )


def hunger(one: Candidate) -> int:
    """A rank among candidates that are compared by `takes_no_less`: the hungrier, the higher."""
    return one.micro + sum(_hungry(key, one) for key in _HUNGRIER)


def _hungry(key: str, one: Candidate) -> int:
    """Where its value stands in the order; what the job alone can have stands in none."""
    order, value = _HUNGRIER[key], one.values[key]
    return order.index(value) if value in order else 0


def sets_of(candidate: Candidate, base: TrainingSettings, keys: Set[str]) -> tuple[str, ...]:
    """`--set` values that make a job's settings the candidate's: what differs from `base`, of the
    keys that may be chosen."""
    given = {key: _get(base, key) for key in candidate.values}
    # A dimension left out of a batch is the whole batch.
    if given[MICRO] is None:
        given[MICRO] = candidate.values[BATCH]
    return tuple(
        f"{key}={text(value)}"
        for key, value in candidate.values.items()
        if key in keys and value != given[key] and value is not None
    )


def _get(settings: TrainingSettings, key: str) -> Any:
    found: Any = settings
    for name in key.split(".")[1:]:
        found = getattr(found, name)
    return found
