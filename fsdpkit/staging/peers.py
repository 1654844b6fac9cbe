"""Blocks from node to node: a node serves what it has, while it is still getting the rest.

A child asks its parent for the blocks that it lacks, and gets each as soon as the parent has it. A
parent that has nothing new says so every few seconds. One that is silent, breaks off or sends what
has another SHA-256 is left for another one, and copying goes on with the next block.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from fsdpkit.staging import wire
from fsdpkit.staging.hub import decoded, encoded
from fsdpkit.staging.manifest import BLOCK, StageError
from fsdpkit.staging.port import Address, Line, StagePort, connect
from fsdpkit.staging.wire import AttemptKeys, StrangeError

_NEWS_S = 3.0
_LOST_S = 60.0
_AGAIN_S = 0.25
_FIRST_S = 600.0


class Blocks(Protocol):
    """A copy on this node's disk; the first `done` blocks are there."""

    @property
    def done(self) -> int: ...
    def read(self, index: int) -> bytes: ...
    def write(self, index: int, data: bytes | memoryview, sha256: bytes) -> None: ...
    def sha256(self, index: int) -> bytes: ...


class Growing:
    """A copy that is read while it is written."""

    def __init__(self, copy: Blocks) -> None:
        self._copy, self._grown = copy, threading.Condition()
        self.read, self.sha256 = copy.read, copy.sha256

    @property
    def done(self) -> int:
        """How many blocks are there, from the first on."""
        return self._copy.done

    def write(self, index: int, data: bytes | memoryview, sha256: bytes) -> None:
        """The next block; whoever waits for it gets it. Raises StageError."""
        self._copy.write(index, data, sha256)
        with self._grown:
            self._grown.notify_all()

    def wait(self, index: int, seconds: float) -> bool:
        """Until block `index` is there; whether it is after so long."""
        with self._grown:
            return self._grown.wait_for(lambda: self.done > index, seconds)


class BlockServer:
    """Serves blocks to other nodes."""

    def __init__(self, keys: AttemptKeys, node: int, blocks: Callable[[int], Growing]) -> None:
        """blocks: the object of that number; raises LookupError while there is none."""
        self.node, self._blocks = node, blocks
        self._port = StagePort(keys, wire.BLOCKS, self._serve)
        self.open, self.close = self._port.open, self._port.close

    def _serve(self, line: Line) -> None:
        # Whatever is wrong with this node's copy: the child finds another parent.
        with contextlib.suppress(StageError):
            while True:
                self._send(line, *wire.requested(line.receive(at_rest=True)))

    def _send(self, line: Line, item: int, first: int, end: int) -> None:
        for index in range(first, end):
            while (found := self._found(item, index)) is None:
                line.send(b"")
            data = found.read(index)
            line.send(wire.header(index, len(data), found.sha256(index)), data)

    def _found(self, item: int, index: int) -> Growing | None:
        """The object, if it has the block soon."""
        try:
            found = self._blocks(item)
        except LookupError:
            time.sleep(_NEWS_S / 3)
            return None
        return found if found.wait(index, _NEWS_S) else None


class HubLink:
    """Asks and tells the hub, for one node. Threads may share it."""

    def __init__(self, keys: AttemptKeys, node: int, name: str, hub: Address) -> None:
        self._keys, self.node, self._name, self._hub = keys, node, name, hub
        self._line: Line | None = None
        self._lock = threading.Lock()
        self._port = 0
        self._told: dict[Address, Any] = {}
        """Parents so far, the last one first, and how the hub calls them."""
        self.heard_s = time.monotonic()
        """When the hub last answered."""
        self._met = False
        self.failure: StageError | None = None
        """Why nothing more is copied, as the hub said."""

    def hello(self, port: int, within_s: float = _FIRST_S) -> list[bytes]:
        """Tell where this node serves others; the manifests, once they are known.

        within_s: for so long the hub may be out of reach at first. Raises StageError.
        """
        while True:
            try:
                with self._lock:
                    return self._hello(port)
            except (OSError, StrangeError) as error:
                self.close()
                if time.monotonic() - self.heard_s > (_LOST_S if self._met else within_s):
                    where = f"{self._hub[0]}:{self._hub[1]}"
                    why = str(error) or "what answers there does not know this job's secret"
                    told = f"the first node, {where}, cannot be reached: {why}"
                    raise StageError("connection-reset", told) from error
                time.sleep(_AGAIN_S)

    def parent(self, failed: Address | None = None, waits: bool = False) -> Address | None:
        """Where to read from; None if nobody is there yet. If the hub is gone, one that was there.

        failed: where it went wrong. waits: the present one has had nothing new for some time.
        Raises StageError if the hub says that nothing more is copied.
        """
        try:
            what = failed and self._told.get(failed)
            told = self._ask({"failed": what, "waits": waits})["parent"]
        except (OSError, StrangeError):
            if failed in self._told:  # the others first
                self._told[failed] = self._told.pop(failed)
            return next(iter(self._told), None)
        if told is None:
            return None
        address = (str(told[0]) or self._hub[0], int(told[1]))
        self._told = {address: told, **self._told}
        return address

    def tell(self, done: int, state: str, why: str = "", reused: bool = False) -> None:
        """How far this node is. A hub that is gone does not hear it. done: in bytes."""
        with contextlib.suppress(OSError, StrangeError, StageError):
            self._ask({"bytes": done, "state": state, "why": why, "reused": reused})

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line = None

    def _hello(self, port: int) -> list[bytes]:
        line = self._connected(port, again=False)
        while (told := self._heard(line)).get("wait"):
            pass
        objects = []
        for size, digest in told["objects"]:
            each = bytearray(size)
            line.receive_into(memoryview(each))
            if hashlib.sha256(each).hexdigest() != digest:
                raise StrangeError
            objects.append(bytes(each))
        return objects

    def _connected(self, port: int, again: bool) -> Line:
        if self._line is None:
            self._port, self._line = port, connect(self._keys, wire.HUB, self.node, self._hub)
            self._line.send(encoded({"name": self._name, "port": port, "again": again}))
        return self._line

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            try:
                line = self._connected(self._port, again=True)
                line.send(encoded(message))
                return self._heard(line)
            except (OSError, StrangeError):
                self.close()
                raise

    def _heard(self, line: Line) -> dict[str, Any]:
        told = decoded(line.receive())
        self.heard_s, self._met = time.monotonic(), True
        if "cause" in told:
            told_words = f"the first node could not go on: {told['words']}"
            self.failure = StageError("connection-reset", told_words)
            raise self.failure
        return told


def fetch(link: HubLink, keys: AttemptKeys, item: int, growing: Growing, last: int) -> None:
    """Fill it up to block `last` with what other nodes have. Raises StageError."""
    fetching = _Fetch(link, keys, item, growing, last)
    with fetching.keeper:
        fetching.run()


class _Fetch:
    def __init__(
        self, link: HubLink, keys: AttemptKeys, item: int, growing: Growing, last: int
    ) -> None:
        self._link, self._keys, self._item, self._growing = link, keys, item, growing
        self._end = last + 1
        self._met_s = self._grew_s = self._asked_s = time.monotonic()
        """When a parent last was of use, a block last came, the hub was last asked."""
        # One block arrives while the one before it is checked and written.
        self._buffers = itertools.cycle([memoryview(bytearray(BLOCK)) for _ in range(2)])
        self.keeper = ThreadPoolExecutor(1)

    def run(self) -> None:
        failed, why = None, "no other node is there"
        while self._growing.done < self._end:
            self._asked_s = time.monotonic()
            parent, failed = self._link.parent(failed), None
            if parent is not None:
                try:
                    self._pull(parent)
                    continue
                except (OSError, StrangeError) as error:
                    why = f"{parent[0]}: {error or 'what is there does not know this job'}"
                    failed = parent
            if time.monotonic() - self._met_s > _LOST_S:
                told = f"for {_LOST_S:.0f} s no other node could be reached: {why}"
                raise StageError("connection-reset", told)
            time.sleep(_AGAIN_S)

    def _pull(self, parent: Address) -> None:
        """All that it has, or until there is a better one. Raises OSError, StrangeError."""
        kept = Future[None]()
        kept.set_result(None)
        index = self._growing.done
        with contextlib.closing(connect(self._keys, wire.BLOCKS, self._link.node, parent)) as line:
            line.send(wire.request(self._item, index, self._end))
            try:
                while index < self._end:
                    if body := line.receive():
                        block, sha256 = self._block(line, index, body)
                        kept.result()
                        kept = self.keeper.submit(self._keep, index, block, sha256)
                        index += 1
                    else:
                        self._met_s = time.monotonic()
                        if self._other(parent):
                            break
            finally:
                kept.result()

    def _block(self, line: Line, index: int, body: bytes) -> tuple[memoryview, bytes]:
        there, length, sha256 = wire.headed(body)
        if there != index:
            raise StrangeError("a block is not the next one")
        block = next(self._buffers)[:length]
        line.receive_into(block)
        return block, sha256

    def _keep(self, index: int, block: memoryview, sha256: bytes) -> None:
        if block and hashlib.sha256(block).digest() != sha256:
            raise StrangeError("a block has another SHA-256")
        try:
            self._growing.write(index, block, sha256)
        except ValueError as error:
            raise StrangeError(str(error)) from error
        except OSError as error:  # is no fault of the parent
            raise StageError("storage", str(error)) from error
        self._met_s = self._grew_s = time.monotonic()

    def _other(self, parent: Address) -> bool:
        """Whether to read from another one, as this one has had nothing new for some time."""
        if self._link.failure is not None:
            raise self._link.failure
        if time.monotonic() - max(self._grew_s, self._link.heard_s) > _LOST_S:
            told = f"for {_LOST_S:.0f} s the first node has not answered"
            raise StageError("connection-reset", told)
        if time.monotonic() - max(self._grew_s, self._asked_s) < Line.silent_s:
            return False
        self._asked_s = time.monotonic()
        return self._link.parent(waits=True) not in (None, parent)
