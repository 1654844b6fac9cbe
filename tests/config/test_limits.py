"""Every limit that a profile can have: what just keeps it fits, what just breaks it is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpkit.config import assets
from fsdpkit.config.job import Resources
from fsdpkit.config.partition import MaxTime, NodeType, Partition
from fsdpkit.config.placement import Placement, place
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.site import LoadedSite, load_site
from fsdpkit.errors import UsageError
from tests.config.limit_requests import EDGES, made_up
from tests.config.limit_requests import asked as asked_of

SITE = LoadedSite("made-up", made_up(), ())


@pytest.mark.parametrize(("partition", "inside", "outside"), EDGES)
def test_a_limit_is_kept_to_the_last_node_gpu_and_second(
    partition: str, inside: dict[str, Any], outside: dict[str, Any]
) -> None:
    assert place(asked_of(partition, inside), SITE).partition == partition
    with pytest.raises(UsageError, match="does not fit"):
        place(asked_of(partition, outside), SITE)


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
            Partition(max_time="1:00:00", max_time_multinode="4"),
            {},
            "the limit is 00:04:00 for 2 nodes, and a job here needs more than 00:05:00",
            "Nearest that would fit: --nodes 1 --gpus 4 on p.",
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


def taken(site: LoadedSite, partition: str, gpus: int) -> bool:
    account = site.profile.account.example or "project"
    nodes = site.profile.partitions[partition].min_nodes or 1
    try:
        place(
            Resources(nodes=nodes, gpus=gpus, time="15", account=account, partition=partition), site
        )
    except UsageError:
        return False
    return True


@pytest.mark.parametrize("name", sorted({*assets.available("site")} - {"local"}))
def test_something_fits_in_each_partition_of_a_packaged_profile(name: str) -> None:
    site = load_site(name)
    for partition in site.profile.partitions:
        assert any(taken(site, partition, gpus) for gpus in (1, 2, 4, 8)), partition
