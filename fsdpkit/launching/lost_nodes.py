"""Which node to avoid after nodes fell silent: the one that was cut off, not the nodes it lost; and
which of them may be gone, whichever is to blame.
"""

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
    """The nodes that explain what the head node saw; none if several could.

    losses: the names that it lost, those at once together. nodes: how many trained. accusers: nodes
    that say on record that the head does not answer, so they are not gone themselves. cut_off:
    whether the head's own interface had no carrier meanwhile.
    """
    found: list[str] = []
    for lost in losses:
        if _head_was_cut_off(lost, nodes, accusers, cut_off):
            found.append(head)
        # More nodes than that do not fail at once: the network did.
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


def depends_on_their_word(
    losses: Iterable[tuple[str, ...]], *, nodes: int, accusers: Collection[str], cut_off: bool
) -> bool:
    """Whether the head node lost all others, and more than one of them could still say that it was
    the head that fell silent."""
    return any(
        _everybody_else(lost, nodes)
        and len(lost) > 1
        and not _head_was_cut_off(lost, nodes, accusers, cut_off)
        for lost in losses
    )


def _head_was_cut_off(
    lost: tuple[str, ...], nodes: int, accusers: Collection[str], cut_off: bool
) -> bool:
    return _everybody_else(lost, nodes) and (cut_off or len({*accusers} & {*lost}) > 1)


def _everybody_else(lost: tuple[str, ...], nodes: int) -> bool:
    return 0 < len(lost) >= nodes - 1
