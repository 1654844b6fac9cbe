"""`fsdpkit plan --tune`: the fastest settings found that fit, and what the others would do.

Each setting that is tried is a step recorded of its own, which says what it takes and how fast it
is. Every setting has its values in an order: the later ones need more memory, and mostly compute or
send less. From the job's own settings the search first takes what needs less until it fits, then
what needs more while that is faster, one setting at a time or one against another; so what it finds
is better than all that differ from it by one value, and not surely the best of all.

The batch of one optimizer step over all ranks is never changed: the answer trains the same model.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from fsdpkit.config.array_tasks import text
from fsdpkit.config.script_source import read_source, reads_settings, settings_named, syntax_of
from fsdpkit.config.training import TrainingSettings
from fsdpkit.config.training.problems import problems
from fsdpkit.errors import FsdpkitError, UsageError, storage_errors
from fsdpkit.planning.asked import AskedStep
from fsdpkit.planning.forecast import work_on_tape
from fsdpkit.planning.outside import SAFE
from fsdpkit.planning.plans import plan
from fsdpkit.planning.speed import Speed, SpeedCalibration, predict
from fsdpkit.planning.speed_schedule import simulate
from fsdpkit.planning.work import StepWork

Aim = Literal["tokens_per_s", "gpu_hours"]
Measure = Callable[[AskedStep], tuple[int, StepWork]]
"""Bytes of one GPU at the peak, all told, and the step. Raises FsdpkitError."""

_WORTH = 0.01
"""A change of what was asked for has to be worth so much of a step; less is no difference."""
SECONDS = 150.0

STRATEGY = "training.sharding.strategy"
CHECKPOINTING = "training.sharding.activation_checkpointing"
OFFLOAD = "training.sharding.cpu_offload"
LOSS = "training.loss"
MICRO = "training.micro_batch"
BATCH = "training.batch_size"
SHARDING = (CHECKPOINTING, STRATEGY, OFFLOAD)
_THRIFT = (CHECKPOINTING, LOSS, STRATEGY, MICRO, OFFLOAD)
"""In this order settings are changed until they fit, what costs least first."""


class Choice(msgspec.Struct, frozen=True):
    """One setting of the answer, and what its other values would have done."""

    key: str
    value: str
    why: str


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """What `--tune` answers. `fits` False: nothing tried does, and this misses by the least."""

    fits: bool
    sets: tuple[str, ...]
    """KEY=VALUE for `--set`, only what differs from the job's own settings."""
    in_script: tuple[str, ...] = ()
    """The same for a script that reads no [training], to be written in its source."""
    nodes: int
    speed: Speed
    memory_bytes: int
    """Of one GPU at the peak."""
    room_bytes: int
    choices: tuple[Choice, ...]
    asked: int
    """How many settings were recorded."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Allowed:
    """Which settings a script takes, and how it is told them."""

    keys: frozenset[str]
    reads: bool = True
    """Whether it reads [training], so that `--set` reaches it; else its source has them."""
    name: str = ""
    """Of the script."""


T5 = Allowed(frozenset({*SHARDING, LOSS, MICRO, BATCH}))


def allowed_by(entry: Path) -> Allowed:
    """Of what could be chosen, the settings that a script has a use for: those that its source, or
    that of a module beside it, names; of one that reads no [training], how it is sharded."""
    with storage_errors(entry, "read", FsdpkitError):
        source = read_source(entry)
        tree = None if source is None else syntax_of(source)
        if tree is not None and not reads_settings(tree, entry.parent):
            return Allowed(frozenset(SHARDING), reads=False, name=entry.name)
        named = None if tree is None else settings_named(tree, entry.parent)
    keys = {*SHARDING, MICRO, BATCH}
    if named is not None:
        keys = {key for key in keys if key.split(".")[1] in named}
    return Allowed(frozenset(keys), name=entry.name)


def recorded(asked: AskedStep) -> tuple[int, StepWork]:
    """Of the step as `fsdpkit plan` records it."""
    made = plan(asked)
    return made.total, work_on_tape(asked, made.tape)


def tune(
    asked: AskedStep,
    nodes: Sequence[int],
    calibration: SpeedCalibration,
    *,
    aim: Aim = "tokens_per_s",
    allowed: Allowed = T5,
    measure: Measure = recorded,
    seconds: float = SECONDS,
) -> Tuned:
    """The fastest settings on one of `nodes`, for tokens a second or for GPU-hours. After `seconds`
    no more is recorded. Raises FsdpkitError where nothing could be recorded."""
    search = _Search(asked, calibration, aim, allowed, measure, time.monotonic() + seconds)
    best = search.best([*nodes])
    if best is None:
        raise UsageError(f"--tune: nothing could be recorded: {search.problem}")
    sets = search.sets_of(best)
    return Tuned(
        fits=search.fits(best),
        sets=sets if allowed.reads else (),
        in_script=() if allowed.reads else sets,
        nodes=best.place.nodes,
        speed=predict(best.work, calibration),
        memory_bytes=best.bytes,
        room_bytes=search.room,
        choices=tuple(search.choices(best)),
        asked=len(search.trials),
        notes=tuple(search.notes([*nodes])),
    )


@dataclass(frozen=True)
class _Place:
    """One point of the space: for each setting the number of its value in `values`."""

    nodes: int
    at: tuple[tuple[str, int], ...]
    values: Mapping[str, Sequence[Any]] = field(compare=False, hash=False)

    def moved(self, key: str, by: int) -> _Place | None:
        at = {**dict(self.at)}
        at[key] += by
        if not 0 <= at[key] < len(self.values[key]):
            return None
        return dataclasses.replace(self, at=tuple(at.items()))

    def chosen(self) -> dict[str, Any]:
        return {key: self.values[key][number] for key, number in self.at}

    def needs_no_less(self, other: _Place) -> bool:
        theirs = dict(other.at)
        return self.nodes == other.nodes and all(n >= theirs[key] for key, n in self.at)


@dataclass(frozen=True)
class _Trial:
    place: _Place
    bytes: int
    work: StepWork
    cost: float
    """Of one sample: seconds, or GPU-seconds."""


@dataclass
class _Search:
    asked: AskedStep
    calibration: SpeedCalibration
    aim: Aim
    allowed: Allowed
    measure: Measure
    until: float
    trials: dict[_Place, _Trial | None] = field(default_factory=dict)
    batch: int = 0
    """Of one rank, as asked for; 0: not known yet."""
    problem: str = ""

    @property
    def room(self) -> int:
        return int(self.asked.card.memory * SAFE)

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() > self.until

    def fits(self, trial: _Trial) -> bool:
        return trial.bytes <= self.room

    def best(self, nodes: list[int]) -> _Trial | None:
        """First on as many nodes as asked for, or the first of the others; the settings found there
        are then tried on each other number, and improved on the best."""
        first = self.asked.nodes if self.asked.nodes in nodes else nodes[0]
        self.batch = self.asked.settings.batch_size
        if self.asked.model:  # a model brings its own batch
            start = self._trial(self._start(first, batch=None))
            if start is None:
                return None
            self.batch = start.work.samples
        best = self._climbed(self._start(first, self.batch))
        others = [n for n in nodes if n != first and (best is None or self._place_on(n, best))]
        for count in others:
            place = self._place_on(count, best) if best else self._start(count, self.batch)
            found = self._made_to_fit(place) if place else None
            if found and (best is None or self._rank(found) < self._rank(best)):
                best = found
        if best and best.place.nodes != first:
            best = self._improved(best)
        return best

    # One trial

    def _trial(self, place: _Place | None) -> _Trial | None:
        """None for what is refused, cannot be recorded or surely does not fit."""
        if place is None:
            return None
        if place not in self.trials:
            if self.out_of_time or self._surely_too_large(place):
                return None
            self.trials[place] = self._measured(place)
        return self.trials[place]

    def _surely_too_large(self, place: _Place) -> bool:
        return any(
            trial and not self.fits(trial) and place.needs_no_less(trial.place)
            for trial in self.trials.values()
        )

    def _measured(self, place: _Place) -> _Trial | None:
        settings = self._settings(place)
        ranks = place.nodes * self.asked.gpus
        if wrong := problems(settings, ranks, self.asked.gpus):
            self.problem = self.problem or wrong[0]
            return None
        rows = place.chosen()[BATCH] if self.asked.model else None
        asked = dataclasses.replace(self.asked, settings=settings, nodes=place.nodes, rows=rows)
        try:
            size, work = self.measure(asked)
        except FsdpkitError as error:
            self.problem = str(error)
            return None
        seconds = simulate(work, self.calibration.machine.rates()).step_s / work.samples
        cost = seconds / ranks if self.aim == "tokens_per_s" else seconds
        return _Trial(place, size, work, cost)

    def _settings(self, place: _Place) -> TrainingSettings:
        values = {k: v for k, v in place.chosen().items() if v is not None}
        top = {k.partition(".")[2]: v for k, v in values.items() if k.count(".") == 1}
        sharding = {k.rpartition(".")[2]: v for k, v in values.items() if "sharding." in k}
        base = self.asked.settings
        return msgspec.structs.replace(
            base, **top, sharding=msgspec.structs.replace(base.sharding, **sharding)
        )

    def _start(self, nodes: int, batch: int | None) -> _Place:
        """The job's own settings on some nodes, with what else each of them could be."""
        base, keys = self.asked.settings, self.allowed.keys
        strategies = ["full_shard", "shard_grad_op", "no_shard"]
        if nodes > 1:
            strategies[1:1] = ["hybrid_shard"]
        now = {
            CHECKPOINTING: base.sharding.activation_checkpointing,
            STRATEGY: base.sharding.strategy,
            OFFLOAD: base.sharding.cpu_offload,
            LOSS: base.loss,
            MICRO: self._micro(batch),
            BATCH: batch,
        }
        orders: dict[str, Sequence[Any]] = {
            CHECKPOINTING: ("full", "selective", "none"),
            STRATEGY: strategies,
            OFFLOAD: (True, False),
            LOSS: ("chunked", "whole"),
            MICRO: [n for n in range(1, (batch or 1) + 1) if (batch or 1) % n == 0],
        }
        # What a script cannot be told stays, and so does what stands in no order.
        values = {
            key: orders[key] if key in keys and value in orders.get(key, ()) else (value,)
            for key, value in now.items()
        }
        return _Place(nodes, tuple((k, values[k].index(v)) for k, v in now.items()), values)

    def _micro(self, batch: int | None) -> int | None:
        micro = self.asked.settings.micro_batch
        if isinstance(micro, int):
            return micro
        return batch if MICRO in self.allowed.keys else None

    def _place_on(self, nodes: int, like: _Trial) -> _Place | None:
        """The same settings on other nodes, with as many samples in a step; None: they cannot be
        divided among the ranks. Of a script whose batch cannot be set, that of a rank stays."""
        batch = self.batch
        if BATCH in self.allowed.keys:
            whole = self.batch * self.asked.nodes
            if whole % nodes:
                return None
            batch = whole // nodes
        place = self._start(nodes, batch)
        chosen, at = like.place.chosen(), dict(place.at)
        for key, values in place.values.items():
            if chosen[key] in values:
                at[key] = values.index(chosen[key])
        return dataclasses.replace(place, at=tuple(at.items()))

    # The search

    def _rank(self, trial: _Trial) -> tuple[bool, float]:
        if not self.fits(trial):
            return True, trial.bytes
        return False, trial.cost * (1 + _WORTH * len(self.sets_of(trial)))

    def _climbed(self, start: _Place) -> _Trial | None:
        found = self._made_to_fit(start)
        return self._improved(found) if found and self.fits(found) else found

    def _made_to_fit(self, start: _Place) -> _Trial | None:
        """What needs less, until it fits; else what misses by the least."""
        best, place = self._trial(start), start
        for key in _THRIFT:
            while not (best and self.fits(best)):
                if (less := place.moved(key, -1)) is None:
                    break
                place = less
                found = self._trial(place)
                if found and (best is None or self._rank(found) < self._rank(best)):
                    best = found
        return best

    def _improved(self, best: _Trial) -> _Trial:
        while better := self._first_better(best):
            best = better
        return best

    def _first_better(self, best: _Trial) -> _Trial | None:
        for place in self._near(best.place):
            found = self._trial(place)
            if found and self._rank(found) < self._rank(best):
                return found
        return None

    def _near(self, place: _Place) -> Iterator[_Place | None]:
        """What needs more of one setting, then what also needs less of another."""
        for more in reversed(_THRIFT):
            steps = range(1, 2 if more == MICRO else len(place.values[more]))
            yield from (place.moved(more, by) for by in steps)
        for less in (CHECKPOINTING, STRATEGY, LOSS, MICRO):
            if cheaper := place.moved(less, -1):
                others = (MICRO, STRATEGY, CHECKPOINTING)
                yield from (cheaper.moved(more, 1) for more in others if more != less)

    # The answer in words

    def sets_of(self, trial: _Trial) -> tuple[str, ...]:
        """`--set` values that make the job's settings the trial's: those keys that differ."""
        chosen = trial.place.chosen()
        now = self._start(trial.place.nodes, chosen[BATCH]).chosen() | {BATCH: self.batch}
        return tuple(
            f"{key}={text(value)}"
            for key, value in chosen.items()
            if key in self.allowed.keys and value != now[key] and value is not None
        )

    def choices(self, best: _Trial) -> Iterator[Choice]:
        """Each setting of the answer against its other values, tried with the rest as it is."""
        mine = best.place.chosen()
        for key, values in best.place.values.items():
            if len(values) < 2:
                continue
            same = [
                trial
                for trial in self.trials.values()
                if trial and trial.place.nodes == best.place.nodes
                and self._differs_in(trial, best) == {key}
            ]  # fmt: skip
            said = [f"{text(t.place.chosen()[key])}: {self._against(t, best)}" for t in same]
            why = "; ".join(said) or "nothing else was tried with it"
            yield Choice(key, text(mine[key]), why)
        others = sorted({t.place.nodes for t in self.trials.values() if t} - {best.place.nodes})
        for count in others:
            on_it = [t for t in self.trials.values() if t and t.place.nodes == count]
            yield Choice("nodes", str(best.place.nodes), self._nodes(count, on_it, best))

    @staticmethod
    def _differs_in(trial: _Trial, best: _Trial) -> set[str]:
        theirs = trial.place.chosen()
        return {key for key, value in best.place.chosen().items() if theirs[key] != value}

    def _nodes(self, count: int, trials: Sequence[_Trial], best: _Trial) -> str:
        word = "time" if self.aim == "tokens_per_s" else "GPU time"
        least = min(trials, key=self._rank)
        if not self.fits(least):
            return f"{count}: nothing that was tried fits"
        return f"{count}: {least.cost / best.cost:.2f} times the {word} of as many samples"

    def _against(self, other: _Trial, best: _Trial) -> str:
        ratio = other.cost / best.cost
        fast = self.aim == "tokens_per_s"
        if ratio > 1 + _WORTH:
            speed = f"{100 * (ratio - 1):.0f} % {'slower' if fast else 'dearer'}"
        elif ratio < 1 - _WORTH:
            speed = f"{100 * (1 / ratio - 1):.0f} % {'faster' if fast else 'cheaper'}"
        else:
            speed = "as fast" if fast else "as cheap"
        return speed if self.fits(other) else f"{speed}, but takes {other.bytes / 2**30:.1f} GiB"

    def notes(self, nodes: Sequence[int]) -> Iterator[str]:
        if self.out_of_time:
            yield "the time was up: the rest was not tried"
        if self.problem:
            yield f"could not be followed, and left out: {self.problem}"
        if BATCH in self.allowed.keys:
            if odd := [n for n in nodes if self.batch * self.asked.nodes % n]:
                yield (
                    f"the samples of a step do not divide among the ranks of "
                    f"{', '.join(map(str, odd))} nodes"
                )
        elif len(nodes) > 1:
            yield (
                f"the batch of a rank is {self.allowed.name}'s own and stays, so that more nodes "
                "train with a larger batch"
            )
