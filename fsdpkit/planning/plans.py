"""Plans of one job and of its variations: what fits, what would fit, what fits at most.

A variation is asked for as on the command line, by `KEY=VALUE`. Each costs one tape; importing
torch costs more, so many plans are best made within `apart.one_child`.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from fsdpkit.errors import FsdpkitError, UsageError
from fsdpkit.planning.apart import tape_apart
from fsdpkit.planning.asked import AskedStep, on_card
from fsdpkit.planning.verdict import MemoryVerdict, verdict
from fsdpkit.runs.predicted import Predicted

if TYPE_CHECKING:
    from fsdpkit.planning.forecast import Forecast

Ask = Callable[[Sequence[str]], AskedStep]
"""What is to be planned with these `KEY=VALUE` on top. Raises FsdpkitError for what is refused."""
MOST_VARIATIONS = 64
MOST_TRIED = 1 << 20


def plan(asked: AskedStep) -> MemoryVerdict:
    """One plan. Raises FsdpkitError for what the trainer refuses or cannot be followed."""
    return verdict(asked, *tape_apart(asked))


def keep(
    made: MemoryVerdict,
    better: Sequence[Sequence[str]],
    expected: Forecast | None = None,
    args: Sequence[str] | None = None,
) -> None:
    """Let `submit` know of this plan, of the first of what would fit, and of how fast it is. args:
    as `name_of` takes them."""
    from fsdpkit.planning.forecast import keep_planned
    from fsdpkit.planning.remembered import Remembered, name_of, remember

    asked = made.asked
    if made.fit == "not known":
        return
    name = name_of(asked.settings, asked.nodes, asked.gpus, asked.card, asked.entry.path, args)
    if expected is not None and expected.work is not None:
        keep_planned(asked, name, expected.work)
    remember(
        name,
        Remembered(
            fit=made.fit,
            total=made.total,
            usable=made.room + made.outside.bytes,
            card=asked.card.name,
            would_fit=list(better[0]) if better else [],
            made_s=time.time(),
            predicted=_predicted(name, made, expected),
        ),
    )


def _predicted(name: str, made: MemoryVerdict, expected: Forecast | None) -> Predicted:
    speed = expected.speed if expected else None
    if speed is not None and speed.host_bound:
        speed = None  # nothing was predicted that a run could be held against
    return Predicted(
        name=name,
        made_s=time.time(),
        nodes=made.asked.nodes,
        gpus=made.asked.gpus,
        card=made.asked.card.name[:300],
        allocated_bytes=made.replayed.allocated,
        reserved_bytes=made.replayed.reserved,
        tokens_per_s=speed.tokens_per_s if speed else None,
        samples_per_s=speed.samples_per_s if speed else None,
        step_s=speed.step_s if speed else None,
        mfu=speed.mfu if speed and speed.mfu.low > 0 else None,
        source="tape" if speed else None,
        rests_on=expected.rests_on if expected else "",
    )


def variations(wanted: Sequence[str]) -> list[tuple[str, ...]]:
    """Of `KEY=V1,V2`, each a dimension, all combinations. Raises UsageError."""
    dimensions = []
    for text in wanted:
        key, equals, values = text.partition("=")
        if not (key.strip() and equals and values.strip()):
            raise UsageError(f"--try {text[:80]}: expected KEY=VALUE,VALUE")
        dimensions.append([f"{key.strip()}={value.strip()}" for value in _values(values)])
    found = list(product(*dimensions))
    if len(found) > MOST_VARIATIONS:
        raise UsageError(f"--try: {len(found)} combinations; at most {MOST_VARIATIONS} at once")
    return found


def _values(text: str) -> list[str]:
    """Between commas that are outside of brackets and quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def tried(ask: Ask, wanted: Sequence[str]) -> Iterator[tuple[tuple[str, ...], MemoryVerdict | str]]:
    """Each combination with its verdict, or why there is none."""
    for sets in variations(wanted):
        try:
            yield sets, plan(ask(sets))
        except FsdpkitError as error:
            yield sets, str(error)


@dataclass(frozen=True)
class Most:
    """The largest value that fits."""

    number: int
    plan: MemoryVerdict
    beyond: int | None
    """The next value, which does not fit; None: there is none to try."""


def candidates(asked: AskedStep, key: str) -> Sequence[int]:
    """The values that make a difference, and that the trainer takes: lengths are filled up to a
    multiple, and a batch is cut into equal pieces. Raises UsageError."""
    settings = on_card(asked)
    unit: object = 1
    if key in ("training.data.source_length", "training.data.target_length"):
        unit = settings.data.multiple
    elif key == "training.batch_size":
        if settings.micro_batch is not None:
            raise UsageError(
                "--most training.batch_size: training.micro_batch cuts the batch into pieces, so "
                "memory hardly depends on it: ask for --most training.micro_batch"
            )
    elif key == "training.micro_batch":
        rows = settings.batch_size
        return [n for n in range(1, rows + 1) if rows % n == 0]
    step = unit if isinstance(unit, int) else 1
    return range(step, MOST_TRIED + 1, step)


def most(ask: Ask, key: str, values: Sequence[int], start: int) -> Most | None:
    """The largest of `values`, which grow, with which it fits: the value after it was planned, too,
    and does not fit. None when not even the first fits. Raises FsdpkitError.

    From `start` on to where the memory of two plans says that the largest is, for memory grows
    nearly in a line with most keys; then away from there in growing steps, and by halving the gap.
    """
    low, high = -1, len(values)  # fits; does not
    found: dict[int, MemoryVerdict] = {}
    at, step = min(max(0, bisect_right(values, start) - 1), high - 1), 0
    while high - low > 1:
        found[at] = plan(ask([f"{key}={values[at]}"]))
        fits = found[at].fit == "fits"
        low, high = (at, high) if fits else (low, at)
        if len(found) == 1:
            at = 2 * at + 1 if fits else at // 2
        elif len(found) == 2:
            at, step = _expected(found, values), 1
        else:
            at, step = (low + step, 2 * step) if fits else (high - step, 2 * step)
        if not low < at < high:
            at = min(max(at, low + 1), high - 1) if step == 1 else (low + high) // 2
    if low < 0:
        return None
    return Most(values[low], found[low], values[high] if high < len(values) else None)


def _expected(found: Mapping[int, MemoryVerdict], values: Sequence[int]) -> int:
    """Which value takes all there is, on the line through two plans."""
    (one, first), (other, second) = sorted(found.items())
    grows = max(1, second.replayed.reserved - first.replayed.reserved)
    left = (first.room - first.replayed.reserved) / grows
    return bisect_right(values, values[one] + left * (values[other] - values[one])) - 1


def what_would_fit(ask: Ask, asked: AskedStep) -> Iterator[tuple[tuple[str, ...], MemoryVerdict]]:
    """Changes that leave the training what it is, the cheapest first, up to the first that fits."""
    settings = asked.settings
    sharding = settings.sharding
    steps: list[list[str]] = []
    if settings.loss == "whole" and not asked.model:
        steps.append(["training.loss=chunked"])
    if sharding.strategy != "full_shard" or sharding.reshard_to is not None:
        steps.append(["training.sharding.strategy=full_shard"])
    if sharding.activation_checkpointing not in ("full",):
        steps.append(["training.sharding.activation_checkpointing=full"])
    if settings.batch_size > 1 and settings.micro_batch != 1:
        size = settings.micro_batch if isinstance(settings.micro_batch, int) else None
        size = max(1, (size or settings.batch_size) // 4)
        steps += [[f"training.micro_batch={size}"], ["training.micro_batch=1"]]
    done: tuple[str, ...] = ()
    for step in steps:
        kept = [one for one in done if one.partition("=")[0] != step[0].partition("=")[0]]
        done = (*kept, *step)
        try:
            found = plan(ask(done))
        except FsdpkitError:
            done = tuple(kept)
            continue
        if found.fit == "fits":
            yield done, found
            return
