"""Span corruption, T5's way of learning from plain text: hide some spans, ask for them.

A text is cut into windows. In each window random spans of tokens give way to sentinels; the source
is what remains, the target names each sentinel and what it stands for (Raffel et al. 2020, §3.1.4):

    Thank you for inviting me to your party last week
    source  Thank you <extra_id_0> me to your party <extra_id_1> week
    target  <extra_id_0> for inviting <extra_id_1> last

How many tokens are hidden, in how many spans, depends on a window's length alone, so padded lengths
are known before anything is hidden. Which tokens they are is up to the random generator given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]

SHORTEST = 8
"""A text of fewer tokens is left out, and no window is made for fewer: there is nothing to hide."""


@dataclass(frozen=True)
class Recipe:
    """How much of a window is hidden, and in how many spans."""

    noise_density: float = 0.15
    mean_span: float = 3.0
    sentinels: int = 100  # the tokenizer's; a window never has more spans

    def noise(self, length: Integers) -> tuple[Integers, Integers]:
        """Tokens to hide and the number of spans, for windows of `length` ≥ 2 tokens; int64.
        Something is always hidden and something kept, and between two spans a token is kept."""
        length = np.asarray(length)
        hidden = np.rint(length * self.noise_density).astype(np.int64).clip(1, length - 1)
        most = np.minimum(np.minimum(hidden, length - hidden + 1), self.sentinels)
        spans = np.rint(hidden / self.mean_span).astype(np.int64).clip(1, most)
        return hidden, spans

    def lengths(self, length: Integers) -> tuple[Integers, Integers]:
        """Tokens of source and target that a window of `length` becomes, EOS included; int64."""
        hidden, spans = self.noise(length)
        return length - hidden + spans + 1, hidden + spans + 1

    def window(self, source_length: int, target_length: int) -> int:
        """The most tokens whose source and target both fit; below SHORTEST if nothing does. Both
        grow with the window, or stay."""
        low, high = SHORTEST - 1, source_length + target_length  # fits (or is too short), does not
        while high - low > 1:
            middle = (low + high) // 2
            source, target = self.lengths(np.array(middle))
            if source <= source_length and target <= target_length:
                low = middle
            else:
                high = middle
        return low


class Windows:
    """Texts cut into windows of at most `size` tokens, as equal as possible; numbered throughout.
    `lengths`, int64 [rows], are the texts' tokens. Kept for each row is one number, its first
    window, so that finding a window is a binary search."""

    def __init__(self, lengths: Integers, size: int) -> None:
        self.lengths = lengths
        self.first = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(np.where(lengths < SHORTEST, 0, -(-lengths // size)), out=self.first[1:])

    def __len__(self) -> int:
        return int(self.first[-1])

    def locate(self, window: Integers) -> tuple[Integers, Integers, Integers]:
        """Row, first token and end of each of the windows; three int64 arrays of its shape."""
        row = np.searchsorted(self.first, window, side="right") - 1
        part, parts = window - self.first[row], self.first[row + 1] - self.first[row]
        length = self.lengths[row]
        return row, part * length // parts, (part + 1) * length // parts


def corrupt(
    ids: Integers, recipe: Recipe, sentinels: Integers, eos: int, rng: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Source and target of the window `ids`, both ending in `eos`.

    `sentinels` holds the ids of `<extra_id_0>`, `<extra_id_1>`, …, as many as the recipe counts.

    A window may begin or end with a hidden span or with kept text; the original recipe always ends
    with a hidden span, which in a window of one span would make it the same task each time.
    """
    hidden, spans = (int(n) for n in recipe.noise(np.array(len(ids))))
    removed = _partition(hidden, spans, rng)
    kept = _partition(len(ids) - hidden + 2, spans + 1, rng)
    kept[[0, -1]] -= 1  # only between two spans must something be kept
    pieces = np.empty(2 * spans + 1, np.int64)
    pieces[::2], pieces[1::2] = kept, removed
    is_hidden = np.repeat(np.arange(2 * spans + 1) % 2 == 1, pieces)

    marks = np.asarray(sentinels[:spans], np.int32)
    ids = ids.astype(np.int32)
    source = np.insert(ids[~is_hidden], np.cumsum(kept[:-1]), marks)
    target = np.insert(ids[is_hidden], np.cumsum(removed) - removed, marks)
    return np.append(source, np.int32(eos)), np.append(target, np.int32(eos))


def _partition(total: int, parts: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`total` as a sum of `parts` positive numbers, each such sum as likely as any other."""
    cuts = np.sort(rng.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total)
