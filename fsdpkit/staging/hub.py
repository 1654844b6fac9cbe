"""Node 0 knows who is there: which node reads from which, how far each one is, what went wrong.

Nodes read from one another as a tree, in the order in which they came: each has two to serve, and
node 0 is the root. A node whose parent fails gets the first one that came before it and has a place
left, and what has failed for two is avoided by all. No circle can come about, because a node that
is still being filled serves later ones only.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fsdpkit.staging.manifest import StageError
from fsdpkit.staging.port import Address, Line, StagePort
from fsdpkit.staging.wire import HUB, AttemptKeys, StrangeError

_CHILDREN = 2
_HEAR_S, _LOOK_S = 5.0, 0.05
_WAIT_S = 5.0
"""A node that has to wait for an answer hears so this often."""


class NodeProgress(NamedTuple):
    """How far a node is."""

    bytes: int
    state: str
    """`copying`, `ready` or `failed`."""
    why: str
    reused: bool
    name: str
    here: bool
    """Whether it is connected."""


@dataclass
class _Member:
    """A node that has come."""

    place: int
    """How many came before it; 0 for node 0."""
    parent: int | None
    """The place of the node that it reads from."""
    name: str = ""
    address: Address = ("", 0)
    line: Line | None = None
    bytes: int = 0
    state: str = "copying"
    why: str = ""
    reused: bool = False
    avoids: set[int] = field(default_factory=set)
    """Places of those that have failed for it."""

    def serves(self, other: _Member) -> bool:
        """Whether that one may read from it."""
        filled = self.place < other.place or (self.state == "ready" and self is not other)
        return filled and self.line is not None and self.state != "failed"


class Hub:
    """What the nodes of an attempt ask and tell."""

    def __init__(self, keys: AttemptKeys, nodes: int, host: str, port: int) -> None:
        """nodes: how many the job has. host: "" listens at all addresses."""
        self._nodes, self._host, self._at = nodes, host, port
        self._port = StagePort(keys, HUB, self._serve)
        self._members: dict[int, _Member] = {}
        self._objects = b""
        self._offered: dict[str, Any] = {}
        self._failed: dict[str, Any] = {}
        self._known, self._lock = threading.Event(), threading.Lock()

    @property
    def refused(self) -> int:
        """How many connections did not show the job's secret."""
        return self._port.refused

    def open(self) -> int:
        """Answer from now on; returns the port. Raises StageError."""
        return self._port.open(self._host, self._at)

    def offer(self, objects: list[bytes]) -> None:
        """Let nodes have what there is to copy: encoded manifests."""
        told = [[len(each), hashlib.sha256(each).hexdigest()] for each in objects]
        self._objects, self._offered = b"".join(objects), {"objects": told}
        self._known.set()

    def fail(self, error: StageError) -> None:
        """Let all nodes know why nothing more is copied."""
        self._failed = {"cause": error.cause, "words": str(error)}
        self._known.set()

    def progress(self) -> dict[int, NodeProgress]:
        """Of each node that has come."""
        return {
            node: NodeProgress(m.bytes, m.state, m.why, m.reused, m.name, m.line is not None)
            for node, m in list(self._members.items())
        }

    def close(self) -> None:
        """Answer no more. If it failed, nodes that copy have some seconds to hear why."""
        until_s = time.monotonic() + _HEAR_S
        while self._failed and self._has_copying() and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        self._port.close()

    def _has_copying(self) -> bool:
        others = [each for node, each in list(self._members.items()) if node]
        return any(each.line is not None and each.state == "copying" for each in others)

    def _serve(self, line: Line) -> None:
        if line.node >= self._nodes:
            raise StrangeError
        member = None
        try:
            member, asked = self._met(line)
            if not asked["again"]:
                self._welcome(line)
            while True:
                self._answer(line, member, decoded(line.receive(at_rest=True)))
        except (KeyError, TypeError, ValueError) as error:
            raise StrangeError from error
        finally:
            if member is not None and member.line is line:
                member.line = None

    def _met(self, line: Line) -> tuple[_Member, dict[str, Any]]:
        asked = decoded(line.receive())
        with self._lock:
            member = self._members.get(line.node)
            if member is None:
                place = 1 + sum(node != 0 for node in self._members) if line.node else 0
                member = _Member(place, (place - 1) // _CHILDREN)
                self._members[line.node] = member
            # The address by which node 0 reaches its own hub may be nobody else's: the others take
            # the one by which they reach the hub.
            member.address = (line.host if line.node else "", int(asked["port"]))
            if member.line is not None:
                member.line.shut()  # the node has lost that one
            member.name, member.line = str(asked["name"]), line
        return member, asked

    def _welcome(self, line: Line) -> None:
        while not self._known.wait(_WAIT_S):
            line.send(encoded({"wait": True}))
        if self._failed:
            line.send(encoded(self._failed))
        else:
            line.send(encoded(self._offered), self._objects)

    def _answer(self, line: Line, member: _Member, asked: dict[str, Any]) -> None:
        if "bytes" in asked:
            member.bytes, member.state = int(asked["bytes"]), str(asked["state"])
            member.why, member.reused = str(asked["why"]), bool(asked["reused"])
            line.send(encoded(self._failed))
        else:
            with self._lock:
                parent = self._parent(member, asked["failed"], asked["waits"])
            line.send(encoded(self._failed or {"parent": parent and parent.address}))

    def _parent(self, member: _Member, failed: Any, waits: bool) -> _Member | None:
        """Whom it is to read from.

        failed: the address of one that did not serve it. waits: its parent has nothing new.
        """
        if 0 not in self._members:
            return None
        members = [*self._members.values()]
        gone = {m.place for m in members if failed == [*m.address]}
        member.avoids |= gone
        able = [m for m in members if m.serves(member)]
        if all(m.place in member.avoids for m in able):
            member.avoids = gone
        left = [m for m in able if m.place not in member.avoids] or able
        now = next((m for m in left if m.place == member.parent), None)
        ahead = [m for m in left if m.bytes > member.bytes]
        if now is not None and (now in ahead or not (waits and ahead)):
            return now
        serving = Counter(m.parent for m in members if m.state == "copying" and m.line)
        doubts = Counter(place for m in members for place in m.avoids)
        chosen = min(
            left if now is None else ahead,
            key=lambda m: (doubts[m.place] > 1, max(serving[m.place], _CHILDREN - 1), m.place),
            default=None,
        )
        member.parent = chosen.place if chosen else None
        return chosen


def encoded(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode()


def decoded(body: bytes) -> dict[str, Any]:
    """Raises StrangeError."""
    try:
        told = json.loads(body)
    except ValueError as error:
        raise StrangeError from error
    if not isinstance(told, dict):
        raise StrangeError
    return told
