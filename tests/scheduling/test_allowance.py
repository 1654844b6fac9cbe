"""What a job may have of a cluster, by Slurm's own words: filled in before it is queued, or why it
would never start."""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fsdpkit.config.job import Resources
from fsdpkit.config.partition import NodeType
from fsdpkit.config.placement import Placement, place
from fsdpkit.config.profile import Identify
from fsdpkit.config.site import LoadedSite, load_site
from fsdpkit.errors import UsageError
from fsdpkit.rendering.directives import resource_directives
from fsdpkit.scheduling import live_placement, slurm_answers
from fsdpkit.scheduling.allowance import Request, allowance
from fsdpkit.scheduling.job_checks import what_is_handed_on
from fsdpkit.scheduling.live_cluster import LiveCluster
from fsdpkit.scheduling.live_limits import (
    ASSOC_FORMAT,
    QOS_FORMAT,
    parse_associations,
    parse_qos,
)
from fsdpkit.scheduling.live_placement import completed_by, free_for, with_qos
from fsdpkit.scheduling.slurm_answers import SlurmAnswers
from fsdpkit.scheduling.submission import SubmitRequest, asked_for
from tests.publishing.live_answers import CONFIG, answers, node, partition, read

GENERIC = load_site("generic")
ENFORCED = f"{CONFIG}AccountingStorageEnforce = associations,limits,qos,safe\n"


def row(form: str, **cells: str) -> str:
    return "|".join(cells.get(name, "") for name in form.split(","))


def cluster(
    nodes: str = "", config: str = ENFORCED, associations: Any = (), qos: Any = (), **changes: str
) -> LiveCluster:
    parts = partition("gpu", Default="YES", **changes) + partition("other", AllowQos="gold")
    live = read(answers(parts, nodes or node("n1") + node("n2"), config=config))
    rows = [row(ASSOC_FORMAT, **one) for one in associations]
    rules = [row(QOS_FORMAT, **one) for one in qos]
    own = tuple(parse_associations(rows)) if rows else None
    return replace(live, associations=own, qos=parse_qos(rules))


def asked(**changes: Any) -> Request:
    return Request(
        **{
            "partition": "gpu",
            "account": "lab",
            "qos": None,
            "nodes": 2,
            "time_s": 3600,
            "gpus": 4,
            "cpus": 64,
            "memory_mb": 0,
            "gpu_type": "a100",
            **changes,
        }
    )


def objections(request: Request, live: LiveCluster) -> list[str]:
    return [*allowance(request, live).never]


def remarks(request: Request, live: LiveCluster) -> list[str]:
    return [*allowance(request, live).remarks]


MINE = {"Account": "lab", "User": "me", "QOS": "normal,gold", "DefaultQOS": "normal"}
LAB = {"Account": "lab", "ParentName": "root"}
LIMITS = [
    ([{**MINE, "MaxTRES": "gres/gpu=4"}], "8 GPUs asked, your association with account lab"),
    ([MINE, {**LAB, "GrpTRES": "cpu=100"}], "128 cores asked, account lab allows all its jobs"),
    ([MINE, LAB, {"Account": "root", "GrpTRES": "node=1"}], "2 nodes asked, account root"),
    ([{**MINE, "MaxTRESPerNode": "gres/gpu=2"}], "4 GPUs asked, your association"),
    ([{**MINE, "MaxTRESMins": "gres/gpu=240"}], "allows this job 00:30:00"),
    ([MINE, {**LAB, "GrpTRESRunMins": "gres/gpu=240"}], "account lab allows this job 00:30:00"),
    ([MINE, {**LAB, "GrpTRESMins": "gres/gpu=240"}], "account lab allows this job 00:30:00"),
    ([{**MINE, "MaxWall": "00:10:00"}], "allows this job 00:10:00"),
    ([{**MINE, "MaxJobs": "0"}], "allows no job"),
    ([MINE, {**LAB, "GrpSubmit": "0"}], "account lab allows no job"),
    ([{**MINE, "MaxTRES": "gres/gpu:a100=4,gres/gpu:v100=4"}], "8 gres/gpu:a100 asked"),
]


@pytest.mark.parametrize(("associations", "why"), LIMITS)
def test_a_job_above_a_limit_of_its_account_never_starts(
    associations: list[dict[str, str]], why: str
) -> None:
    (found,) = objections(asked(), cluster(associations=associations))
    assert why in found
    unenforced = ENFORCED.replace("limits,", "").replace(",safe", "")
    assert not objections(asked(), cluster(associations=associations, config=unenforced))


def test_one_association_that_allows_it_is_enough_and_what_is_unknown_forbids_nothing() -> None:
    tight = {**MINE, "Account": "old", "MaxTRES": "gres/gpu=1"}
    assert not objections(asked(account=None), cluster(associations=[tight, MINE]))
    assert not objections(asked(), cluster(config=CONFIG))
    assert not objections(asked(qos="gold"), cluster())


def test_an_account_that_is_for_other_partitions_is_told_which() -> None:
    elsewhere, here = {**MINE, "Partition": "slow"}, {**MINE, "Account": "old", "Partition": "GPU"}
    loose = ENFORCED.replace("associations,limits,qos,safe", "none")
    live = cluster(associations=[elsewhere, here])
    (found,) = objections(asked(account="lab"), live)
    assert "not open to lab: --account lab --partition slow, --account old --partition GPU" in found
    for mine in ([elsewhere, here], [elsewhere, MINE]):
        assert not objections(asked(account=None), cluster(associations=mine))
    assert not objections(asked(account="lab"), cluster(associations=[elsewhere], config=loose))


QOS = [
    ({"MaxTRES": "node=1"}, "2 nodes asked, QOS normal allows a job 1"),
    ({"GrpTRES": "gres/gpu=4"}, "QOS normal allows all its jobs together 4"),
    ({"MaxTRESPU": "gres/gpu=6"}, "QOS normal allows one person at a time 6"),
    ({"MaxTRESPerNode": "gres/gpu=2"}, "QOS normal allows of each node 2"),
    ({"MinTRES": "gres/gpu=16"}, "8 GPUs asked, QOS normal wants 16 or more"),
    ({"MaxTRESMins": "node=60"}, "QOS normal allows this job 00:30:00"),
    ({"MaxTRESRunMinsPU": "node=60"}, "QOS normal allows this job 00:30:00"),
]


@pytest.mark.parametrize(("limits", "why"), QOS)
@pytest.mark.parametrize("of_partition", [False, True])
def test_a_job_above_a_limit_of_its_qos_or_its_partition_s_never_starts(
    limits: dict[str, str], why: str, of_partition: bool
) -> None:
    own = {**MINE, "DefaultQOS": "gold"} if of_partition else MINE
    changes = {"QoS": "normal"} if of_partition else {}
    live = cluster(associations=[own], qos=[{"Name": "normal", **limits}], **changes)
    assert objections(asked(), live) == [f for f in objections(asked(), live) if why in f] != []


def test_the_first_level_that_sets_a_limit_counts() -> None:
    rules = [
        {"Name": "wide", "MaxTRES": "gres/gpu=16"},
        {"Name": "normal", "MaxTRES": "gres/gpu=4"},
    ]
    mine = {**MINE, "MaxTRES": "gres/gpu=2"}
    assert not objections(asked(), cluster(associations=[mine], qos=rules, QoS="wide"))
    (found,) = objections(asked(), cluster(associations=[mine], qos=rules))
    assert "QOS normal allows a job 4" in found
    over = [rules[0], {**rules[1], "Flags": "OverPartQOS"}]
    assert objections(asked(), cluster(associations=[mine], qos=over, QoS="wide")) == [found]


def test_qos_and_accounts_of_a_partition_are_compared_with_the_person_s() -> None:
    live = cluster(associations=[MINE], AllowAccounts="rich", DenyQos="normal")
    assert [why.split(" is ")[0] for why in objections(asked(), live)] == [
        "partition gpu",
        "partition gpu does not take QOS normal",
    ]
    (found,) = objections(asked(qos="silver"), cluster(associations=[MINE]))
    assert "not among yours: --set resources.qos=gold, normal" in found
    found = objections(asked(qos="silver"), cluster(associations=[MINE], AllowQos="gold"))[0]
    assert "not among yours: --set resources.qos=gold" in found
    found = objections(asked(qos="silver"), cluster(associations=[MINE], AllowQos="silver"))[0]
    assert "--set" not in found
    (found,) = objections(asked(account="old"), cluster(associations=[MINE]))
    assert "account old is not among yours: --account lab" in found
    (found,) = objections(asked(partition="other"), cluster(associations=[MINE]))
    assert "takes QOS gold only, the job has normal" in found


PARTITION = [
    ({"MaxTime": "00:30:00"}, "01:00:00 asked, partition gpu allows a job 00:30:00", "TimeLimit"),
    ({"MaxNodes": "1"}, "2 nodes asked, partition gpu allows a job 1", "MaxNodes"),
    ({"MinNodes": "3"}, "2 nodes asked, partition gpu wants 3 or more", "MinNodes"),
    ({"State": "DRAIN"}, "partition gpu takes no jobs", None),
    ({"Nodes": "n1"}, "2 nodes asked, partition gpu has 1", None),
]


@pytest.mark.parametrize(("changes", "why", "flag"), PARTITION)
def test_a_job_above_its_partition_never_starts_unless_a_qos_lifts_the_limit(
    changes: dict[str, str], why: str, flag: str | None
) -> None:
    (found,) = objections(asked(), cluster(**changes))
    assert why in found
    lifted = [{"Name": "normal", "Flags": f"DenyOnLimit,Partition{flag}"}]
    assert bool(objections(asked(), cluster(associations=[MINE], qos=lifted, **changes))) == (
        flag is None
    )


def test_of_several_partitions_one_that_takes_the_job_is_enough_unless_all_must() -> None:
    request = asked(partition="gpu,other", qos="gold")
    assert not objections(request, cluster(MaxNodes="1"))
    config = f"{ENFORCED}EnforcePartLimits = ALL\n"
    assert "allows a job 1" in objections(request, cluster(MaxNodes="1", config=config))[0]


def test_nodes_that_are_down_delay_a_job_and_too_few_gpus_forbid_it() -> None:
    down = node("n1") + node("n2", State="DOWN")
    found = allowance(asked(), cluster(down))
    assert (found.never, "1 of 2 nodes" in found.remarks[0]) == ((), True)
    assert not objections(asked(gpus=8, partition=None, reserved=True), cluster(down))
    (why,) = objections(asked(gpus=8), cluster(Nodes="n[1-2]"))
    assert "2 nodes with 8 GPUs asked, partition gpu has 0" in why
    hidden = cluster(Nodes="n[1-2],other7")  # powered down, and nothing is known of it
    assert not objections(asked(gpus=8), hidden)


def test_what_a_plug_in_may_choose_otherwise_is_said_and_not_refused() -> None:
    rules = [{"Name": "normal", "MaxTRES": "node=1"}, {"Name": "gold"}]
    config = f"{ENFORCED}JobSubmitPlugins = lua\n"
    found = allowance(asked(), cluster(config=config, associations=[MINE], qos=rules))
    assert (found.never, "QOS normal allows a job 1" in found.remarks[0]) == ((), True)
    named = cluster(config=config, associations=[MINE], qos=rules)
    assert objections(asked(qos="normal"), named)


def test_memory_above_what_the_cores_may_have_costs_more_cores() -> None:
    (found,) = objections(asked(memory_mb=6144), cluster(MaxMemPerNode="4000"))
    assert "resources.memory=4000M" in found
    (found,) = remarks(asked(cpus=4, memory_mb=6144), cluster(MaxMemPerCPU="1000"))
    assert "charge for, 7 cores" in found
    assert not remarks(asked(cpus=4, memory_mb=4000), cluster(MaxMemPerCPU="1000"))


# What a profile does not know is asked of Slurm


def filled(live: LiveCluster, gpus: int, site: LoadedSite = GENERIC, **other: Any) -> Placement:
    resources = Resources(nodes=2, gpus=gpus, time="1:00:00", **other)
    placement = place(resources, site)
    return completed_by(live, placement, resources, site.profile)


def directives(placement: Placement, gpus: int) -> dict[str, str | None]:
    resources = Resources(nodes=2, gpus=gpus, time="1:00:00")
    return {d.name: d.value for d in resource_directives(resources, placement, GENERIC.profile)}


@pytest.mark.parametrize(
    ("changes", "gpus", "cpus", "memory"),
    [
        ({}, 4, 64, "0"),
        ({}, 1, 16, "124928M"),
        ({"MaxMemPerCPU": "1000"}, 1, 16, "15360M"),
        ({"DefMemPerCPU": "900"}, 1, 16, None),
        ({"DefMemPerCPU": "900"}, 4, 64, "0"),
        ({"OverSubscribe": "EXCLUSIVE"}, 1, 16, "0"),
        ({"MaxCPUsPerNode": "8", "MaxMemPerNode": "40960"}, 1, 2, "10240M"),
    ],
)
def test_without_a_profile_slurm_says_cores_and_memory(
    changes: dict[str, str], gpus: int, cpus: int, memory: str | None
) -> None:
    placement = filled(cluster(**changes), gpus)
    assert placement.cpus_per_task == cpus
    assert directives(placement, gpus).get("mem") == memory
    assert any("14400 MB" in told for told in placement.warnings) == (
        memory is None and gpus == 1
    ), "that less than the share is given is said"


def test_nodes_that_cannot_serve_the_request_say_nothing_of_it() -> None:
    slices = node("m1", Gres="gpu:1g.5gb:7", CPUEfctv="4")
    few = node("n3", Gres="gpu:a100:2", CPUEfctv="8")
    placement = filled(cluster(node("n1") + few + slices), 4)
    assert placement.cpus_per_task == 64
    featured = node("n4", AvailableFeatures="big", CPUEfctv="96")
    assert filled(cluster(node("n1") + featured), 4, constraint="big").cpus_per_task == 96
    placement = filled(cluster(few), 4)
    assert (
        placement.cpus_per_task,
        "no node there with 4 such GPUs" in placement.warnings[-1],
    ) == (
        4,
        True,
    )


@pytest.mark.parametrize(
    ("asked_for", "names"),
    [
        ({}, [{"n1", "n2"}]),
        ({"gpus": 2}, [{"n1", "n2", "n3"}]),
        ({"partition": "gpu,debug"}, [{"n1", "n2"}, {"n1"}]),
        ({"memory": "400G"}, [{"n2"}]),
        ({"gpus": 2, "cpus_per_gpu": 8}, [{"n1", "n2"}]),
        ({"constraint": "ib&big"}, [{"n2"}]),
        ({"constraint": "[ib*1&big*1]"}, []),  # nobody can tell
    ],
)
def test_the_nodes_that_a_job_could_do_with_are_up_and_have_what_it_asks_for(
    asked_for: dict[str, Any], names: list[set[str]]
) -> None:
    parts = partition("gpu", Default="YES") + partition("debug")
    nodes = node("n1", AvailableFeatures="ib", Partitions="gpu,debug", RealMemory="300000")
    nodes += node("n2", AvailableFeatures="ib,big", RealMemory="500000", State="MIXED")
    nodes += node("n3", Gres="gpu:a100:2", CPUEfctv="8") + node("n4", State="IDLE+DRAIN")
    nodes += node("n5", State="IDLE+RESERVED") + node("n6", State="DOWN*")
    live = read(answers(parts, nodes, config=ENFORCED))
    resources = Resources(**{"nodes": 2, "gpus": 4, "time": "1:00:00", **asked_for})
    placement = place(resources, GENERIC)
    assert free_for(live, placement, resources, GENERIC.profile) == names


def test_a_job_that_may_get_slices_of_gpus_is_told_where_it_does_not() -> None:
    parts = partition("all", Default="YES") + partition("gpu")
    nodes = node("n1", Gres="gpu:4", Partitions="all,gpu") * 2
    slices = node("m1", Gres="gpu:1g.5gb:7", Partitions="all")
    live = read(answers(parts, nodes + slices, config=ENFORCED))
    assert "--partition gpu" in filled(live, 4).warnings[-1]
    assert not filled(live, 4, partition="gpu").warnings
    sliced = place(Resources(nodes=2, gpus=1, time="60"), GENERIC)
    sliced = replace(sliced, node_type=NodeType(gpu_type="a100_1g.5gb"))
    two, one = (Resources(nodes=nodes, gpus=1, time="60") for nodes in (2, 1))
    assert live_placement.slices_in(sliced, two, GENERIC.profile)
    assert not live_placement.slices_in(sliced, one, GENERIC.profile)
    none = read(answers(partition("mig"), node("m1", Gres="gpu:1g.5gb:7", Partitions="mig")))
    assert "slices" in filled(none, 4, partition="mig").warnings[0]


def test_the_form_of_the_request_and_of_requeueing_is_the_cluster_s() -> None:
    linear = f"{ENFORCED}SelectType = select/linear\nJobRequeue = 0\n"
    placement = filled(cluster(config=linear), 4)
    assert directives(placement, 4)["gres"] == "gpu:4"
    assert "JobRequeue=0" in placement.warnings[-1]
    assert directives(filled(cluster(), 4), 4)["gpus-per-node"] == "4"


def test_a_slurm_that_does_not_answer_is_said_and_what_the_job_says_counts() -> None:
    resources = Resources(nodes=2, gpus=4, time="1:00:00")
    placement = place(resources, GENERIC)
    assert "one a rank" in live_placement._unknown(placement, resources, "why").warnings[-1]
    told = Resources(nodes=2, gpus=4, time="1:00:00", cpus_per_gpu=8)
    assert live_placement._unknown(placement, told, "why") is placement


@pytest.mark.parametrize(
    ("own", "given", "outcome"),
    [
        ([MINE], None, "gold"),
        ([{**MINE, "DefaultQOS": "gold"}], None, None),
        ([{**MINE, "QOS": "gold,silver"}], None, "you may use gold, silver: name one"),
        ([{**MINE, "QOS": "normal"}], None, "you may use none of them"),
        ([MINE], "normal", "QOS normal: other takes jobs of QOS gold, silver only"),
        ([MINE], "silver", None),
    ],
)
def test_the_qos_that_a_partition_wants_is_filled_in_or_listed(
    monkeypatch: pytest.MonkeyPatch,
    own: list[dict[str, str]],
    given: str | None,
    outcome: str | None,
) -> None:
    rows = parse_associations([row(ASSOC_FORMAT, **one) for one in own])
    monkeypatch.setattr(SlurmAnswers, "own", lambda self: rows)
    parts = partition("other", AllowQos="gold,silver")
    live = read(answers(parts, node("n1", Partitions="other") * 2, config=ENFORCED))
    placement = filled(live, 4, partition="other", qos=given)
    resources = Resources(nodes=2, gpus=4, time="1:00:00", partition="other", qos=given)
    if outcome is not None and " " in outcome:
        with pytest.raises(UsageError) as refused:
            with_qos(placement, resources, GENERIC.profile)
        assert outcome in str(refused.value)
    else:
        placement = with_qos(placement, resources, GENERIC.profile)
        assert placement.select.get("qos") == outcome


def test_the_slurm_of_another_cluster_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> SlurmAnswers:
        raise AssertionError("asked the wrong cluster")

    monkeypatch.setattr(slurm_answers, "answers_of", never)
    elsewhere = msgspec.structs.replace(
        GENERIC.profile, title="Far", identify=Identify(hostname=r"login\d+\.far\.example")
    )
    resources = Resources(nodes=2, gpus=4, time="1:00:00")
    placement = live_placement.completed(place(resources, GENERIC), resources, elsewhere)
    assert "no login node of Far" in placement.warnings[-1]


@pytest.mark.parametrize(
    ("conf", "options", "said"),
    [
        ({}, (), ["-t"]),
        ({"PropagateResourceLimits": "NONE"}, (), []),
        ({"PropagateResourceLimits": "ALL", "PropagateResourceLimitsExcept": "CPU"}, (), []),
        ({"PropagateResourceLimits": "CPU,AS"}, (), ["-t"]),
        ({}, ("propagate=NONE",), []),
    ],
)
def test_a_limit_of_this_shell_that_would_end_ranks_is_said(
    monkeypatch: pytest.MonkeyPatch, conf: dict[str, str], options: Any, said: list[str]
) -> None:
    def limit(which: int) -> tuple[int, int]:
        soft = 1200 if which == resource.RLIMIT_CPU else resource.RLIM_INFINITY
        return soft, resource.RLIM_INFINITY

    monkeypatch.setattr(resource, "getrlimit", limit)
    request = SubmitRequest("check", cluster="generic", sbatch_options=options)
    told = "".join(what_is_handed_on(asked_for(request)[2], conf))
    assert [option for option in ("-t", "-v") if f"ulimit -S {option}" in told] == said
