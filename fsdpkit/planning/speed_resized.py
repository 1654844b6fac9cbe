"""A recorded step as it would be on another number of nodes, without recording it again.

What a rank computes of its batch stays; what it sends and updates follows from how its groups grow:
one of all ranks grows with them, one inside a node stays, and one of replicas, which has a rank on
each of several nodes, grows with the nodes. Sizes of messages are of whole tensors and stay, but
what replicas exchange is a shard, and stays as its group of shards does. The optimizer's bytes are
of a rank's shard. A job that is planned on those nodes itself is recorded there, and not made of
another.
"""

from __future__ import annotations

from msgspec.structs import replace

from fsdpkit.planning.work import Collective, Computation, Operation, StepWork


def on_nodes(work: StepWork, nodes: int) -> StepWork:
    """The same step of one rank of `nodes` times as many ranks as a node has."""
    ranks = nodes * work.ranks_per_node
    if ranks == work.ranks:
        return work
    shards = max(
        (one.group_size for one in work.collectives() if one.kind == "all_gather"), default=1
    )
    smaller = work.ranks / ranks if shards == work.ranks else 1.0
    operations = tuple(_on(one, work, nodes, ranks, smaller) for one in work.operations)
    return replace(work, operations=operations, ranks=ranks)


def _on(one: Operation, work: StepWork, nodes: int, ranks: int, smaller: float) -> Operation:
    if isinstance(one, Computation):
        if one.phase != "optimizer":
            return one
        return replace(one, bytes=max(1, round(one.bytes * smaller)))
    if not isinstance(one, Collective):
        return replace(one, bytes=max(1, round(one.bytes * smaller)))
    if one.group_size == work.ranks:
        return replace(one, group_size=ranks)
    if one.kind == "all_reduce" and one.group_size > one.group_per_node:
        return replace(one, group_size=max(1, round(one.group_size * nodes / work.nodes)))
    return one
