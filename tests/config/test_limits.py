"""Every limit of every profile: what just keeps it fits, what just breaks it is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpkit.config.job import Resources
from fsdpkit.config.partition import MaxTime, NodeType, Partition
from fsdpkit.config.placement import Placement, place
from fsdpkit.config.profile import Login, SiteProfile, SlurmFacts
from fsdpkit.config.site import LoadedSite, load_site
from fsdpkit.config.units import format_time
from fsdpkit.errors import UsageError
from fsdpkit.rendering.directives import resource_directives
from tests.config.limit_requests import Asked, edges, sites, ways

CASES = [
    pytest.param(site, name, edge, id=f"{site.id}-{name}-{edge.key}")
    for site in sites()
    for name, partition, node in ways(site.profile)
    for edge in edges(partition, node)
]


def placed(site: LoadedSite, partition: str | None, asked: Asked) -> Placement:
    resources = Resources(
        nodes=asked.nodes,
        gpus=asked.gpus,
        time=format_time(asked.time_s),
        account=site.profile.account.example or "project",
        partition=partition,
        cpus_per_gpu=asked.cpus_per_gpu,
        memory=None if asked.memory_mb is None else f"{asked.memory_mb}M",
    )
    return place(resources, site)


@pytest.mark.parametrize(("site", "partition", "edge"), CASES)
def test_a_limit_is_kept_to_the_last_node_gpu_and_second(
    site: LoadedSite, partition: str | None, edge: Any
) -> None:
    if edge.inside is not None:
        assert placed(site, partition, edge.inside).partition == partition
    with pytest.raises(UsageError, match="does not fit"):
        placed(site, partition, edge.outside)


def test_every_profile_but_one_without_facts_has_a_limit_here() -> None:
    checked = {case.values[0].id for case in CASES}
    without = {"generic", "drac-fir", "drac-narval", "drac-nibi", "drac-rorqual"}
    assert {site.id for site in sites()} - checked == without


def asked(partition: Partition, node: NodeType | None = None, **resources: Any) -> Placement:
    facts = {key: resources.pop(key) for key in ("slurm", "login") if key in resources}
    profile = SiteProfile(
        schema="fsdpkit.site/1",
        title="C",
        node_types={"n": node or NodeType(gpus=4)},
        partitions={"p": msgspec.structs.replace(partition, node_type="n")},
        **facts,
    )
    given = {"nodes": 2, "gpus": 4, "time": "01:00:00", **resources}
    return place(Resources(**given), LoadedSite("c", profile, ()))


def refusal(*args: Any, **resources: Any) -> str:
    with pytest.raises(UsageError) as refused:
        asked(*args, **resources)
    return str(refused.value)


BINS = [MaxTime(nodes=91, time="02:00:00"), MaxTime(nodes=183, time="06:00:00")]


@pytest.mark.parametrize(
    ("partition", "resources", "told", "fits"),
    [
        (
            Partition(max_time_by_nodes=BINS),
            {"time": "3:00:00"},
            "03:00:00 asked, the limit is 02:00:00",
            "What would fit: --nodes 2 --gpus 4 --time 02:00:00 on p.",
        ),
        (
            Partition(max_node_hours=1.5, max_nodes=4),
            {"nodes": 4, "time": "30"},
            "00:30:00 asked, the limit is 00:22:00 for 4 nodes (1.5 node-hours a job)",
            "What would fit: --nodes 4 --gpus 4 --time 00:22:00 on p.",
        ),
        (
            Partition(max_gpus_per_job=4),
            {},
            "8 GPUs asked in all, a job may have at most 4",
            "Nearest that would fit: --nodes 1 --gpus 4 on p.",
        ),
        (
            Partition(min_gpus_per_job=16),
            {},
            "8 GPUs asked in all, a job must have at least 16",
            "Nearest that would fit: --nodes 4 --gpus 4 on p.",
        ),
        (
            Partition(whole_nodes="required"),
            {"nodes": 4, "gpus": 2},
            "2 GPUs per node asked, all 4 of a node must be used",
            "What would fit: --nodes 2 --gpus 4 on p.",
        ),
        (
            Partition(min_nodes=4),
            {},
            "2 nodes asked, at least 4 must be",
            "What would fit: --nodes 4 --gpus 2 on p.",
        ),
        (
            Partition(max_node_hours=2, max_time="00:20:00"),
            {"nodes": 4},
            "01:00:00 asked, the limit is 00:20:00\n",
            "What would fit: --nodes 4 --gpus 4 --time 00:20:00 on p.",
        ),
        (
            Partition(max_time="5"),
            {},
            "the limit is 00:05:00, and a job here needs more than 00:05:00",
            "",
        ),
    ],
)
def test_a_refusal_names_the_fact_and_what_would_fit(
    partition: Partition, resources: dict[str, Any], told: str, fits: str
) -> None:
    answer = refusal(partition, **resources)
    assert told in answer
    assert fits in answer


def test_spare_nodes_count_for_every_limit_of_a_job() -> None:
    assert "12 GPUs asked in all" in refusal(Partition(max_gpus_per_job=8), spare=1)
    assert "for 3 nodes" in refusal(Partition(max_node_hours=2), spare=1)
    assert asked(Partition(max_gpus_per_job=8)).partition == "p"


def test_the_limits_of_a_person_or_a_project_warn_and_refuse_nothing() -> None:
    for key, told in (
        ("max_gpus_per_user", "8 GPUs, and one person may use 4 at a time"),
        ("max_gpus_per_account", "8 GPUs, and one project may use 4 at a time"),
        ("max_nodes_per_user", "2 nodes, and one person may use 1 at a time"),
    ):
        limit = 1 if "nodes" in key else 4
        (warning,) = asked(Partition(**{key: limit})).warnings
        assert told in warning
        assert asked(Partition(**{key: 8})).warnings == ()


def test_gpus_that_stay_unused_on_whole_nodes_are_mentioned() -> None:
    (warning,) = asked(Partition(whole_nodes="given"), gpus=1).warnings
    assert "3 of 4 GPUs of each stay unused" in warning
    assert asked(Partition(whole_nodes="given")).warnings == ()


def test_a_constraint_that_its_nodes_cannot_have_is_refused_as_far_as_it_can_be_read() -> None:
    node = NodeType(gpus=4, features=["v100", "ib"])
    told = "constraint a100 asked, its nodes have v100, ib"
    assert told in refusal(Partition(), node, constraint="ib&a100")
    for unread in ("v100", "ib&v100", "a100|v100", "[rack1|rack2]", "!a100"):
        assert asked(Partition(), node, constraint=unread).partition == "p"


def test_a_partition_is_asked_for_by_its_table_s_name() -> None:
    assert asked(Partition()).select == {"partition": "p"}
    assert asked(Partition(select={})).select == {}
    assert asked(Partition(select={"constraint": "x"})).select == {"constraint": "x"}
    assert asked(Partition(qos="q", constraint="f")).select == {
        "partition": "p",
        "qos": "q",
        "constraint": "f",
    }


def test_a_job_s_own_qos_wins_and_its_constraint_adds_up() -> None:
    profile = SiteProfile(
        schema="fsdpkit.site/1", title="C", partitions={"p": Partition(qos="q", constraint="f")}
    )
    resources = Resources(nodes=1, gpus=1, time="60", qos="mine", constraint="g")
    found = place(resources, LoadedSite("c", profile, ()))
    told = {d.name: d.value for d in resource_directives(resources, found, profile)}
    assert (told["partition"], told["qos"], told["constraint"]) == ("p", "mine", "f&g")


def test_gpus_are_asked_for_by_the_node_s_type_before_the_site_s() -> None:
    profile = SiteProfile(
        schema="fsdpkit.site/1",
        title="C",
        node_types={"n": NodeType(gpus=8, gpu_type="h200")},
        slurm=SlurmFacts(ntasks=True),
    )
    resources = Resources(nodes=2, gpus=8, time="60")
    found = place(resources, LoadedSite("c", profile, ()))
    told = {d.name: d.value for d in resource_directives(resources, found, profile)}
    assert (told["gpus-per-node"], told["ntasks"]) == ("h200:8", "2")


@pytest.mark.parametrize(
    ("slurm", "told"),
    [
        (SlurmFacts(version="20.11"), "may run Slurm 20.11, older than the 22.05"),
        (SlurmFacts(launcher="ibrun"), "asks for ibrun to start tasks; the script uses srun"),
        (SlurmFacts(flavour="psslurm"), "runs psslurm in place of slurmd"),
    ],
)
def test_a_slurm_that_nobody_has_tried_is_mentioned(slurm: SlurmFacts, told: str) -> None:
    (warning,) = asked(Partition(), slurm=slurm).warnings
    assert told in warning
    ours = SlurmFacts(version="22.05", launcher="srun", flavour="slurmd")
    assert asked(Partition(), slurm=ours).warnings == ()


def test_psslurm_gets_no_spare_nodes() -> None:
    psslurm = SlurmFacts(flavour="psslurm")
    assert "leave out --spare" in refusal(Partition(), slurm=psslurm, spare=1)


def test_login_nodes_of_another_architecture_are_mentioned() -> None:
    node = NodeType(gpus=4, arch="aarch64")
    (warning,) = asked(Partition(), node, login=Login(arch="x86_64")).warnings
    assert "login nodes of C are x86_64, these nodes aarch64" in warning
    assert asked(Partition(), node, login=Login(arch="aarch64")).warnings == ()


def test_a_node_type_limits_a_cluster_without_partitions_too() -> None:
    with pytest.raises(UsageError, match="5 GPUs per node asked, a node has 4"):
        place(Resources(nodes=1, gpus=5, time="60"), load_site("jsc-jupiter"))
