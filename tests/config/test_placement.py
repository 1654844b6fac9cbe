"""The profile decides before anything is queued. Facts: OSC's own configuration."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpkit.config.job import Resources
from fsdpkit.config.placement import Placement, place
from fsdpkit.config.profile import NodeType, Partition, SiteProfile
from fsdpkit.config.site import LoadedSite, load_site
from fsdpkit.errors import UsageError
from fsdpkit.rendering.directives import resource_directives


def placed(site: str, nodes: int, gpus: int, **other: Any) -> Placement:
    given = {"time": "01:00:00", **other}
    if site.startswith("osc-"):
        given = {"account": "PAS2136", **given}
    return place(Resources(nodes=nodes, gpus=gpus, **given), load_site(site))


def refusal(site: str, nodes: int, gpus: int, **other: Any) -> str:
    with pytest.raises(UsageError) as refused:
        placed(site, nodes, gpus, **other)
    return str(refused.value)


FITS = [
    # site, nodes, gpus, other resources -> what selects the nodes, cores of the node's one task
    ("osc-ascend", 2, 4, {}, {"partition": "quad"}, 88),
    ("osc-ascend", 4, 4, {}, {"partition": "quad"}, 88),
    ("osc-ascend", 2, 2, {}, {"partition": "nextgen"}, 80),
    ("osc-ascend", 16, 3, {}, {"partition": "nextgen"}, 120),
    ("osc-ascend", 2, 1, {}, {"partition": "nextgen"}, 40),
    ("osc-ascend", 1, 4, {"time": "7-00:00:00"}, {"partition": "quad"}, 88),
    ("osc-ascend", 1, 1, {"partition": "debug-quad"}, {"partition": "debug-quad"}, 22),
    ("osc-ascend", 2, 2, {"memory": "900G"}, {"partition": "quad"}, 44),
    ("osc-cardinal", 2, 4, {}, {"partition": "gpu"}, 96),
    ("osc-cardinal", 12, 4, {}, {"partition": "gpu"}, 96),
    ("osc-cardinal", 1, 1, {"cpus_per_gpu": 10}, {"partition": "gpu"}, 10),
    ("osc-pitzer", 4, 2, {}, {"constraint": "40core"}, 40),
    ("osc-pitzer", 6, 2, {}, {"constraint": "48core"}, 48),
    ("osc-pitzer", 1, 4, {}, {}, 48),
    ("generic", 2, 4, {}, {}, 4),
    ("generic", 2, 4, {"partition": "any"}, {"partition": "any"}, 4),
    ("generic", 2, 4, {"cpus_per_gpu": 8}, {}, 32),
]


@pytest.mark.parametrize(("site", "nodes", "gpus", "other", "select", "cpus"), FITS)
def test_the_first_node_type_that_fits_is_chosen(
    site: str, nodes: int, gpus: int, other: dict[str, Any], select: dict[str, str], cpus: int
) -> None:
    placement = placed(site, nodes, gpus, **other)
    assert placement.select == select
    assert placement.cpus_per_task == cpus


def test_a61_a_shape_that_no_node_type_has_is_refused_with_those_that_fit() -> None:
    assert refusal("osc-pitzer", 2, 4).splitlines() == [
        "2 nodes x 4 GPUs for 01:00:00 does not fit OSC Pitzer:",
        "  gpu (NVIDIA V100 16 GB, 2 per node, up to 4 nodes): 4 GPUs per node asked, a node has 2",
        "  gpu-exp (NVIDIA V100 32 GB, 2 per node, up to 6 nodes): "
        "4 GPUs per node asked, a node has 2",
        "  gpu-quad (NVIDIA V100S 32 GB, NVLink, 4 per node, up to 1 node): "
        "2 nodes asked, at most 1 allowed",
        "What would fit: --nodes 4 --gpus 2 on gpu; --nodes 4 --gpus 2 on gpu-exp.",
    ]


REFUSED = [
    ("osc-ascend", 5, 4, {}, "5 nodes asked, at most 4 allowed"),
    ("osc-ascend", 2, 8, {}, "8 GPUs per node asked, a node has 4"),
    ("osc-ascend", 17, 2, {}, "17 nodes asked, at most 16 allowed"),
    ("osc-ascend", 2, 4, {"time": "8-0"}, "8-00:00:00 asked, the limit is 7-00:00:00"),
    ("osc-ascend", 2, 4, {"time": "8-0"}, "--nodes 2 --gpus 4 --time 7-00:00:00 on quad"),
    ("osc-ascend", 2, 4, {"partition": "nextgen"}, "4 GPUs per node asked, a node has 3"),
    ("osc-ascend", 1, 4, {"partition": "debug-quad", "time": "2:00:00"}, "the limit is 01:00:00"),
    ("osc-ascend", 2, 4, {"memory": "2T"}, "2097152 MB per node asked, a node has 943104"),
    ("osc-ascend", 2, 4, {"cpus_per_gpu": 30}, "120 cores per node asked, a node has 88"),
    ("osc-ascend", 2, 4, {"partition": "quadd"}, "Did you mean 'quad'? Known: nextgen, quad,"),
    ("osc-ascend", 2, 4, {"partition": "batch"}, "has no partition 'batch' in its profile"),
    ("osc-cardinal", 13, 4, {}, "13 nodes asked, at most 12 allowed"),
    ("osc-pitzer", 1, 5, {}, "5 GPUs per node asked, a node has 4"),
    ("osc-pitzer", 1, 2, {"partition": "gpu-quad"}, "at least 3 GPUs per node must be asked for"),
]


@pytest.mark.parametrize(("site", "nodes", "gpus", "other", "reason"), REFUSED)
def test_what_does_not_fit_is_refused_with_the_reason(
    site: str, nodes: int, gpus: int, other: dict[str, Any], reason: str
) -> None:
    assert reason in refusal(site, nodes, gpus, **other)


def test_a_missing_account_is_refused_with_the_command_that_lists_them() -> None:
    answer = refusal("osc-ascend", 2, 4, account=None)
    assert "OSC Ascend needs an account (such as PAS2136): add --account" in answer
    assert "sacctmgr -nP show assoc user=$USER" in answer


def test_spare_nodes_count_towards_a_partition_s_limits() -> None:
    assert placed("osc-cardinal", 10, 4, spare=2).partition == "gpu"
    told = refusal("osc-cardinal", 11, 4, spare=2)
    assert "11 nodes and 2 spare x 4 GPUs" in told
    assert "13 nodes asked, 2 of them spare, at most 12 allowed" in told


def test_a_slow_partition_is_never_chosen_by_itself() -> None:
    for nodes, gpus in [(1, 1), (2, 4), (1, 3)]:
        chosen = placed("osc-ascend", nodes, gpus).partition
        assert chosen in ("nextgen", "quad")


@pytest.mark.parametrize(
    ("changes", "memory_mb"),
    [
        ({"gpus": 1}, 181 * 1024),  # not above the 7,744 MB of each of its 24 cores
        ({"gpus": 2}, 0),  # leaves no GPU to anybody, so all the memory
        ({"gpus": 1, "memory": "64G"}, 65_536),
        ({"gpus": 1, "exclusive": True}, 0),
        ({"gpus": 1, "partition": "capped"}, 93 * 1024),  # 24 cores of 4,000 MB
        ({"gpus": 2, "partition": "capped"}, 187 * 1024),
        ({"gpus": 1, "partition": "all"}, 0),
        ({"gpus": 2, "partition": "never"}, None),
        ({"gpus": 1, "partition": "unknown"}, None),
    ],
)
def test_a_job_asks_for_its_gpus_share_of_the_memory(
    changes: dict[str, Any], memory_mb: int | None
) -> None:
    """So that another job gets the GPUs it leaves."""
    node = NodeType(gpus=2, cpus=48, memory_mb=371_712)
    profile = SiteProfile(
        schema="fsdpkit.site/1",
        title="a cluster",
        node_types={"node": node, "unknown": NodeType(gpus=2)},
        partitions={
            "main": Partition(node_type="node"),
            "capped": Partition(node_type="node", memory="share", max_memory_per_cpu_mb=4000),
            "all": Partition(node_type="node", memory="all"),
            "never": Partition(node_type="node", memory="never"),
            "unknown": Partition(node_type="unknown"),
        },
    )
    resources = Resources(**{"nodes": 1, "time": "1:00:00", **changes})
    placement = place(resources, LoadedSite("a", profile, ()))
    assert placement.memory_mb == memory_mb
    told = {d.name: d.value for d in resource_directives(resources, placement, profile)}
    assert told.get("mem") == {None: None, 0: "0"}.get(memory_mb, f"{memory_mb}M")


UNLIKE = {
    "a100x4": NodeType(gpus=4, cpus=64, nodes=1, gpu_type="a100"),
    "v100x4": NodeType(gpus=4, cpus=32, nodes=1, gpu_type="v100"),
    "v100x2": NodeType(gpus=2, cpus=32, nodes=2, gpu_type="v100"),
}
MIXED = SiteProfile(
    schema="fsdpkit.site/1",
    title="a department's cluster",
    node_types=UNLIKE,
    partitions={
        "all": Partition(node_types=list(UNLIKE)),
        "a100": Partition(node_type="a100x4", automatic=False, max_gpus_per_user=2),
        "v100": Partition(node_type="v100x4", automatic=False),
        "two": Partition(node_type="v100x2", automatic=False),
        "few": Partition(node_type="v100x2", automatic=False, max_gpu_hours=1, max_gpus_per_node=1),
        "debug": Partition(node_type="v100x4", automatic=False, offered=False),
        "gold": Partition(node_type="v100x4", automatic=False, offered=False, qos="gold"),
    },
)


def on_mixed(nodes: int, gpus: int, partition: str | None = None) -> Placement:
    resources = Resources(nodes=nodes, gpus=gpus, time="1:00:00", partition=partition)
    return place(resources, LoadedSite("mixed", MIXED, ()))


@pytest.mark.parametrize(
    ("nodes", "gpus", "cpus", "gpu_type"), [(4, 2, 16, None), (2, 4, 32, None), (4, 1, 8, None)]
)
def test_unlike_nodes_count_together_where_each_has_enough(
    nodes: int, gpus: int, cpus: int, gpu_type: str | None
) -> None:
    placement = on_mixed(nodes, gpus)
    assert (placement.cpus_per_task, placement.node_type.gpu_type) == (cpus, gpu_type)
    with pytest.raises(UsageError, match="nodes asked, the cluster has"):
        on_mixed(nodes + 1, gpus)


def test_of_several_partitions_those_are_asked_for_that_fit() -> None:
    assert on_mixed(1, 2, "v100,two").select == {"partition": "v100,two"}
    fitting = on_mixed(1, 4, "two,v100")
    assert (fitting.select, fitting.node_type.gpu_type) == ({"partition": "v100"}, "v100")
    assert "partition two" in fitting.warnings[0]
    assert on_mixed(1, 4, "a100,v100").node_type.gpu_type is None, "a type would rule one out"
    with pytest.raises(UsageError, match="another way"):
        on_mixed(1, 4, "v100,gold")
    with pytest.raises(UsageError, match="no partition 'else'"):
        on_mixed(1, 4, "v100,else")


def test_a_partition_s_name_stands_for_all_ways_to_ask_for_it() -> None:
    ways = {
        "main": Partition(node_type="a100x4"),
        "main-any": Partition(node_types=list(UNLIKE), select={"partition": "main"}),
        "main-mig": Partition(node_type="v100x2", select={"partition": "main"}, offered=False),
    }
    site = LoadedSite("c", msgspec.structs.replace(MIXED, partitions=ways), ())
    resources = Resources(nodes=2, gpus=4, time="1:00:00", partition="main")
    placement = place(resources, site)
    assert (placement.select, placement.node_type.gpu_type) == ({"partition": "main"}, None)
    one = place(msgspec.structs.replace(resources, nodes=1), site)
    assert one.node_type.gpu_type == "a100"


def test_what_a_person_may_never_have_at_a_time_is_chosen_last_and_not_offered() -> None:
    ways = {"a": Partition(max_gpus_per_user=2), "b": Partition()}
    profile = msgspec.structs.replace(MIXED, partitions=ways)
    resources = Resources(nodes=1, gpus=4, time="1:00:00")
    assert place(resources, LoadedSite("c", profile, ())).partition == "b"
    with pytest.raises(UsageError) as refused:
        on_mixed(1, 4, "two")
    assert "--partition all; --partition v100" in str(refused.value)


def test_gpu_hours_and_gpus_of_a_node_are_limits_of_a_job() -> None:
    with pytest.raises(UsageError) as refused:
        on_mixed(2, 2, "few")
    assert "a job may have 1 of each" in str(refused.value)
    assert "the limit is 00:15:00 for 4 GPUs (1 GPU-hours a job)" in str(refused.value)
