"""A made-up profile with every limit that the schema has, and requests at the edge of each."""

from __future__ import annotations

from typing import Any

from fsdpkit.config.job import Resources
from fsdpkit.config.partition import MaxTime, NodeType, Partition
from fsdpkit.config.profile import SiteProfile

EDGES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    # partition, a request that just keeps a limit, one that just breaks it
    ("bins", {"nodes": 8, "time": "02:00:00"}, {"nodes": 8, "time": "02:00:01"}),
    ("bins", {"nodes": 9, "time": "06:00:00"}, {"nodes": 9, "time": "06:00:01"}),
    ("bins", {"nodes": 128}, {"nodes": 129}),
    ("bins", {"gpus": 4}, {"gpus": 5}),
    ("bins", {"cpus_per_gpu": 16}, {"cpus_per_gpu": 17}),
    ("bins", {"memory": "256000M"}, {"memory": "256001M"}),
    ("hours", {"nodes": 1, "time": "01:30:00"}, {"nodes": 1, "time": "01:30:01"}),
    # sbatch(1): seconds of a time are rounded up to the next minute, which then counts.
    ("hours", {"nodes": 4, "time": "00:22:00"}, {"nodes": 4, "time": "00:22:01"}),
    ("whole", {"gpus": 4}, {"gpus": 3}),
    ("several", {"nodes": 2, "gpus": 4}, {"nodes": 2, "gpus": 3}),
    ("several", {"nodes": 1, "gpus": 3}, {"nodes": 1, "gpus": 5}),
    ("job", {"nodes": 1, "gpus": 4}, {"nodes": 1, "gpus": 3}),
    ("job", {"nodes": 16, "gpus": 1}, {"nodes": 17, "gpus": 1}),
    ("multi", {"nodes": 1, "gpus": 2, "time": "4:00:00"}, {"nodes": 1, "time": "04:00:01"}),
    ("multi", {"gpus": 2, "time": "2:00:00"}, {"gpus": 2, "time": "02:00:01"}),
    ("multi", {"gpus": 2}, {"gpus": 1}),
    ("multi", {"nodes": 5, "gpus": 2}, {"nodes": 6, "gpus": 2}),
    ("all", {"nodes": 3, "time": "03:20:00"}, {"nodes": 3, "time": "03:20:01"}),
    ("all", {"nodes": 3}, {"nodes": 2}),
    ("all", {"nodes": 9}, {"nodes": 10}),
]


def asked(partition: str, resources: dict[str, Any]) -> Resources:
    return Resources(
        **{"nodes": 2, "gpus": 4, "time": "00:15:00", "partition": partition, **resources}
    )


def beyond() -> list[Resources]:
    """A request that just breaks each limit."""
    return [asked(partition, over) for partition, _, over in EDGES]


def made_up() -> SiteProfile:
    """Every limit that the schema has, none of which a packaged profile needs to have."""
    node = NodeType(gpus=4, cpus=64, memory_mb=256_000, nodes=300)
    bins = [MaxTime(nodes=8, time="02:00:00"), MaxTime(nodes=64, time="06:00:00")]
    return SiteProfile(
        schema="fsdpkit.site/1",
        title="a made-up cluster",
        node_types={"node": node, "small": NodeType(gpus=2, nodes=5)},
        partitions={
            "bins": Partition(node_type="node", max_time_by_nodes=bins, max_nodes=128),
            "hours": Partition(node_type="node", max_node_hours=1.5, max_nodes=4),
            "whole": Partition(node_type="node", whole_nodes="required", min_nodes=2),
            "several": Partition(node_type="node", whole_nodes="required-multinode"),
            "job": Partition(node_type="node", min_gpus_per_job=4, max_gpus_per_job=16),
            "multi": Partition(
                node_type="small", max_time="4:00:00", max_time_multinode="2:00:00", min_gpus=2
            ),
            "all": Partition(
                node_type="node", max_node_hours=10, max_time="08:00:00", max_nodes=9, min_nodes=3
            ),
        },
    )
