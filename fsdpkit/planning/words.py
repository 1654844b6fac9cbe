"""A verdict as a table for a terminal. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdpkit.planning.outside import SAFE
from fsdpkit.planning.tape import Kind
from fsdpkit.planning.verdict import MemoryVerdict

GIB, MIB, KIB = 2**30, 2**20, 2**10
NAMES: dict[Kind, str] = {
    "weights": "weights (shards)",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "gathered": "gathered units",
    "reduction": "reduction buffers",
    "activations": "activations",
    "logits": "scores of the vocabulary",
    "temporary": "temporary",
    "other": "other (cuBLAS, batch)",
}


def size(count: int) -> str:
    """Bytes, in GiB, MiB, or KiB where it is less than a tenth of one."""
    if count >= GIB:
        return f"{count / GIB:.2f} GiB"
    return f"{count / MIB:.1f} MiB" if count >= MIB / 10 or not count else f"{count / KIB:.1f} KiB"


def table(found: MemoryVerdict) -> Iterator[str]:
    """The whole answer, line by line."""
    asked, replayed = found.asked, found.replayed
    settings = asked.settings
    what = asked.model or settings.model.source
    yield (
        f"{what} on {asked.nodes} x {asked.gpus} GPUs, {asked.card.name} "
        f"({size(asked.card.memory)}), {settings.sharding.engine} {settings.sharding.strategy}, "
        f"activation checkpointing {settings.sharding.activation_checkpointing}"
    )
    yield ""
    yield headline(found)
    yield ""
    yield f"{'per GPU':26}{'computed':>12}{'measured':>15}"
    rows = [
        ("allocated by tensors", replayed.allocated),
        ("reserved by torch", replayed.reserved),
        ("outside: CUDA context", found.outside.context),
        (f"outside: NCCL, {_communicators(found)}", found.outside.nccl),
        ("total", found.total),
        *([("total at least", found.least)] if found.least is not None else []),
        (f"limit, {SAFE:.0%} of the card", int(asked.card.memory * SAFE)),
    ]
    for name, value in rows:
        measured = "" if name.startswith(("limit", "outside")) else "not measured"
        yield f"{name:26}{size(value):>12}{measured:>15}".rstrip()
    yield ""
    yield f"most at once in step {replayed.step + 1}: {replayed.where}"
    for kind, count in found.kinds.items():
        if count >= MIB or count * 200 >= replayed.allocated:
            yield f"  {NAMES[kind]:26}{size(count):>12}  {count / replayed.allocated:4.0%}"
            if made := found.makers.get(kind):
                yield f"    made by {_pairs(made)}"
            if held := found.holders.get(kind):
                yield f"    held by {_pairs(held)}"
    yield (
        f"gathered weights and messages, most at once: {size(found.gathered)}"
        f" ({_pairs(_largest(found.units))})"
    )
    yield from _kept(found)
    if found.host > MIB:
        saved = f", {size(found.copy)} of it the copy from which a checkpoint is written"
        yield f"host memory of each rank's tensors: {size(found.host)}{saved if found.copy else ''}"
    for note in found.notes:
        yield f"note: {note}"


def headline(found: MemoryVerdict) -> str:
    """Fits or not, and by how much."""
    if found.fit == "not known":
        low, room = found.least or found.total, found.room + found.outside.bytes
        upper = "" if found.is_lower_bound else f", at most {size(found.total)}"
        return f"not known: at least {size(low)}{upper} of {size(room)}, see the notes"
    over = found.replayed.reserved - found.room
    if found.fit == "fits":
        return f"fits: {size(-over)} to spare"
    if found.fit == "tight":
        return (
            f"tight: reserved is {size(over)} above the limit; it runs by giving cached memory "
            "back in each step"
        )
    return f"does not fit: {size(over)} too much"


def rows(variations: Sequence[tuple[tuple[str, ...], MemoryVerdict | str]]) -> Iterator[str]:
    """One line a variation."""
    width = max((len(", ".join(sets)) for sets, _ in variations), default=0)
    yield f"{'':{width}}  {'allocated':>11}{'reserved':>12}{'total':>12}{'host':>12}  verdict"
    for sets, found in variations:
        name = f"{', '.join(sets):{width}}"
        if isinstance(found, str):
            yield f"{name}  refused: {found.splitlines()[0] if found else ''}"
            continue
        ran = found.replayed
        sizes = [f"{size(n):>12}" for n in (ran.reserved, found.total, found.host)]
        fit = f"{found.fit}, at least this" if found.is_lower_bound else found.fit
        yield f"{name}  {size(ran.allocated):>11}{''.join(sizes)}  {fit}"


def _communicators(found: MemoryVerdict) -> str:
    count = found.outside.communicators
    return f"{count} group{'s' if count != 1 else ''}"


def _kept(found: MemoryVerdict) -> Iterator[str]:
    """Who holds activations, and whether checkpointed layers let go of theirs."""
    kept = found.kept
    if kept.by_layer:
        yield f"kept for backward: {size(kept.bytes)}, most by {_pairs(_largest(kept.by_layer))}"
    if not kept.checkpointed:
        return
    layers = f"{len(kept.checkpointed)} checkpointed layers"
    if not kept.inside:
        yield f"{layers} keep nothing but their results, and make up to {size(kept.again)} again"
        return
    selective = found.asked.settings.sharding.activation_checkpointing == "selective"
    why = "kept by the selective policy" if selective else "not released by checkpointing"
    yield f"{why}: {size(sum(kept.inside.values()))}, most in {_pairs(_largest(kept.inside))}"


def _largest(sums: dict[str, int]) -> dict[str, int]:
    return dict([*sums.items()][:3])


def _pairs(sums: dict[str, int]) -> str:
    least = sum(sums.values()) / 200
    return ", ".join(f"{name} {size(count)}" for name, count in sums.items() if count >= least)
