"""Which nodes a job excludes when it is requeued.

Slurm never removes a node from a job's exclude list. So each time the nodes that fsdpkit excluded
before are replaced by those to avoid now, as far as enough nodes are left; nodes that a person
excluded stay.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fsdpkit.runs.avoided_nodes import AvoidedNode
from fsdpkit.runs.exclusions import PartitionNode, alike, expand, leave_out


@dataclass(frozen=True)
class Exclusions:
    """Of a job that is queued again."""

    left_out: tuple[str, ...]
    """By fsdpkit."""
    change: str | None
    """What Slurm is to have as the job's exclusions; None: what it has."""


def exclusions(
    avoided: Sequence[AvoidedNode],
    *,
    present: str | None,
    own: str,
    before: Collection[str],
    nodes: Sequence[PartitionNode],
    had: Sequence[str],
    gone: Collection[str] = (),
    features: bool = False,
    chosen: bool = False,
) -> Exclusions:
    """What to leave out of the next attempt.

    present: the exclusions that Slurm has, None if it did not say; own: the job's own; before: what
    fsdpkit has left out of this job up to now. nodes: what sinfo says; had: the nodes of this
    attempt, spares included. gone: nodes that fell silent and do not count as left, whatever sinfo
    says, which hears of a loss minutes later. features: whether the job asks for some. chosen:
    whether it names its nodes or a reservation.
    """
    now, asked = expand(present) if present is not None else None, expand(own)
    if now is None or asked is None:
        return Exclusions((), None)
    by_hand = [name for name in now if name not in before and name not in asked]
    persons = {*asked, *by_hand}
    out: list[AvoidedNode] = []
    if not chosen:
        left = [names - persons - {*gone} for names in alike(nodes, had, features=features)]
        known = {node.name for node in nodes} - persons
        out = leave_out(avoided, known, left, len(had))
    left_out = tuple(note.node for note in out)
    wanted = ",".join(filter(None, [own, *by_hand, *left_out]))
    same = persons | {*left_out} == {*now}
    return Exclusions(left_out, None if same else wanted)
