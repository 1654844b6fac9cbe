"""One tree that a node is to have: found on its disk, or filled."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fsdpkit.staging.copying import StageCopy
from fsdpkit.staging.disk import StageStore
from fsdpkit.staging.manifest import BLOCK, BlockSource, Manifest, StageError
from fsdpkit.staging.peers import Growing

_FOREVER_S = 86400.0 * 30
_AT_ONCE, _AHEAD = 4, 8
"""Blocks that are read at the same time, and that wait for their turn to be written."""


class StagedTree:
    """What this node has of it, under a lock that is shared once it is whole."""

    def __init__(
        self,
        store: StageStore,
        manifest: Manifest,
        reader: Callable[[], BlockSource] | None,
        make_room: Callable[[], None] = lambda: None,
    ) -> None:
        """reader: where this node reads it itself; None: other nodes have it. make_room: called
        before it is filled."""
        self.manifest = manifest
        self.path = Path()
        """Once it is whole."""
        self.growing: Growing | None = None
        """Its blocks, once there is a place for them."""
        self.reused = False
        self._store, self._reader, self._make_room = store, reader, make_room
        self._copy: StageCopy | None = None

    @property
    def done(self) -> int:
        """Bytes that are here."""
        return min((self.growing.done if self.growing else 0) * BLOCK, self.manifest.size)

    def begin(self) -> None:
        """Find it, or have its lock to fill it; waits for another job that does. Raises
        StageError."""
        if self.growing is not None:
            return
        if found := self._store.claim(self.manifest):
            self.path, self.reused = found, True
            whole = self._store.whole(self.manifest)
            if whole is None:
                raise StageError("storage", f"{self._store.path}: what was copied is not there")
            self.growing = Growing(whole)
        else:
            self._make_room()
            self._copy = self._store.begin(self.manifest)
            self.growing = Growing(self._copy)

    def fill(self, fetch: Callable[[Growing], None]) -> None:
        """Have all of it. fetch: gets the blocks that are missing from other nodes. Raises
        StageError."""
        if self._copy is None:
            return
        assert self.growing is not None
        first, end = self._copy.done, self.manifest.block_count
        if self._reader is None:
            if first < end:
                fetch(self.growing)
        else:
            for index, data in enumerate(_read(self._reader, first, end), first):
                whole = data or bytes(self.manifest.length(index))
                self.growing.write(index, data, hashlib.sha256(whole).digest())
        self._copy.finish()
        self._copy = None
        self._store.lock(self.manifest).take(exclusive=False, wait_s=_FOREVER_S)
        tree = self._store.find(self.manifest)
        if tree is None:
            raise StageError("storage", f"{self._store.path}: what was copied is not there")
        self.path = tree


def _read(reader: Callable[[], BlockSource], first: int, end: int) -> Iterator[bytes]:
    """Blocks in order, several of them read at once. Raises StageError."""
    own = threading.local()

    def read(index: int) -> bytes:
        if not hasattr(own, "source"):
            own.source = reader()
        return bytes(own.source.read(index))

    with ThreadPoolExecutor(_AT_ONCE, "fsdpkit-read") as pool:
        coming = deque(pool.submit(read, index) for index in range(first, min(end, first + _AHEAD)))
        for index in range(first, end):
            if index + _AHEAD < end:
                coming.append(pool.submit(read, index + _AHEAD))
            try:
                yield coming.popleft().result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
