"""Ask the agents of a running job where their ranks are, and wait for the answers."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fsdpkit.errors import storage_errors
from fsdpkit.launching.blame import place_of, standing_out
from fsdpkit.runs.history import NodeStory
from fsdpkit.runs.stack_requests import NodeStacks, answer_of, ask, withdraw
from fsdpkit.scheduling.visiting import Visited

WAIT_S = 40.0
"""Ranks have 10 s to begin their answer, py-spy as long, and a file system takes its time."""
_LOOK_S = 0.1


@dataclass(frozen=True)
class StacksAnswer:
    """What came back."""

    visited: Visited
    answers: tuple[NodeStacks, ...]
    """In the order of the nodes."""
    silent: tuple[NodeStory, ...]
    """Nodes without an answer."""

    @property
    def odd_one(self) -> int | None:
        """The rank that all others wait for, as far as it can be told from where they are."""
        ranks = [rank for node in self.answers for rank in node.ranks]
        stopped = [rank.rank for rank in ranks if rank.state is not None]
        if stopped and len(ranks) > 1:
            return stopped[0]
        places = {rank.rank: place_of(rank.text) for rank in ranks if rank.by is not None}
        found = standing_out(places) if len(places) > 1 else None
        return None if found is None else found[0]

    def ranks_of(self, node: NodeStory) -> list[int]:
        """The ranks on a node, as far as the head's agent has placed them."""
        launches = self.visited.attempt.launches
        names = launches[-1].nodes if launches else ()
        each = self.visited.run.record.ranks_per_node
        if node.name not in names:
            return []
        first = names.index(node.name) * each
        return list(range(first, first + each))


def ask_for_stacks(visited: Visited, wait_s: float = WAIT_S) -> StacksAnswer:
    """Where the ranks of all nodes are; returns as soon as all have answered. Raises StorageError
    where the request cannot be written."""
    task, paths = visited.task, visited.attempt.paths
    with storage_errors(task.stacks_requested, "written"):
        asked = ask(task)
    found: dict[int, NodeStacks] = {}
    deadline = time.monotonic() + wait_s
    try:
        while True:
            for node in visited.nodes:
                if node.number not in found and (one := answer_of(paths, node.number, asked)):
                    found[node.number] = one
            if len(found) == len(visited.nodes) or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_S)
    finally:
        withdraw(task, asked)
    silent = tuple(node for node in visited.nodes if node.number not in found)
    return StacksAnswer(visited, tuple(found[number] for number in sorted(found)), silent)
