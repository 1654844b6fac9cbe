"""`fsdpkit site diff`: what the cluster says otherwise than its profile, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsdpkit.config.loading import Layered, build, tomllib
from fsdpkit.config.profile import SiteProfile
from fsdpkit.publishing.draft import draft
from fsdpkit.publishing.drift import Drift, drift, lines
from tests.json_answers import checked
from tests.publishing.live_answers import (
    CONFIG,
    LOGIN,
    NOW_S,
    RELEASES,
    Says,
    answers,
    captured,
    node,
    partition,
    read,
)
from tests.publishing.test_draft import GONE, run

PROFILE = """
schema = "fsdpkit.site/1"
title = "made up"

[slurm]
version = "24.11"
default_partition = "gpu"

[node_types.a100]
gpus = 4
nodes = 2
cpus = 64
memory_mb = 500000

[partitions.gpu]
node_type = "a100"
max_time = "1-0"
"""
CLUSTER = {"partitions": partition("gpu", Default="YES"), "nodes": node("n1") + node("n2")}


def compared(profile: str, **other: Any) -> Drift:
    layered = Layered()
    layered.say(tomllib.loads(profile), "test")
    live = read(answers(**{**CLUSTER, **other}))
    return drift(build(SiteProfile, layered, "site"), live, LOGIN.host)


def differs(found: Drift) -> dict[str, tuple[Any, Any]]:
    return {one.key: (one.profile, one.cluster) for one in found.differ}


def changed(name: str = "gpu", **changes: str) -> dict[str, Any]:
    return {"partitions": partition(name, **{"Default": "YES", **changes})}


def test_a_profile_that_is_right_differs_in_nothing() -> None:
    assert compared(PROFILE).differ == ()
    assert compared(PROFILE, **changed(AllocNodes="login03,adm1")).differ == ()


@pytest.mark.parametrize("release", RELEASES)
def test_a_draft_agrees_with_the_answers_it_was_made_of(release: str) -> None:
    live = read(captured(release))
    assert drift(draft(live, LOGIN, NOW_S).profile, live) == Drift((), (), ())


@pytest.mark.parametrize(
    ("cluster", "key", "values"),
    [
        (changed(MaxTime="12:00:00"), "partitions.gpu.max_time", ("1-0", "12:00:00")),
        (changed(MaxTime="UNLIMITED"), "partitions.gpu.max_time", ("1-0", "no limit")),
        (changed("other"), "partitions.gpu", ("--partition=gpu", "none")),
        (changed("other"), "slurm.default_partition", ("gpu", "other")),
        ({"nodes": node("n1")}, "node_types.a100.nodes", (2, 1)),
        ({"nodes": node("n1", Gres="gpu:2") * 2}, "node_types.a100.gpus", (4, 2)),
        ({"nodes": node("n1", CPUEfctv="60") * 2}, "node_types.a100.cpus", (64, 60)),
        ({"nodes": node("n1", RealMemory="1") * 2}, "node_types.a100.memory_mb", (500_000, 1)),
        (
            {"config": "ClusterName = c\nSLURM_VERSION = 26.05.1\n"},
            "slurm.version",
            ("24.11", "26.05"),
        ),
        (
            changed(AllowGroups="rich"),
            "partitions.gpu.automatic",
            (True, "AllowGroups=rich"),
        ),
        (changed(AllocNodes="adm1"), "partitions.gpu.automatic", (True, "AllocNodes=adm1")),
    ],
)
def test_each_fact_that_differs_is_named_with_both_values(
    cluster: dict[str, Any], key: str, values: tuple[Any, Any]
) -> None:
    assert differs(compared(PROFILE, **cluster))[key] == values


@pytest.mark.parametrize(
    ("facts", "cluster", "key"),
    [
        ("max_nodes = 4", changed(MaxNodes="5"), "partitions.gpu.max_nodes"),
        ("max_nodes = 4", {}, "partitions.gpu.max_nodes"),
        ("min_nodes = 2", changed(MinNodes="3"), "partitions.gpu.min_nodes"),
        ('default_time = "10"', changed(DefaultTime="00:20:00"), "partitions.gpu.default_time"),
        ('preempt = "cancel"', {}, "partitions.gpu.preempt"),
        ('qos = "gone"', {}, "partitions.gpu.qos"),
        (
            "max_gpus_per_job = 8",
            {**changed(QoS="q"), "qos": "q||gres/gpu=16|||\n"},
            "partitions.gpu.max_gpus_per_job",
        ),
        ('[gpu_request]\ntype = "h100"', {}, "gpu_request.type"),
    ],
)
def test_limits_that_a_profile_names_are_held_to_slurm_s(
    facts: str, cluster: dict[str, Any], key: str
) -> None:
    assert key in differs(compared(PROFILE + facts + "\n", **cluster))


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"MaxNodes": "2"}, "max_nodes"),
        ({"OverSubscribe": "EXCLUSIVE"}, "whole_nodes"),
        ({"MaxMemPerCPU": "4000"}, "max_memory_per_cpu_mb"),
        ({"AllowQos": "gold,silver"}, "allowed_qos"),
        ({"AllowQos": "gold"}, "qos"),
        ({"QoS": "q"}, "max_gpus_per_node max_gpus_per_job max_gpu_hours max_jobs_per_user"),
    ],
)
def test_a_gained_limit_is_a_difference(changes: dict[str, str], keys: str) -> None:
    qos = "normal\nq||||||gres/gpu=2|gres/gpu=64|gres/gpu=600|5\n"
    config = f"{CONFIG}AccountingStorageEnforce = associations,limits,qos\n"
    answers = {**changed(**changes), "qos": qos, "config": config}
    gained = differs(compared(PROFILE, **answers))
    assert {f"partitions.gpu.{key}" for key in keys.split()} <= gained.keys()


def test_nodes_that_are_away_or_on_their_way_are_no_difference_shown_or_not() -> None:
    for state in ("IDLE+POWERED_DOWN", "IDLE+DRAIN", "DOWN*+POWERING_UP", "MAINTENANCE"):
        assert differs(compared(PROFILE, nodes=node("n1") + node("n2", State=state))) == {}
    parts = partition("gpu", Default="YES", Nodes="n[1-8]")
    all_of_them = "".join(node(f"n{i}") for i in range(1, 9))
    profile = PROFILE.replace("nodes = 2", "nodes = 8")
    assert differs(compared(profile, partitions=parts, nodes=all_of_them)) == {}
    assert differs(compared(profile, partitions=parts, nodes=node("n1") + node("n3"))) == {}


def test_what_a_profile_does_not_say_is_listed_apart() -> None:
    bare = 'schema = "fsdpkit.site/1"\ntitle = "t"\n[node_types.a]\n[partitions.gpu]\nnode_type="a"'
    found = compared(bare, partitions=CLUSTER["partitions"] + partition("two"))
    missing = {one.key: one.cluster for one in found.missing}
    assert missing["node_types.a.gpus"] == 4
    assert missing["slurm.version"] == "24.11"
    assert "Could be filled in:" in list(lines(found))


def test_a_new_partition_with_gpus_could_be_filled_in() -> None:
    both = CLUSTER["partitions"] + partition("new")
    found = compared(PROFILE, partitions=both, nodes=node("n1", Partitions="gpu,new") * 2)
    assert [one.key for one in found.missing if one.key.count(".") == 1] == ["partitions.new"]


def test_what_slurm_does_not_say_is_no_difference() -> None:
    silent = {**changed(QoS="q", MaxTime="UNLIMITED"), "qos": None}
    assert differs(compared(PROFILE + "max_nodes = 4\n", **silent)) == {}
    for fact in ("max_gpus_per_user = 8", 'whole_nodes = "required"', "max_node_hours = 1.5"):
        assert differs(compared(f"{PROFILE}{fact}\n")) == {}


def test_a_way_to_ask_that_names_no_partition_is_not_compared() -> None:
    found = compared(PROFILE + "[partitions.any]\nselect = {}\n")
    assert found.differ == ()
    assert found.not_compared == ("partitions.any: names no partition of Slurm's",)


def test_nodes_are_compared_with_the_kind_that_is_most_like_them() -> None:
    nodes = node("n1") + node("n2") + "".join(node(f"v{i}", Gres="gpu:v100:8") for i in range(9))
    assert differs(compared(PROFILE, nodes=nodes)) == {}


def test_features_that_are_gone_differ() -> None:
    typed = PROFILE.replace("gpus = 4\n", 'gpus = 4\nfeatures = ["ib", "nvlink"]\n')
    nodes = node("n1", AvailableFeatures="ib,new") + node("n2", AvailableFeatures="ib,new")
    found = differs(compared(typed, nodes=nodes))
    assert found["node_types.a100.features"] == (["ib", "nvlink"], ["ib", "new"])


# The command itself


@pytest.fixture
def ours(tmp_path: Path) -> str:
    path = tmp_path / "ours.toml"
    path.write_text(PROFILE)
    return str(path)


def test_the_exit_status_says_whether_they_agree(slurm_says: Says, ours: str) -> None:
    slurm_says(answers(**CLUSTER))
    status, printed, _ = run("diff", ours)
    assert status == 0
    assert printed.splitlines()[-1] == "ours agrees with the cluster in all that both say."
    slurm_says(answers(**{**CLUSTER, **changed(MaxTime="12:00:00")}))
    status, printed, _ = run("diff", ours)
    assert status == 1
    first = printed.splitlines()[0]
    assert first == "partitions.gpu.max_time: the profile has 1-0, the cluster 12:00:00"


def test_no_answer_is_neither(slurm_says: Says, ours: str) -> None:
    slurm_says(answers(**CLUSTER), node=GONE)
    status, printed, told = run("diff", ours)
    assert (status, printed) == (69, "")
    assert "Unable to contact" in told


def test_with_json_it_is_one_object(slurm_says: Says, ours: str) -> None:
    slurm_says(answers(**{**CLUSTER, **changed(MaxTime="12:00:00"), "qos": None}), qos=GONE)
    status, printed, _ = run("diff", ours, "--json")
    answer = checked(printed)
    assert (status, answer["name"], answer["same"]) == (1, "ours", False)
    assert answer["differ"] == [
        {"key": "partitions.gpu.max_time", "profile": "1-0", "cluster": "12:00:00"}
    ]
    assert answer["unread"]


def test_the_local_cluster_has_no_slurm_to_be_compared_with(slurm_says: Says) -> None:
    slurm_says(answers(**CLUSTER))
    assert run("diff", "local")[0] == 2


def test_nodes_without_gpus_in_the_same_partition_are_not_taken_for_those_with() -> None:
    nodes = node("n1") + node("n2") + "".join(node(f"c{i}", Gres="(null)") for i in range(9))
    assert differs(compared(PROFILE, nodes=nodes)) == {}
    bare = compared(PROFILE.replace("gpus = 4\n", "").replace("nodes = 2\n", ""), nodes=nodes)
    assert {one.key: one.cluster for one in bare.missing}["node_types.a100.gpus"] == 4
    live = read(answers(CLUSTER["partitions"], nodes))
    assert drift(draft(live, LOGIN, NOW_S).profile, live).differ == ()
