"""The order of an epoch, computed a window at a time.

It is a Feistel network: numbers are split into two halves, and each half is changed
in turn by a sum of bits that depends on the other half and on a key. That maps the numbers below a
power of two onto themselves, one to one, whatever the sum is. A number that is no sample's is sent
through again, until it is one: twice on average at most. So any part of the order is there at once,
and no rank holds more than a window of it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.integer[Any]]
_Numbers = NDArray[np.uint64]

_WINDOW, _WINDOW_IN_BUCKETS = 1 << 18, 1 << 22
_GROUPS = 64
"""Global batches that a window has at least: of each bucket, what is left over comes at its end."""


class ComputedOrder:
    """The order of so many samples as an array that is read in slices; one window is kept. seed:
    None: not shuffled. buckets, group: as `gather` has them, within each window."""

    def __init__(
        self,
        samples: int,
        seed: int | None,
        epoch: int,
        buckets: NDArray[np.uint8] | None = None,
        group: int = 0,
    ) -> None:
        self._samples, self._buckets, self._group = samples, buckets, group
        key = hashlib.sha512(f"{seed} {epoch}".encode()).digest()
        self._keys = None if seed is None else np.frombuffer(key, "<u8")
        self._size = _WINDOW
        if buckets is not None and group:
            self._size = max(_WINDOW_IN_BUCKETS // group, _GROUPS) * group
        self._at, self._window = -1, np.empty(0, np.int64)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, part: slice) -> Indices:
        """part: without a step."""
        begin, end, _ = part.indices(self._samples)
        found = [self._window[:0]]
        while begin < end:
            at, skipped = divmod(begin, self._size)
            if at != self._at:
                self._at, self._window = at, self._computed(at * self._size)
            found.append(self._window[skipped : skipped + end - begin])
            begin += len(found[-1])
        return np.concatenate(found)

    def _computed(self, begin: int) -> NDArray[np.int64]:
        order = np.arange(begin, min(begin + self._size, self._samples))
        if self._keys is not None:
            order = permuted(order, self._samples, self._keys)
        if self._buckets is not None and self._group:
            order = gather(order, self._buckets, self._group).astype(np.int64)
        return order


def permuted(places: NDArray[np.int64], samples: int, keys: _Numbers) -> NDArray[np.int64]:
    """Which of so many samples comes at each of these places of the order that the keys give."""
    bits = max(2, (samples - 1).bit_length())
    found = _through(places.astype(np.uint64), bits, keys)
    while (outside := np.flatnonzero(found >= samples)).size:
        found[outside] = _through(found[outside], bits, keys)
    return found.astype(np.int64)


def _through(numbers: _Numbers, bits: int, keys: _Numbers) -> _Numbers:
    low = np.uint64(bits // 2)
    low_mask, high_mask = np.uint64((1 << bits // 2) - 1), np.uint64((1 << bits - bits // 2) - 1)
    high_half, low_half = numbers >> low, numbers & low_mask
    for key_a, key_b in keys.reshape(-1, 2):
        high_half ^= _mixed(low_half, key_a) & high_mask
        low_half ^= _mixed(high_half, key_b) & low_mask
    return high_half << low | low_half


def _mixed(numbers: _Numbers, key: np.uint64) -> _Numbers:
    """Each bit depends on all bits of the number and of the key."""
    mixed = (numbers ^ key) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    return mixed ^ mixed >> np.uint64(32)


def gather(order: Indices, buckets: NDArray[np.uint8], group: int) -> Indices:
    """`order` rearranged into runs of `group` samples of one bucket, in the order they fill up.

    Reading `order`, each bucket collects its samples and hands them over whenever it holds `group`
    of them. What is left in the buckets comes last, bucket by bucket.
    """
    bucket_of = buckets[order]
    runs, filled_at, rest = [], [], []
    for bucket in range(int(bucket_of.max(initial=0)) + 1):
        at = np.flatnonzero(bucket_of == bucket)
        whole = len(at) // group * group
        runs.append(order[at[:whole]].reshape(-1, group))
        filled_at.append(at[group - 1 : whole : group])
        rest.append(order[at[whole:]])
    by_time = np.argsort(np.concatenate(filled_at))
    return np.concatenate([np.concatenate(runs)[by_time].reshape(-1), *rest])
