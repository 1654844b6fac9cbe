"""Which node to avoid after nodes fell silent: the one that was cut off, not the nodes it lost; and
which of them may be gone, whichever is to blame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Losses:
    """What the head node saw of the others, and they of it."""

    lost: Iterable[tuple[str, ...]]
    """The names that it lost, those at once together."""
    nodes: int
    """How many trained."""
    head: str = ""
    accusers: Collection[str] = ()
    """Nodes that say on record that the head does not answer, so they are not gone themselves."""
    cut_off: bool = False
    """Whether the head's own interface had no carrier meanwhile."""

    @property
    def to_blame(self) -> tuple[str, ...]:
        """The nodes that explain what the head node saw; none if several could."""
        found: list[str] = []
        for lost in self.lost:
            if self._head_was_cut_off(lost):
                found.append(self.head)
            # More nodes than that do not fail at once: the network did.
            elif len(lost) <= max(1, self.nodes // 10):
                found += lost
        return tuple(dict.fromkeys(found))

    @property
    def maybe_gone(self) -> set[str]:
        """The lost nodes, but for those that only a head node lost which was cut off itself."""
        return {node for lost in self.lost if not self._head_was_cut_off(lost) for node in lost}

    @property
    def depend_on_their_word(self) -> bool:
        """Whether the head node lost all others, and more than one of them could still say that it
        was the head that fell silent."""
        return any(
            self._everybody_else(lost) and len(lost) > 1 and not self._head_was_cut_off(lost)
            for lost in self.lost
        )

    def _head_was_cut_off(self, lost: tuple[str, ...]) -> bool:
        accused = len({*self.accusers} & {*lost}) > 1
        return self._everybody_else(lost) and (self.cut_off or accused)

    def _everybody_else(self, lost: tuple[str, ...]) -> bool:
        return 0 < len(lost) >= self.nodes - 1
