"""Blocks of memory that are alive on a tape: by storage, from birth to death.

A block is a storage. It dies when Python and autograd have let go of it, or when it is resized,
which makes another block of the same storage.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, UntypedStorage
from torch.distributed.tensor import DTensor

from fsdpkit.planning.tape import Kind, MemoryBlock, Tape


@dataclass(frozen=True)
class _Alive:
    block: MemoryBlock
    storage: weakref.ref[UntypedStorage]


class AliveBlocks:
    """Writes births and deaths to a tape, and what kinds of blocks the living turn out to be."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._by_storage: dict[int, _Alive] = {}

    def event(self) -> int:
        """The number of the next event."""
        self._tape.events += 1
        return self._tape.events

    def has(self, storage: UntypedStorage) -> bool:
        return storage._cdata in self._by_storage

    def of(self, tensor: Tensor) -> MemoryBlock | None:
        found = self._by_storage.get(tensor.untyped_storage()._cdata)
        return found.block if found else None

    def add(self, storage: UntypedStorage, block: MemoryBlock) -> None:
        """From here on the block is alive, until its storage is gone."""
        self._tape.blocks.append(block)
        key = storage._cdata
        self._by_storage[key] = _Alive(block, weakref.ref(storage, lambda _: self._died(key)))

    def _died(self, key: int) -> None:
        if found := self._by_storage.pop(key, None):
            found.block.died = self.event()

    def resize(
        self,
        storage: UntypedStorage,
        size: int,
        resize: Callable[..., Any],
        made: Callable[[MemoryBlock], MemoryBlock],
    ) -> Any:
        """What `resize` returns. made: the block that follows the one before."""
        key = storage._cdata
        found = self._by_storage.get(key)
        if found is None or storage.nbytes() == size:
            return resize(storage, size)
        before = found.block
        if before.size:
            before.died = self.event()
        result = resize(storage, size)
        after = made(before)
        self._by_storage[key] = _Alive(after, found.storage)
        if size:
            self._tape.blocks.append(after)
        return result

    def label(self, tensors: Iterable[Any], kind: Kind) -> None:
        """Say what the blocks of these tensors are, of DTensors those of their shards."""
        for tensor in tensors:
            if isinstance(tensor, DTensor):
                tensor = tensor.to_local()
            if isinstance(tensor, Tensor) and not tensor.is_meta and (block := self.of(tensor)):
                block.kind = kind

    def label_survivors(self, since: int, kind: Kind) -> None:
        """What was born since that event, is alive, and is nothing else yet."""
        for found in self._by_storage.values():
            block = found.block
            if block.born >= since and block.kind in ("temporary", "reduction"):
                block.kind = kind

    def label_others(self) -> None:
        """What was made while the model was built, and is no weight."""
        for found in self._by_storage.values():
            if found.block.kind == "temporary":
                found.block.kind = "other"

    def forget(self) -> None:
        self._by_storage.clear()
