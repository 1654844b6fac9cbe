"""Plans of one job and of its variations: what fits, what would fit, what fits at most.

A variation is asked for as on the command line, by `KEY=VALUE`. Each costs one tape; importing
torch costs more, so many plans share a process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

from fsdpkit.errors import FsdpkitError, UsageError
from fsdpkit.planning.asked import Asked
from fsdpkit.planning.verdict import Verdict, verdict
from fsdpkit.runs.predicted import Predicted

if TYPE_CHECKING:
    from fsdpkit.planning.forecast import Forecast

Ask = Callable[[Sequence[str]], Asked]
"""What is to be planned with these `KEY=VALUE` on top. Raises FsdpkitError for what is refused."""
MOST_VARIATIONS = 64
MOST_TRIED = 1 << 20


def plan(asked: Asked) -> Verdict:
    """One plan. Raises FsdpkitError for what the trainer refuses or cannot be followed."""
    from fsdpkit.planning.taping import tape_apart

    return verdict(asked, *tape_apart(asked))


def keep(
    made: Verdict,
    better: Sequence[Sequence[str]],
    expected: Forecast | None = None,
    args: Sequence[str] | None = None,
) -> None:
    """Let `submit` know of this plan, of the first of what would fit, and of how fast it is. args:
    as `name_of` takes them."""
    from fsdpkit.planning.remembered import Remembered, name_of, remember

    asked = made.asked
    name = name_of(asked.settings, asked.nodes, asked.gpus, asked.card, asked.entry, args)
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


def _predicted(name: str, made: Verdict, expected: Forecast | None) -> Predicted:
    from fsdpkit.planning.forecast import span_of

    speed = expected.speed if expected else None
    return Predicted(
        name=name,
        made_s=time.time(),
        nodes=made.asked.nodes,
        gpus=made.asked.gpus,
        card=made.asked.card.name[:300],
        allocated_bytes=made.replayed.allocated,
        reserved_bytes=made.replayed.reserved,
        tokens_per_s=span_of(speed.tokens_per_s) if speed else None,
        samples_per_s=span_of(speed.samples_per_s) if speed else None,
        step_s=span_of(speed.step_s) if speed else None,
        mfu=span_of(speed.mfu) if speed else None,
        source=speed.source if speed else None,
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


def tried(ask: Ask, wanted: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Verdict | str]]:
    """Each combination with its verdict, or why there is none."""
    for sets in variations(wanted):
        try:
            yield sets, plan(ask(sets))
        except FsdpkitError as error:
            yield sets, str(error)


def most(ask: Ask, key: str, start: int) -> tuple[int, Verdict] | None:
    """The largest whole number for `key` with which it fits, from `start` on by doubling and then
    halving the gap; None when not even 1 fits."""
    best: tuple[int, Verdict] | None = None
    low, high, number = 0, None, max(1, start)
    while high is None or high - low > max(1, low // 32):
        found = plan(ask([f"{key}={number}"]))
        if found.fit == "fits":
            low, best = number, (number, found)
        else:
            high = number
        if number >= MOST_TRIED:
            break
        number = number * 2 if high is None else (low + high) // 2
        if number == low:
            break
    return best


def what_would_fit(ask: Ask, asked: Asked) -> Iterator[tuple[tuple[str, ...], Verdict]]:
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
