"""Which node to avoid after nodes fell silent: the one that was cut off, not those it lost; and
which of them may be gone, whoever is to blame."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def to_blame(
    losses: Iterable[tuple[str, ...]],
    nodes: int,
    head: str,
    *,
    accusers: Collection[str] = (),
    cut_off: bool = False,
) -> tuple[str, ...]:
    """The nodes that explain what the head node saw; of what several could explain, none.

    losses: the names that it lost, those at once together. nodes: how many trained. accusers: nodes
    that say on record that the head does not answer, so they are not gone themselves. cut_off:
    whether the head's own interface had no carrier meanwhile.
    """
    found: list[str] = []
    for lost in losses:
        if _head_was_cut_off(lost, nodes, accusers, cut_off):
            found.append(head)
        # Beyond that not so many break at once: the network did.
        elif len(lost) <= max(1, nodes // 10):
            found += lost
    return tuple(dict.fromkeys(found))


def maybe_gone(
    losses: Iterable[tuple[str, ...]],
    nodes: int,
    *,
    accusers: Collection[str] = (),
    cut_off: bool = False,
) -> set[str]:
    """The lost nodes, but for those that only a head node lost which was cut off itself. Slurm may
    not know of them yet."""
    return {
        node
        for lost in losses
        if not _head_was_cut_off(lost, nodes, accusers, cut_off)
        for node in lost
    }


def _head_was_cut_off(
    lost: tuple[str, ...], nodes: int, accusers: Collection[str], cut_off: bool
) -> bool:
    everybody_else = 0 < len(lost) >= nodes - 1
    return everybody_else and (cut_off or len({*accusers} & {*lost}) > 1)
