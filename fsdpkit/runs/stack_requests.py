"""A request to say where the ranks are, left in a task's directory, and the agents' answers.

    stacks-requested        the request's id; the requester removes it
    node-<i>.stacks.json    the newest answer of a node's agent, in the attempt's directory
    node-<i>.still.json     that a node's ranks do nothing, there as long as it lasts: written and
                            taken away by the agent (launching/stall_watch.py), which ends nothing

Only the head node's agent looks for the request, once a second, and passes it on to the others, so
that 64 nodes do not all poll the shared file system.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from fsdpkit.runs.layout import AttemptPaths, TaskPaths, write_atomically
from fsdpkit.runs.printed_words import PrintedText
from fsdpkit.runs.reading import read_text, record_in

_ID = re.compile(r"[0-9a-f]{16}")
_MOST_OF_A_RANK = 128 << 10


class RankStacks(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's answer."""

    rank: int
    text: PrintedText = ""
    """All threads, as faulthandler writes them: the main thread, called the current one, last."""
    by: Literal["signal", "py-spy"] | None = None
    """How it was taken; None: there is none."""
    why_not: str = ""
    """Why there is none."""
    state: str | None = None
    """`stopped` or `disk-sleep`, of a process that runs no code now."""


class NodeStacks(msgspec.Struct, frozen=True, kw_only=True):
    """One agent's answer."""

    id: str
    node: int
    name: str
    launch: int
    time_s: float
    ranks: tuple[RankStacks, ...] = ()
    """Empty where none runs: they are being started, or the node is a spare."""


def ask(task: TaskPaths) -> str:
    """Leave a request, replacing any other; returns its id. Raises OSError."""
    asked = os.urandom(8).hex()
    write_atomically(task.stacks_requested, asked)
    return asked


def withdraw(task: TaskPaths, asked: str) -> None:
    """Withdraw the request, unless somebody else has asked since."""
    if request(task) == asked:
        with contextlib.suppress(OSError):
            task.stacks_requested.unlink()


def request(task: TaskPaths) -> str | None:
    """The id of the current request; None if there is none, or it is not ours."""
    try:
        text = read_text(task.stacks_requested, 64).strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if _ID.fullmatch(text) else None


def shortened(found: RankStacks) -> RankStacks:
    """With the end of a long text alone, which has the main thread."""
    if len(found.text) <= _MOST_OF_A_RANK:
        return found
    return msgspec.structs.replace(found, text="…\n" + found.text[-_MOST_OF_A_RANK:])


def answer(attempt: AttemptPaths, stacks: NodeStacks) -> None:
    """Write a node's answer. Raises OSError."""
    write_atomically(attempt.node_stacks(stacks.node), msgspec.json.encode(stacks))


def answer_of(attempt: AttemptPaths, node: int, asked: str) -> NodeStacks | None:
    """The node's answer to this request; None if there is none yet."""
    found = record_in(attempt.node_stacks(node), NodeStacks)
    return found if found is not None and (found.id, found.node) == (asked, node) else None


class Stall(NodeStacks, frozen=True, kw_only=True):
    """A node whose ranks have neither computed nor read, written, printed or logged anything."""

    since_s: float
    """Unix time."""
    addresses: Mapping[int, str] = msgspec.field(default_factory=dict)
    """By rank, `host:port` where it is to meet the others, as far as that is known."""


def read_stall(attempt: AttemptPaths, node: int) -> Stall | None:
    """None where its ranks are at work, or the file cannot be read."""
    return record_in(attempt.node_still(node), Stall)


def write_stall(attempt: AttemptPaths, found: Stall) -> None:
    """Raises OSError."""
    data = msgspec.json.encode(found).decode(errors="replace")
    write_atomically(attempt.node_still(found.node), data + "\n")


def remove_stall(attempt: AttemptPaths, node: int) -> None:
    with contextlib.suppress(OSError):
        attempt.node_still(node).unlink()
