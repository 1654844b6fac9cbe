"""What `--tune` goes by for a model of one's own: its layers, as they were recorded. No torch.

Two recordings of the step, of one sample and of several under full sharding, say what each FSDP
unit holds, computes and moves, and how that grows with the samples; a third, which units are
checkpointed, and what of them selective checkpointing computes again. From these layers a step
under any other setting is put together as T5's is from counted ones (`speed_layers.py`): an
estimate, by which candidates are ordered. Whether one fits is asked of a recording of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from fsdpkit.config.script_source import read_source, reads_settings, settings_named, syntax_of
from fsdpkit.config.training import TrainingSettings
from fsdpkit.errors import FsdpkitError, UsageError
from fsdpkit.planning.speed_layers import UnitPart, UnitWork, work_of
from fsdpkit.planning.speed_settings import micro_batch, sharded_of
from fsdpkit.planning.speed_tape import work_of as work_on_tape
from fsdpkit.planning.tape import Tape
from fsdpkit.planning.tune_space import BATCH, MICRO, SHARDING
from fsdpkit.planning.work import Computation, ComputationKind, StepWork

RECORDED = {"strategy": "full_shard", "reshard_to": None, "engine": "fsdp2", "cpu_offload": False}
_HEAD = "(after the last unit)"


@dataclass(frozen=True)
class Recorded:
    """A step of one sample and one of several, put down as layers."""

    one: tuple[UnitWork, ...]
    several: tuple[UnitWork, ...]
    samples: int
    """Of `several`."""
    tokens: int
    """Of one sample."""
    parameters: int

    def work(self, settings: TrainingSettings, nodes: int, gpus: int) -> StepWork:
        """One optimizer step of one rank under these settings."""
        rows = micro_batch(settings)
        share = (rows - 1) / (self.samples - 1)
        pairs = zip(self.one, self.several, strict=True)
        layers = tuple(_between(one, several, share) for one, several in pairs)
        sharded = sharded_of(settings, nodes, gpus)
        samples = rows * sharded.accumulation
        forward = sum(part.flops for layer in layers for part in layer.forward)
        return work_of(
            layers,
            sharded,
            tokens=self.tokens * samples,
            samples=samples,
            model_flops=3 * forward * sharded.accumulation,
        )


def to_record(
    settings: TrainingSettings, checkpointing: Literal["none", "selective"] = "none"
) -> TrainingSettings:
    """The settings under which every unit gathers its weights, and nothing is computed twice but
    what `checkpointing` makes again."""
    sharding = replace(settings.sharding, activation_checkpointing=checkpointing, **RECORDED)
    return replace(settings, sharding=sharding, micro_batch=None)


def recorded(
    one: Tape, several: Tape, selective: Tape | None, ranks: int, ranks_per_node: int
) -> Recorded:
    """From tapes of `to_record`'s settings with one sample, with more, and with one under selective
    checkpointing, if the model takes that. Raises UsageError for a step that was not followed to
    its end."""
    for tape in (one, several):
        if tape.lacking:
            raise UsageError(
                "--tune compares whole steps, and not all of this one could be followed: "
                + tape.lacking[0]
            )
    first, second = (_layers(tape, ranks, ranks_per_node) for tape in (one, several))
    if _shape(first) != _shape(second):
        raise UsageError(
            "--tune compares steps by the layers that compute them, and this model computes other "
            f"layers for {several.samples} samples than for one"
        )
    if selective is not None and not selective.lacking:
        again = _made_again(selective, ranks, ranks_per_node)
        first, second = _checkpointed(first, first, again), _checkpointed(second, first, again)
    return Recorded(first, second, several.samples, one.tokens, one.parameters)


_Again = dict[str, Counter[tuple[ComputationKind, int]]]
"""By unit, its computations in recomputation: how often each of a kind and a number of products."""


def _made_again(selective: Tape, ranks: int, ranks_per_node: int) -> _Again:
    found: _Again = {}
    for one in _work(selective, ranks, ranks_per_node).computations():
        if one.phase == "recompute":
            found.setdefault(one.unit, Counter())[one.kind, one.flops] += 1
    return found


def _checkpointed(
    layers: Sequence[UnitWork], recorded: Sequence[UnitWork], again: _Again
) -> tuple[UnitWork, ...]:
    """`layers` with what is checkpointed of them. `recorded`: the same with the samples of `again`.
    Of products of one size it does not matter which are made again, as all take the same time."""
    found = []
    for layer, same in zip(layers, recorded, strict=True):
        left = Counter(again.get(layer.unit))
        kept = []
        for number, part in enumerate(same.forward):
            if part.kind == "other":
                continue
            if left[part.kind, part.flops]:
                left[part.kind, part.flops] -= 1
            else:
                kept.append(number)
        found.append(replace(layer, block=layer.unit in again, kept=tuple(kept)))
    return tuple(found)


def _shape(layers: Sequence[UnitWork]) -> list[tuple[str, list[ComputationKind]]]:
    return [(layer.unit, [part.kind for part in layer.forward]) for layer in layers]


def _work(tape: Tape, ranks: int, ranks_per_node: int) -> StepWork:
    return work_on_tape(
        tape,
        ranks=ranks,
        ranks_per_node=ranks_per_node,
        tokens=tape.tokens,
        samples=tape.samples,
        parameters=tape.parameters,
    )


def _layers(tape: Tape, ranks: int, ranks_per_node: int) -> tuple[UnitWork, ...]:
    """The units in the order in which forward gathers them, with what forward does in each."""
    work = _work(tape, ranks, ranks_per_node)
    gathered: dict[str, int] = {}
    for each in work.collectives():
        if each.kind == "all_gather" and each.phase == "forward" and each.unit is not None:
            gathered.setdefault(each.unit, each.bytes)
    again = {
        each.unit
        for each in work.collectives()
        if each.kind == "all_gather" and each.phase == "backward"
    }
    if not gathered:
        raise UsageError("--tune: no unit of the model was seen to gather its weights")
    whole = sum(gathered.values())
    forward = [one for one in work.computations() if one.phase == "forward"]
    inner = [n for n, one in enumerate(forward) if one.unit]
    last = max(inner, default=len(forward))
    layers = []
    for unit, size in gathered.items():
        own = [one for n, one in enumerate(forward) if one.unit == unit and (unit or n < last)]
        parts = _parts(own)
        layers.append(
            UnitWork(
                unit=unit,
                # Shares of the whole: what is sent of a parameter has the width of its type.
                parameters=round(tape.parameters * size / whole),
                forward=parts,
                block=bool(unit) and any(part.kind == "matmul" for part in parts),
                stays=not unit or unit not in again,
            )
        )
    if tail := [one for n, one in enumerate(forward) if not one.unit and n > last]:
        layers.append(
            UnitWork(unit=_HEAD, parameters=0, forward=_parts(tail), block=False, stays=True)
        )
    return tuple(layers)


def _parts(computations: Sequence[Computation]) -> tuple[UnitPart, ...]:
    """Each product by itself, since checkpointing makes them again one by one; of the rest,
    neighbours together."""
    found: list[UnitPart] = []
    for one in computations:
        part = UnitPart(one.kind, one.flops, one.bytes, one.kernels)
        if found and found[-1].kind == part.kind == "other":
            before = found.pop()
            size, kernels = before.bytes + part.bytes, before.kernels + part.kernels
            part = UnitPart("other", 0, size, kernels)
        found.append(part)
    return tuple(found)


def _between(one: UnitWork, several: UnitWork, share: float) -> UnitWork:
    """A layer on the line through two that were recorded; 0: the first, 1: the second."""

    def at(first: int, second: int) -> int:
        return max(0, round(first + (second - first) * share))

    parts = [
        UnitPart(a.kind, at(a.flops, b.flops), at(a.bytes, b.bytes), a.kernels)
        for a, b in zip(one.forward, several.forward, strict=True)
    ]
    return replace(one, forward=tuple(parts))


@dataclass(frozen=True)
class Allowed:
    """Which settings a script takes, and how it is told them."""

    keys: frozenset[str]
    reads: bool
    """Whether it reads [training], so that `--set` reaches it; else its source has them."""
    name: str
    """Of the script."""


def allowed_by(entry: Path) -> Allowed:
    """Of what could be chosen, the settings that a script has a use for: those that its source, or
    that of a module beside it, names; of one that reads no [training], how it is sharded."""
    try:
        source = read_source(entry)
        tree = None if source is None else syntax_of(source)
        if tree is not None and not reads_settings(tree, entry.parent):
            return Allowed(frozenset(SHARDING), reads=False, name=entry.name)
        named = None if tree is None else settings_named(tree, entry.parent)
    except OSError as error:
        raise FsdpkitError(f"{entry} cannot be read: {error.strerror}") from error
    keys = {*SHARDING, MICRO, BATCH}
    if named is not None:
        keys = {key for key in keys if key.split(".")[1] in named}
    return Allowed(frozenset(keys), reads=True, name=entry.name)
