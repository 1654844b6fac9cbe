"""`fsdpkit plan --tune`: the fastest settings that fit, and why each of them.

Best first. Every candidate has a bound that it cannot beat, its computing alone; the one with the
best bound is simulated, and once the best of all is a simulated one its memory is asked for. The
first that fits is the answer: no other can be faster, by this model. Only what `submit` accepts is
a candidate (`tune_space.py`), and few are asked about (`tune_memory.py`).

The batch of one optimizer step over all ranks is never changed: the answer trains the same model.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence, Set
from typing import Any, Literal

import msgspec

from fsdpkit.config.training import TrainingSettings
from fsdpkit.errors import UsageError
from fsdpkit.planning.efficiency import Rates
from fsdpkit.planning.speed import Beside, Goal, Speed, predict
from fsdpkit.planning.speed_calibration import SpeedCalibration
from fsdpkit.planning.speed_schedule import computation_s, simulate
from fsdpkit.planning.speed_settings import work_of_settings
from fsdpkit.planning.tune_memory import MemoryAnswers, MemoryOf
from fsdpkit.planning.tune_space import (
    ALL,
    BATCH,
    MICRO,
    Candidate,
    candidates,
    hunger,
    sets_of,
    takes_no_less,
)
from fsdpkit.planning.work import StepWork

Aim = Literal["tokens_per_s", "gpu_hours"]
WorkOf = Callable[[TrainingSettings, int, int], StepWork]

_LONGEST = 4
"""Micro-batches that are simulated; those between the first and the last are alike."""
_MOST_ASKED = 8
"""How often memory is asked for to find the nearest miss."""
_WORTH = 0.01
"""A change of what was asked for has to be worth so much of a step; less is no difference."""


class Choice(msgspec.Struct, frozen=True):
    """One setting of the answer, and what its other values would have done."""

    key: str
    value: str
    why: str


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """What `--tune` answers. `fits` False: nothing does, and this is the nearest miss."""

    fits: bool
    sets: tuple[str, ...]
    """KEY=VALUE for `--set`, only what differs from the job's own settings."""
    in_script: tuple[str, ...] = ()
    """The same for a script that reads no [training], to be written in its source."""
    nodes: int
    speed: Speed
    memory_bytes: int | None
    """Of one GPU at the peak, asked for this very answer; None: it could not be told."""
    room_bytes: int
    choices: tuple[Choice, ...]
    candidates: int
    asked: int
    """How often memory was asked for."""
    notes: tuple[str, ...] = ()


def tune(
    base: TrainingSettings,
    *,
    nodes: Sequence[int],
    gpus: int,
    base_nodes: int,
    calibration: SpeedCalibration,
    memory_of: MemoryOf,
    room_bytes: int,
    work_of: WorkOf = work_of_settings,
    aim: Aim = "tokens_per_s",
    goal: Goal | None = None,
    beside: Beside | None = None,
    seconds: float = 100,
    keys: Set[str] = ALL,
    parameters: int | None = None,
) -> Tuned:
    """The fastest of `candidates(base, …)` that needs at most `room_bytes` of a GPU, for tokens a
    second or for GPU-hours. After `seconds` no more memory is asked for. keys: what may be chosen;
    parameters: of the whole model, None: of the T5 that `base` describes.

    Raises UsageError where `submit` would accept no candidate at all.
    """
    points = list(candidates(base, nodes, gpus, base_nodes, keys))
    if not points:
        raise UsageError(
            f"No settings to choose from: {base.batch_size * base_nodes * gpus} samples of one "
            f"optimizer step over {base_nodes * gpus} ranks divide among none of "
            f"{', '.join(str(n * gpus) for n in nodes)} ranks, or submit refuses all that do."
        )
    search = _Search(base, gpus, calibration.machine.rates(), work_of, aim, keys)
    memory = MemoryAnswers(
        memory_of, room_bytes, gpus, search.moved, seconds, parameters=parameters
    )
    best, fits = search.best(points, memory)
    notes = []
    if not fits and memory.out_of_time:
        notes.append(f"after {seconds:.0f} s no fit had been found: the rest was not tried")
    if memory.failed:
        notes.append(f"could not be followed, and left out: {next(iter(memory.failed.values()))}")
    work = work_of(best.settings, best.nodes, gpus)
    return Tuned(
        fits=fits,
        sets=sets_of(best, base, keys),
        nodes=best.nodes,
        speed=predict(work, calibration, goal, beside),
        memory_bytes=memory.known_bytes(best),
        room_bytes=room_bytes,
        choices=tuple(_choices(best, points, search, memory)),
        candidates=len(points),
        asked=memory.asked,
        notes=tuple(notes),
    )


class _Search:
    """Times of candidates, each worked out once."""

    def __init__(
        self,
        base: TrainingSettings,
        gpus: int,
        rates: Rates,
        work_of: WorkOf,
        aim: Aim,
        keys: Set[str],
    ) -> None:
        self.keys = keys
        self.base, self.gpus, self.rates, self.work_of, self.aim = base, gpus, rates, work_of, aim
        self._bounds: dict[tuple[Any, ...], float] = {}
        self._moved: dict[str, int] = {}
        self._costs: dict[tuple[Any, ...], float] = {}

    def best(self, points: Sequence[Candidate], memory: MemoryAnswers) -> tuple[Candidate, bool]:
        """The best that fits; else the one that needs least, as far as is known. Guesses may be
        wrong: what they put off is asked about afterwards, where it is better than what was found.
        """
        found, put_off = self._first(points, memory, guessing=True)
        better = [one for one in put_off if not found or self._rank(one) < self._rank(found)]
        found = self._first(better, memory, guessing=False)[0] or found
        if found:
            return found, True
        return _nearest_miss(points, memory), False

    def _first(
        self, points: Sequence[Candidate], memory: MemoryAnswers, *, guessing: bool
    ) -> tuple[Candidate | None, list[Candidate]]:
        """The first that fits in order of rank, and what was put off on the way."""
        queue = [(self._rank(one, self.bound(one)), n, False) for n, one in enumerate(points)]
        heapq.heapify(queue)
        put_off: list[Candidate] = []
        while queue and not memory.out_of_time:
            _, number, exact = heapq.heappop(queue)
            one = points[number]
            if memory.surely_too_large(one) or memory.hopeless(one):
                continue
            if guessing and memory.guessed_too_large(one):
                put_off.append(one)
            elif not exact:
                heapq.heappush(queue, (self._rank(one), number, True))
            else:
                needed = memory.bytes_of(one)
                if needed is not None and needed <= memory.room:
                    return one, put_off
        return None, put_off

    def _rank(self, one: Candidate, cost: float | None = None) -> float:
        changes = sets_of(one, self.base, self.keys - {BATCH})
        return (self.cost(one) if cost is None else cost) * (1 + _WORTH * len(changes))

    def cost(self, one: Candidate) -> float:
        """What the aim counts: seconds, or GPU-seconds."""
        key = (one.combination, one.micro)
        if key not in self._costs:
            self._costs[key] = self._counted(self.step_s(one), one)
        return self._costs[key]

    def _counted(self, step_s: float, one: Candidate) -> float:
        """Of one sample: where a rank's batch stays, more nodes do more of them in a step."""
        seconds = step_s / int(one.values[BATCH])
        return seconds / (one.nodes * self.gpus) if self.aim == "tokens_per_s" else seconds

    def step_s(self, one: Candidate) -> float:
        batches = int(one.values[BATCH]) // one.micro
        if batches <= _LONGEST:
            return self._simulated(one, batches)
        third, second = self._simulated(one, _LONGEST), self._simulated(one, _LONGEST - 1)
        return third + (batches - _LONGEST) * (third - second)

    def _simulated(self, one: Candidate, batches: int) -> float:
        settings = msgspec.structs.replace(one.settings, batch_size=batches * one.micro)
        return simulate(self.work_of(settings, one.nodes, self.gpus), self.rates).step_s

    def bound(self, one: Candidate) -> float:
        """Less than its cost: one micro-batch's computing, without messages or an optimizer, as
        often as there are micro-batches."""
        batches = int(one.values[BATCH]) // one.micro
        sharding = one.settings.sharding
        key = (one.micro, sharding.activation_checkpointing, one.settings.loss, sharding.engine)
        if key not in self._bounds:
            settings = msgspec.structs.replace(one.settings, batch_size=one.micro)
            work = self.work_of(settings, one.nodes, self.gpus)
            self._bounds[key] = sum(
                computation_s(part, self.rates)[0]
                for part in work.computations()
                if part.kind != "other"
            )
        return self._counted(batches * self._bounds[key], one)

    def moved(self, one: Candidate) -> int:
        """Bytes of activations that forward moves in one micro-batch: what a sample adds, times
        its samples."""
        if one.settings.loss not in self._moved:
            one_row, two_rows = (self._forward_bytes(one, rows) for rows in (1, 2))
            self._moved[one.settings.loss] = two_rows - one_row
        return one.micro * self._moved[one.settings.loss]

    def _forward_bytes(self, one: Candidate, rows: int) -> int:
        settings = msgspec.structs.replace(one.settings, batch_size=rows, micro_batch=None)
        work = self.work_of(settings, one.nodes, self.gpus)
        return sum(part.bytes for part in work.computations() if part.phase == "forward")


def _nearest_miss(points: Sequence[Candidate], memory: MemoryAnswers) -> Candidate:
    """What needs least, asked about itself, and so is what surely needs no more than that."""

    def needs(one: Candidate) -> int:
        return memory.known_bytes(one) or memory.guess(one)

    nearest = min(points, key=needs)
    for _ in range(_MOST_ASKED):
        if memory.out_of_time:
            break
        if memory.was_asked(nearest):
            lower = [p for p in points if takes_no_less(nearest, p) and not memory.was_asked(p)]
            if not lower:
                break
            memory.bytes_of(min(lower, key=hunger))
        else:
            memory.bytes_of(nearest)
        nearest = min(points, key=needs)
    return nearest


def _choices(
    best: Candidate, points: Sequence[Candidate], search: _Search, memory: MemoryAnswers
) -> list[Choice]:
    """Each setting of the answer against its other values, everything else as it is."""
    found = []
    for key, value in best.values.items():
        if key == BATCH or key not in search.keys:
            continue
        others = [
            each
            for each in points
            if each.nodes == best.nodes
            and each.values[key] != value
            and all(each.values[k] == v for k, v in best.values.items() if k != key)
        ]
        if key == MICRO:  # the next larger and smaller one say enough
            others = [
                *[each for each in others if each.micro > best.micro][-1:],
                *[each for each in others if each.micro < best.micro][:1],
            ]
        said = [_against(each, best, key, search, memory) for each in others]
        why = "; ".join(said) or "nothing else is possible with the rest"
        found.append(Choice(key, str(value), why))
    counts = sorted({each.nodes for each in points})
    if len(counts) > 1:
        found.append(Choice("nodes", str(best.nodes), _nodes(best, points, search, memory, counts)))
    return found


def _against(
    other: Candidate, best: Candidate, key: str, search: _Search, memory: MemoryAnswers
) -> str:
    name = str(other.values[key])
    ratio = search.cost(other) / search.cost(best)
    worse = "slower" if search.aim == "tokens_per_s" else "dearer"
    if ratio > 1 + _WORTH:
        speed = f"{100 * (ratio - 1):.0f} % {worse}"
    elif ratio < 1 - _WORTH:
        speed = f"{100 * (1 / ratio - 1):.0f} % {'faster' if worse == 'slower' else 'cheaper'}"
    else:
        speed = "as fast" if worse == "slower" else "as cheap"
    known = memory.known_bytes(other)
    if known is not None and known > memory.room:
        return f"{name}: {speed}, but takes {known / 2**30:.1f} GiB"
    if memory.surely_too_large(other):
        return f"{name}: {speed}, but does not fit"
    if memory.guessed_too_large(other):
        return f"{name}: {speed}, but is estimated not to fit"
    if ratio < 1 - _WORTH:
        return f"{name}: {speed}, but was not tried in time"
    return f"{name}: {speed}"


def _nodes(
    best: Candidate,
    points: Sequence[Candidate],
    search: _Search,
    memory: MemoryAnswers,
    counts: Sequence[int],
) -> str:
    """The answer's own settings on the other numbers of nodes, as far as they are candidates."""
    said = []
    for count in counts:
        if count == best.nodes:
            continue
        same = [
            each
            for each in points
            if each.nodes == count
            and all(v == each.values[k] for k, v in best.values.items() if k not in (MICRO, BATCH))
            and not memory.surely_too_large(each)
            and not memory.guessed_too_large(each)
        ]
        if same:
            ratio = min(search.cost(each) for each in same) / search.cost(best)
            word = "time" if search.aim == "tokens_per_s" else "GPU time"
            said.append(f"{count}: {ratio:.2f} times the {word} of as many samples")
    return "; ".join(said) or "these settings fit no other number"
