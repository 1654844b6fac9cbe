"""Which of the avoided nodes a job excludes: never so many that too few are left to run it.

Slurm never uses an excluded node, so a job that excludes too many waits for ever. A node is
therefore excluded only if Slurm's own list of nodes shows that enough others suit the job; without
that list, none is. Pure: text and names in, names out.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from fsdpkit.runs.avoided_nodes import AvoidedNode

SINFO_FORMAT = "%P|%N|%t|%c|%m|%f|%G"
"""What `nodes_of` reads: partition, name, state, CPUs, megabytes, features, generic resources."""

_UP = {"idle", "mix", "alloc", "comp", "plnd"}
_DOUBTFUL = "*$"
"""Flags behind a state: not responding, under maintenance."""
_MOST_NAMES = 100_000
_WORD = re.compile(r"(?:[A-Za-z0-9._-]|\[[0-9,-]+\])+")


class PartitionNode(msgspec.Struct, frozen=True):
    """A node as one partition has it."""

    partition: str
    name: str
    up: bool
    cpus: int
    memory_mb: int
    features: frozenset[str]
    gres: str

    def is_like(self, other: PartitionNode, *, features: bool) -> bool:
        """Whether a job that fits one fits the other. features: whether the job asks for some."""
        same = (self.cpus, self.memory_mb, self.gres) == (other.cpus, other.memory_mb, other.gres)
        return same and (not features or self.features == other.features)


def nodes_of(text: str) -> list[PartitionNode]:
    """The nodes in the output of `sinfo -h -N -o SINFO_FORMAT`; other lines are skipped."""
    found = []
    for line in text.splitlines():
        match line.strip().split("|"):
            case [partition, name, state, cpus, memory, features, gres] if name:
                found.append(
                    PartitionNode(
                        partition=partition.rstrip("*"),
                        name=name,
                        up=_is_up(state),
                        cpus=_number(cpus),
                        memory_mb=_number(memory),
                        features=frozenset(features.split(",")) - {"(null)"},
                        gres=re.sub(r"\([^)]*\)", "", gres),  # without the sockets it is bound to
                    )
                )
    return found


def _is_up(state: str) -> bool:
    word = re.match(r"[a-z]*", state)
    return word is not None and word[0] in _UP and not set(state[word.end() :]) & set(_DOUBTFUL)


def _number(text: str) -> int:
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else 0


def alike(
    nodes: Sequence[PartitionNode], examples: Collection[str], *, features: bool
) -> list[AbstractSet[str]]:
    """Names of the nodes that are up and similar to one of the `examples`, which the job had."""
    had = [node for node in nodes if node.name in examples]
    found: dict[str, set[str]] = {}
    for node in nodes:
        if node.up and any(node.is_like(one, features=features) for one in had):
            found.setdefault(node.partition, set()).add(node.name)
    return list(found.values())


def leave_out(
    avoided: Iterable[AvoidedNode],
    known: Collection[str],
    suitable: Sequence[AbstractSet[str]],
    needed: int,
) -> list[AvoidedNode]:
    """Those of the avoided nodes, newest first, without which `needed` suitable nodes are left in
    one of the job's partitions. known: what Slurm calls a node, and takes as an exclusion."""
    out: list[AvoidedNode] = []
    for note in sorted(avoided, key=lambda one: (-one.since_s, one.node)):
        names = {one.node for one in out} | {note.node}
        if note.node in known and any(len(nodes - names) >= needed for nodes in suitable):
            out.append(note)
    return out


def expand(text: str) -> tuple[str, ...] | None:
    """The names in a host list of Slurm's (`node[08-10,12],gpu1`); None if it is none.

    >>> expand("n[9-11],m1")
    ('n9', 'n10', 'n11', 'm1')
    """
    names: list[str] = []
    for word in filter(None, re.split(r",(?![^\[]*\])", text)):
        if not _WORD.fullmatch(word):
            return None
        parts = [
            _numbers(part) if number % 2 else [part]
            for number, part in enumerate(re.split(r"\[([^\[\]]*)\]", word))
        ]
        total = math.prod(map(len, parts))
        if not total or total + len(names) > _MOST_NAMES:
            return None
        names += ["".join(parts) for parts in itertools.product(*parts)]
    return tuple(names)


def _numbers(ranges: str) -> list[str]:
    """`08-10,12` in full; empty if it is none."""
    found: list[str] = []
    for one in ranges.split(","):
        bounds = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", one, re.ASCII)
        if bounds is None:
            return []
        first, last = bounds[1], bounds[2] or bounds[1]
        if int(last) - int(first) >= _MOST_NAMES or int(last) < int(first):
            return []
        found += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return found
