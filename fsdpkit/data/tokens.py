"""Token ids of many texts as flat arrays, in memory or memory-mapped: the trainer's view of data.

A row has one text (span corruption) or two (source and target); the ids of a row lie one behind the
other in its shard, without end-of-text marks. A thousand million rows cost a rank nothing but
address space, and a loader worker that gets a pickled copy opens the files again by name.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint16] | NDArray[np.int32]
Lengths = NDArray[np.int64]


class Encoded(NamedTuple):
    """Texts of some rows as ids, row after row and in each row field after field."""

    ids: Ids  # 1-D
    lengths: Lengths  # [rows, fields], tokens of each text


def ids_dtype(vocab_size: int) -> np.dtype[Any]:
    """The narrowest type that holds all ids below `vocab_size`: uint16 or int32."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<i4")


class Tokens:
    """Token ids of `len(self)` rows × `fields` texts, never copied as a whole. Made by
    `from_batches` (in memory) or `fsdpkit.data.prepared.open_tokens` (memory-mapped)."""

    def __init__(
        self,
        shards: Sequence[Ids],
        shard_rows: Sequence[int],
        lengths: Lengths,
        starts: Lengths,
        fingerprint: str,
        reopen: tuple[Callable[..., Tokens], tuple[Any, ...]] | None = None,
    ) -> None:
        """`shards`: 1-D ids; `shard_rows`: rows of each; `lengths`: [fields, rows] tokens;
        `starts`: [rows] position of a row's first id in its shard; `reopen`: how another process
        makes the same object, for pickling."""
        self.fields = len(lengths)
        self._shards = shards
        self._first_rows = list(accumulate(shard_rows, initial=0))
        self._lengths = lengths
        self._starts = starts
        self._fingerprint = fingerprint
        self._reopen = reopen

    @classmethod
    def from_batches(cls, batches: Iterable[Encoded], fields: int, vocab_size: int) -> Tokens:
        """All of `batches` in memory, in their order."""
        kept = list(batches)
        dtype = ids_dtype(vocab_size)
        ids = np.concatenate([np.empty(0, dtype), *(b.ids for b in kept)], dtype=dtype)
        table = np.concatenate([np.empty((0, fields), np.int64), *(b.lengths for b in kept)])
        starts = starts_of(table)
        lengths = np.ascontiguousarray(table.T)
        digest = hashlib.sha256(f"{fields} {dtype.str}".encode())
        digest.update(lengths.data)
        digest.update(ids.data)
        return cls([ids], [len(table)], lengths, starts, digest.hexdigest()[:16])

    def first(self, rows: int) -> Tokens:
        """The first `rows` rows, or all if there are fewer; nothing is copied."""
        if rows >= len(self):
            return self
        kept = bisect_right(self._first_rows, rows - 1)
        shard_rows = [b - a for a, b in pairwise([*self._first_rows[:kept], rows])]
        return Tokens(
            self._shards[:kept],
            shard_rows,
            self._lengths[:, :rows],
            self._starts[:rows],
            f"{self._fingerprint} first {rows}",
            (Tokens.first, (self, rows)),
        )

    def __len__(self) -> int:
        return self._first_rows[-1]

    def ids(self, row: int, field: int) -> Ids:
        """The ids of one text, without EOS: a view, to be read only. Raises IndexError outside 0 …
        rows − 1 and 0 … fields − 1."""
        if not (0 <= row < len(self) and 0 <= field < self.fields):
            raise IndexError(f"row {row}, field {field}: {len(self)} rows × {self.fields} fields")
        shard = bisect_right(self._first_rows, row) - 1
        start = int(self._starts[row])
        for earlier in range(field):
            start += int(self._lengths[earlier, row])
        return self._shards[shard][start : start + int(self._lengths[field, row])]

    def lengths(self, field: int) -> Lengths:
        """Tokens of one field in each row, without EOS: int64 [rows], to be read only."""
        table: Lengths = self._lengths[field]
        return table

    def fingerprint(self) -> str:
        """A short hash of all ids and lengths: equal on ranks that see the same data."""
        return self._fingerprint

    def __reduce__(self) -> tuple[Any, ...]:
        if self._reopen is not None:
            return self._reopen
        rows = [b - a for a, b in pairwise(self._first_rows)]
        return Tokens, (self._shards, rows, self._lengths, self._starts, self._fingerprint)


def starts_of(table: Lengths) -> Lengths:
    """Where each row of one shard begins, int64 [rows], from its lengths [rows, fields]."""
    per_row: Lengths = table.sum(axis=1, dtype=np.int64)
    starts: Lengths = np.cumsum(per_row) - per_row
    return starts
