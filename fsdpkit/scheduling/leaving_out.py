"""Which of the nodes that failed a run a new job is submitted without, as far as it can be."""

from __future__ import annotations

import time
from pathlib import Path

from fsdpkit.config.job import Resources
from fsdpkit.config.placement import Placement
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.site import LoadedSite
from fsdpkit.errors import SchedulerError
from fsdpkit.rendering.directives import resource_directives
from fsdpkit.runs import avoided_nodes, exclusions
from fsdpkit.runs.avoided_nodes import AvoidedNode
from fsdpkit.runs.record import now_s
from fsdpkit.scheduling.live_cluster import LiveCluster


def nodes_to_leave_out(
    runs: Path, resources: Resources, placement: Placement, site: LoadedSite
) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """The nodes that the job leaves out, each with the why; and why others are not left out."""
    notes = avoided_nodes.avoided_on(site.id, runs, now_s())
    if not notes:
        return (), []
    left_out: list[AvoidedNode] = []
    if resources.nodelist:
        used, why = notes, "resources.nodelist says which nodes to use"
    else:
        left_out, used, why = _divided(notes, resources, placement, site.profile)
    names = ", ".join(note.node for note in used)
    return (
        tuple((note.node, _in_words(note)) for note in left_out),
        [f"not avoiding {names}: {why}"] if names else [],
    )


def _divided(
    notes: list[AvoidedNode], resources: Resources, placement: Placement, profile: SiteProfile
) -> tuple[list[AvoidedNode], list[AvoidedNode], str]:
    """Nodes to leave out and nodes to use after all, by what Slurm says of its nodes; and why to
    use them."""
    from fsdpkit.scheduling.slurm_answers import answers_of

    demand = _demand(resources, placement, profile)
    unknown = "how many nodes would be left is unknown"
    try:
        nodes = _as_in_partitions(answers_of(profile.slurm_clusters).live(accounting=False))
    except SchedulerError as error:
        return [], notes, f"{unknown}; {str(error).splitlines()[0]}"
    own = exclusions.expand(resources.exclude or "")
    if not nodes or own is None or resources.reservation:
        return [], notes, unknown
    suitable = [names - set(own) for names in exclusions.suitable(nodes, demand)]
    known = {node.name for node in nodes}
    left_out = exclusions.leave_out(notes, known, suitable, demand.nodes)
    used = [note for note in notes if note.node in known and note not in left_out]
    why = f"too few others would be left for the job, which needs {demand.nodes} nodes"
    return left_out, used, why


def _as_in_partitions(live: LiveCluster) -> list[exclusions.PartitionNode]:
    """The nodes as each of their partitions has them."""
    default = {one.name for one in live.partitions if one.default}
    return [
        exclusions.PartitionNode(
            partition=name,
            is_default=name in default,
            name=node.name,
            up=node.usable and not node.states & {"RESERVED", "UNKNOWN", "REBOOT_ISSUED"},
            cpus=node.cpus or 0,
            memory_mb=node.memory_mb or 0,
            features=frozenset(node.features),
            gres=node.gres,
        )
        for node in live.all_nodes
        for name in node.partitions
    ]


def _demand(resources: Resources, placement: Placement, profile: SiteProfile) -> exclusions.Demand:
    """What each node must have, from the lines that sbatch will read."""
    asked = {d.name: d.value for d in resource_directives(resources, placement, profile)}
    gres = [asked["gres"]] if asked.get("gres") else []
    if gpus := asked.get("gpus-per-node"):
        gres.append(f"gpu:{gpus}")
    return exclusions.Demand(
        nodes=resources.nodes_asked,
        partition=asked.get("partition"),
        cpus=placement.cpus_per_task,
        memory_mb=resources.memory_mb or 0,
        constraint=asked.get("constraint"),
        gres=tuple(one for text in gres for one in str(text).split(",")),
    )


def _in_words(note: AvoidedNode) -> str:
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(note.until_s))
    why = "".join(c if c.isprintable() else " " for c in note.why)
    return f"until {until}: {why[:200]} ({note.run_id})"
