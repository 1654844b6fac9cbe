"""`fsdpkit plan --tune`: which search is asked for, and its answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fsdpkit.cli.json_output import answer
from fsdpkit.cli.options import print_sentences

if TYPE_CHECKING:
    from fsdpkit.planning.asked import AskedStep
    from fsdpkit.planning.forecast import By
    from fsdpkit.planning.tune import Tuned


@answer("fsdpkit.plan-tune/2")
def tuned(tuned: Tuned) -> None:
    """What `--tune` found."""


def search(
    base: AskedStep, nodes: Sequence[int], refused: dict[int, str], aim: Any, by: By, as_json: bool
) -> int:
    """The fastest settings on some of `nodes`; 1 if none fit."""
    import msgspec

    from fsdpkit.planning.speed_words import left_out_lines
    from fsdpkit.planning.tune import T5, allowed_by, tune

    basis = by.basis(base.card)
    allowed = allowed_by(base.entry.path) if base.model else T5
    where = nodes or (base.nodes,)
    found = tune(base, where, basis.calibration, aim=aim, allowed=allowed)
    if refused:
        why = next(iter(refused.values()))
        numbers = ", ".join(map(str, refused))
        found = msgspec.structs.replace(
            found, notes=(*found.notes, f"the site has no place for {numbers} nodes; {why}")
        )
    if as_json:
        tuned(found)
    else:
        print_sentences(tuned_lines(found))
        print_sentences([f"speed is computed from: recorded steps; {basis.words}"])
        print_sentences(left_out_lines(basis.left_out))
    return 0 if found.fits else 1


def tuned_lines(found: Tuned) -> Iterator[str]:
    """The answer: what to type, and why each choice."""
    from fsdpkit.planning.speed import in_words
    from fsdpkit.planning.speed_words import number

    as_it_is = "" if found.in_script else "(as it is)"
    sets = " ".join(f"--set {each}" for each in found.sets) or as_it_is
    needed = f"{found.memory_bytes / 2**30:.1f}"
    room = f"{found.room_bytes / 2**30:.1f} GiB"
    if found.fits:
        yield f"fastest that fits: --nodes {found.nodes} {sets}".rstrip()
        yield f"takes {needed} of {room} a GPU"
    else:
        yield f"nothing fits {room} a GPU; the nearest miss: --nodes {found.nodes} {sets}".rstrip()
        yield f"takes {needed} GiB{_too_much(found)}"
    if found.in_script:
        yield (
            "in the script itself, which reads no [training] and so takes no --set of them: "
            + ", ".join(found.in_script)
        )
    speed = found.speed
    rate = speed.tokens_per_s or speed.samples_per_s
    yield (
        f"{'tokens' if speed.tokens_per_s else 'samples'}/s {number(rate.middle)} "
        f"({number(rate.low)} to {number(rate.high)}), "
        f"bound by {in_words(speed.bound)}"
    )
    for one in found.choices:
        yield f"  {one.key} = {one.value}: {one.why}"
    yield f"{found.asked} settings were recorded, one at a time from the job's own"
    for note in found.notes:
        yield f"note: {note}"


def _too_much(found: Tuned) -> str:
    """By how much the nearest miss misses, and which GPU would do."""
    from fsdpkit.planning.cards import CARDS
    from fsdpkit.planning.outside import SAFE

    over, least = found.memory_bytes - found.room_bytes, found.memory_bytes / SAFE
    enough = min((c for c in CARDS if c.memory >= least), key=lambda c: c.memory, default=None)
    example = f", such as {enough.name}" if enough else ""
    size = math.ceil(least / 2**30)
    return (
        f": {over / 2**30:.1f} GiB ({over:,} bytes) too much. A GPU of {size} GiB or more would "
        f"do{example}; else shorter sequences, more nodes or a smaller model"
    )
