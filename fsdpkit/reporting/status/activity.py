"""What to say about a running job besides its steps: that its script logs none but is working, or
since when it has been idle; and that nothing looks for a request to stop.

A script that logs nothing (`fsdpkit.log`) is judged by what the agents' samples show about its
processes and GPUs, and by when its ranks last printed. Nothing is ended because of that: ranks that
wait for each other also use the CPU, and a quiet script may be computing. A person decides, and is
told what is known.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from fsdpkit.reporting.scales import moment
from fsdpkit.reporting.status.printed import last_print_s
from fsdpkit.runs.history import Attempt, History
from fsdpkit.runs.samples import Sample, read_samples

_SOME_CORES = 0.01
"""Threads of torch that only wake to look at a clock use less."""
_SOME_BYTES_PER_S = 4096
_SOME_PERCENT = 1.0
"""Of a GPU."""


class Activity(NamedTuple):
    """What one node's processes did between two samples."""

    until_s: float
    """Unix time of the later one."""
    cores: float
    bytes_per_s: float
    gpu_percent: float | None
    """Mean over the node's GPUs; None: not told."""
    stepped: bool = False
    """Whether an optimizer has made a step."""

    @property
    def moves(self) -> bool:
        return (
            self.cores >= _SOME_CORES
            or self.bytes_per_s >= _SOME_BYTES_PER_S
            or (self.gpu_percent or 0.0) >= _SOME_PERCENT
            or self.stepped
        )


def remarks(history: History, updated_s: float | None) -> list[str]:
    """Sentences about a training that runs. `updated_s`: when its newest step was logged."""
    if not history.attempts or history.attempts[-1].ending is not None:
        return []
    attempt = history.attempts[-1]
    found = [unheeded(attempt)] if attempt.stop_unheeded else []
    began_s = attempt.launches[-1].began_s if attempt.launches else None
    if began_s is None or (updated_s is not None and updated_s >= began_s):
        return found
    of_nodes = [
        activities(read_samples(attempt.paths.node_samples(node.number)), began_s)
        for node in attempt.nodes
        if node.ended_s is None
    ]
    return [*found, *in_words(of_nodes, last_print_s(history))]


def without_a_group(history: History) -> str | None:
    """That an ended training's ranks did not train together, as far as that is known."""
    newest = history.attempts[-1] if history.attempts else None
    if newest is None or newest.ending is None or newest.made_group is not False:
        return None
    return (
        "its ranks made no process group: each ran by itself and did the same; for one rank, "
        "submit with --nodes 1 --gpus 1"
    )


def unheeded(attempt: Attempt) -> str:
    """That a request to stop will not be seen, and what to do."""
    assert attempt.stop_requested_s is not None
    return (
        f"asked to stop at {moment(attempt.stop_requested_s)}, but its script has not checked: "
        f"it does not call fsdpkit.stop_requested(), or has not got there yet, and runs until it "
        f"ends or is cancelled without --save"
    )


def activities(samples: Sequence[Sample], since_s: float) -> list[Activity]:
    """Between each two neighbours of a node's samples since then; none where processes of it
    ended in between, whose work is no longer counted."""
    found = []
    kept = [one for one in samples if one.time_s >= since_s and one.work_cpu_s is not None]
    for before, after in itertools.pairwise(kept):
        elapsed_s = after.time_s - before.time_s
        cpu_s = (after.work_cpu_s or 0.0) - (before.work_cpu_s or 0.0)
        moved = (after.work_moved_bytes or 0) - (before.work_moved_bytes or 0)
        if elapsed_s <= 0 or cpu_s < 0 or moved < 0:
            continue
        busy = [g.utilization_percent for g in after.gpus if g.utilization_percent is not None]
        percent = sum(busy) / len(busy) if busy else None
        stepped = before.optimizer_steps != after.optimizer_steps
        work = cpu_s / elapsed_s, moved / elapsed_s
        found.append(Activity(after.time_s, *work, percent, stepped))
    return found


def in_words(of_nodes: Sequence[Sequence[Activity]], printed_s: float | None = None) -> list[str]:
    """Of all nodes together: at which rate they work now, or since when none of them has.
    printed_s: when a rank last printed, Unix time."""
    known = [of_node for of_node in of_nodes if of_node]
    if not known:
        return []
    last = [of_node[-1] for of_node in known]
    if any(one.moves for one in last):
        gpus = [one.gpu_percent for one in last if one.gpu_percent is not None]
        parts = [f"{sum(one.cores for one in last):.1f} CPU cores"]
        parts += [f"GPUs to {sum(gpus) / len(gpus):.0f} %"] if gpus else []
        rate = sum(one.bytes_per_s for one in last) / 1e6
        return [
            f"its script logs no steps; its processes use {', '.join(parts)} and read and write "
            f"{rate:,.1f} MB/s"
        ]
    if printed_s is not None and printed_s >= min(of_node[-2:][0].until_s for of_node in known):
        return [
            "its script logs no steps; its processes hardly compute, and last printed at "
            f"{moment(printed_s)}"
        ]
    moved = [one.until_s for of_node in known for one in of_node if one.moves]
    moved += [] if printed_s is None else [printed_s]
    if not moved:
        first = min(of_node[0].until_s for of_node in known)
        return [f"its script logs no steps, and its processes have been idle since {moment(first)}"]
    return [
        "its script logs no steps, and its processes have not computed, read, written or printed "
        f"anything since {moment(max(moved))}"
    ]
