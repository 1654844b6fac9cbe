"""A node's connection to the hub. One that breaks is made anew when there is something to say."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from typing import Any

from fsdpkit.staging.hub import decoded, encoded
from fsdpkit.staging.manifest import MOST_BYTES, StageError
from fsdpkit.staging.port import Address, Line, connect
from fsdpkit.staging.wire import HUB, StageKeys, StrangeError

_AGAIN_S = 0.5
_FIRST_S = 600.0


class HubGoneError(Exception):
    """The hub does not answer."""


class HubLink:
    """Asks and tells the hub, for one node. Threads may share it."""

    def __init__(self, keys: StageKeys, node: int, name: str, hub: Address) -> None:
        self._keys, self.node, self._name, self._hub = keys, node, name, hub
        self._line: Line | None = None
        self._lock = threading.Lock()
        self._port = 0
        self.heard_s = time.monotonic()
        """When the hub last answered."""
        self.failure: StageError | None = None
        """Why nothing more is copied, as the hub said."""

    def hello(self, port: int, within_s: float = _FIRST_S) -> list[bytes]:
        """Tell where this node serves others; the manifests, once they are known.

        within_s: for so long the hub may be out of reach. Raises StageError.
        """
        while True:
            try:
                with self._lock:
                    return self._hello(port)
            except (OSError, StrangeError) as error:
                self.close()
                if time.monotonic() - self.heard_s > within_s:
                    where = f"{self._hub[0]}:{self._hub[1]}"
                    why = str(error) or "what answers there does not know this job's secret"
                    told = f"the first node, {where}, cannot be reached: {why}"
                    raise StageError("connection-reset", told) from error
                time.sleep(_AGAIN_S)

    def parent(self, failed: Address | None = None) -> Address | None:
        """Where to read from; None if nobody is there yet. failed: where it went wrong.

        Raises StageError if the hub says that nothing more is copied, HubGoneError.
        """
        found = self._ask({"failed": failed})["parent"]
        return found and (str(found[0]) or self._hub[0], int(found[1]))

    def tell(self, done: int, state: str, why: str = "", reused: bool = False) -> None:
        """How far this node is. A hub that is gone does not hear it. done: in bytes."""
        with contextlib.suppress(HubGoneError, StageError):
            self._ask({"bytes": done, "state": state, "why": why, "reused": reused})

    def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _hello(self, port: int) -> list[bytes]:
        line = self._connected(port, again=False)
        while (told := self._heard(line)).get("wait"):
            pass
        objects = []
        for size, digest in told["objects"]:
            each = bytearray(min(size, MOST_BYTES))
            line.receive_into(memoryview(each))
            if hashlib.sha256(each).hexdigest() != digest:
                raise StrangeError
            objects.append(bytes(each))
        return objects

    def _connected(self, port: int, again: bool) -> Line:
        if self._line is None:
            self._port, self._line = port, connect(self._keys, HUB, self.node, self._hub)
            self._line.send(encoded({"name": self._name, "port": port, "again": again}))
        return self._line

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            try:
                line = self._connected(self._port, again=True)
                line.send(encoded(message))
                return self._heard(line)
            except (OSError, StrangeError) as error:
                self.close()
                raise HubGoneError(str(error)) from error

    def _heard(self, line: Line) -> dict[str, Any]:
        told = decoded(line.receive())
        self.heard_s = time.monotonic()
        if "cause" in told:
            self.failure = StageError(str(told["cause"]), str(told["words"]))
            raise self.failure
        return told
