"""`fsdpkit site draft`: what a live Slurm says becomes a profile; what it does not say, nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from fsdpkit.cli.main import fsdpkit
from fsdpkit.config.job import Resources
from fsdpkit.config.loading import tomllib
from fsdpkit.config.placement import place
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.site import LoadedSite, load_site
from fsdpkit.errors import FsdpkitError
from fsdpkit.listing import node_list
from fsdpkit.publishing.draft import ProfileDraft, draft
from fsdpkit.scheduling import slurm_answers
from fsdpkit.scheduling.live_placement import slices_in
from fsdpkit.scheduling.login_node import see
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


def drafted(partitions: str, nodes: str, **other: Any) -> ProfileDraft:
    return draft(read(answers(partitions, nodes, **other)), LOGIN, NOW_S)


def run(*words: str) -> tuple[int, str, str]:
    """Exit status, standard output, what the error says."""
    done = CliRunner().invoke(fsdpkit, ["site", *words], standalone_mode=False)
    if isinstance(done.exception, FsdpkitError):
        return done.exception.exit_code, done.stdout, str(done.exception)
    if done.exception is not None:
        raise done.exception
    return int(done.return_value or 0), done.stdout, ""


GPU = partition("gpu", Default="YES")


@pytest.mark.parametrize("release", RELEASES)
def test_a_capture_of_each_release_becomes_a_profile_that_reads_back(
    release: str, tmp_path: Path
) -> None:
    made = draft(read(captured(release)), LOGIN, NOW_S)
    assert tomllib.loads(made.text) == made.tables
    path = tmp_path / "drafted.toml"
    path.write_text(made.text)
    profile = load_site(str(path)).profile
    assert profile == made.profile
    assert profile.slurm.version == release
    assert profile.slurm.default_partition == next(iter(profile.partitions)) == "main"
    ways = profile.partitions
    assert (ways["main"].max_time, ways["main"].preempt) == ("1-00:00:00", "requeue")
    assert (ways["mixed"].max_time, ways["mixed"].default_time) == ("12:00:00", "00:10:00")
    assert (ways["mixed"].max_gpus_per_job, ways["mixed"].max_gpus_per_user) == (16, 32)
    assert ways["two"].max_nodes == 2
    assert ways["hidden"].whole_nodes == "given", "Exclusive=NODE since 25.05"
    closed = [name for name, way in ways.items() if not way.automatic]
    assert {"closed", "groups", "hidden", "mig"} <= set(closed)
    assert not {"main-a100x2", "high-a100x2", "short-a100x2", "two"} & set(closed)
    assert {"main", "high"} <= set(closed), "a request without a type may get slices there"
    assert not ways["mig"].offered
    kinds = profile.node_types
    assert (kinds["a100x2"].gpus, kinds["a100x2"].gpu_type) == (2, "a100")
    assert kinds["a100_1g.5gbx7"].gpus == 7
    assert kinds["gpux4"].gpu_type is None
    # Of nodes in the cloud, 22.05 shows none that is powered down; the partition lists them.
    assert kinds["gpux4"].nodes == 5 or release == "22.05"
    assert kinds["a100x2"].features == ["ampere", "ib"]


def test_it_says_where_and_when_each_fact_was_seen_and_what_stays_unknown() -> None:
    made = drafted(GPU, node("n1") + node("n2", State="DOWN*+DRAIN"))
    first, second = made.profile.sources
    assert "Slurm 24.11.5 of cluster made-up: scontrol show config, partition" in first.what
    assert (first.level, second.level) == ("centre-config", "measured")
    assert first.checked == "2025-11-24"
    assert (
        "# n[1-2]; 1 of them down, drained or in maintenance when asked; Slurm calls the GPU"
        in (made.text)
    )
    unknown = "\n".join(made.profile.unknown)
    assert "model, memory and maker of the GPUs" in unknown
    assert "Lmod 8.7.30; module path /sw/modules/core:/sw/modules/more; loaded here: gcc/13.2" in (
        unknown
    )
    assert made.profile.verified is None


def test_the_login_node_is_recognised_by_its_name_with_another_number() -> None:
    identify = drafted(GPU, node("n1")).profile.identify
    assert identify.hostname == r"login\d+\.hpc\.example\.org"
    assert identify.examples == ["login03.hpc.example.org"]


def test_the_order_of_slurm_s_answers_changes_nothing() -> None:
    told = captured("26.05")
    shuffled = dict(told)
    for name in ("partition", "node", "qos"):
        lines = (told[name] or "").splitlines(keepends=True)
        random.Random(5).shuffle(lines)
        shuffled[name] = "".join(lines)
    assert draft(read(shuffled), LOGIN, NOW_S).text == draft(read(told), LOGIN, NOW_S).text


def test_gpus_of_two_types_in_one_node_are_two_ways_to_ask_for_it() -> None:
    both = node("n1", Gres="gpu:a100:2(S:0),gpu:v100:4(S:1),nvme:1")
    profile = drafted(GPU, both).profile
    asked = {
        key: place(
            Resources(nodes=1, gpus=2, time="1:00:00", partition=key), LoadedSite("d", profile, ())
        )
        for key in profile.partitions
    }
    assert {
        key: (p.select, p.node_type.gpu_type, p.node_type.gpus) for key, p in asked.items()
    } == {
        "gpu": ({"partition": "gpu"}, "a100", 2),
        "gpu-v100x4": ({"partition": "gpu"}, "v100", 4),
    }
    assert [(p.cpus_per_task, p.memory_mb) for p in asked.values()] == [(21, 165888)] * 2
    sliced = node("n1", Gres="gpu:a100:2,gpu:a100_1g.10gb:14")
    half = drafted(GPU, sliced).profile.node_types["a100x2"]
    assert (half.cpus, half.memory_mb) == (32, 250_000)


def test_untyped_gpus_are_told_apart_by_the_features_of_their_nodes() -> None:
    features = {"a": "GPU_SKU:A100_SXM4,rack-b12", "h": "gpu=h100,rack-b13", "v": "V100,rack-b12"}
    nodes = "".join(
        node(f"{letter}{i}", Gres="gpu:4", AvailableFeatures=words)
        for letter, words in features.items()
        for i in (1, 2)
    )
    ways = drafted(GPU, nodes).profile.partitions
    assert {key: (way.constraint, way.kinds) for key, way in ways.items()} == {
        "gpu": ("GPU_SKU:A100_SXM4", ["a100x4"]),
        "gpu-h100x4": ("gpu=h100", ["h100x4"]),
        "gpu-v100x4": ("V100", ["v100x4"]),
        "gpu-any": (None, ["a100x4", "h100x4", "v100x4"]),
    }


def test_nodes_of_one_model_in_several_racks_are_of_one_kind() -> None:
    racks = "".join(
        node(f"n{i}", Gres="gpu:4", AvailableFeatures=f"rack-b{i},p{i}") for i in range(4)
    )
    assert [*drafted(GPU, racks).profile.node_types] == ["gpux4"]


def test_slices_and_queues_for_tests_are_neither_chosen_nor_offered() -> None:
    parts = partition("all") + partition("devel", MaxTime="01:00:00") + partition("gpu")
    parts += partition("gputest", MaxTime="00:15:00")
    nodes = node("n1", Gres="gpu:4", Partitions="all,gpu,devel,gputest")
    nodes += node("m1", Gres="gpu:1g.5gb:7", Partitions="all")
    ways = drafted(parts, nodes).profile.partitions
    assert [key for key, way in ways.items() if way.automatic] == ["gpu"]
    assert [key for key, way in ways.items() if way.offered] == ["gpu"]


@pytest.mark.parametrize(("name", "told"), [("all", True), ("gpu", False)])
def test_a_job_that_may_get_slices_is_told_by_a_drafted_profile(name: str, told: bool) -> None:
    nodes = node("n1", Gres="gpu:4", Partitions="all") + node("n2", Gres="gpu:4", Partitions="gpu")
    nodes += node("m1", Gres="gpu:1g.5gb:7", Partitions="all")
    profile = drafted(partition("all") + partition("gpu"), nodes).profile
    asked = Resources(nodes=1, gpus=4, time="1:00:00", partition=name)
    placement = place(asked, LoadedSite("d", profile, ()))
    assert bool(slices_in(placement, asked, profile)) == told


def test_partitions_whose_jobs_make_way_come_last_but_for_the_default() -> None:
    config = CONFIG.replace("preempt/none", "preempt/partition_prio")
    tiers = {"PreemptMode": "REQUEUE", "PriorityTier": "1"}
    parts = partition("a", **tiers) + partition("b", PriorityTier="9")
    parts += partition("c", Default="YES", **tiers)
    made = drafted(parts, node("n1", Partitions="a,b,c"), config=config)
    assert [*made.profile.partitions] == ["c", "b", "a"]


def test_a_qos_is_filled_in_where_one_is_allowed_and_lists_that_restrict_nobody_do_not() -> None:
    config = f"{CONFIG}AccountingStorageEnforce = qos\n"
    parts = partition("one", AllowQos="gold") + partition("two", AllowQos="gold,silver")
    parts += partition("here", AllowQos="normal,high", AllocNodes="login01,login03")
    made = drafted(parts, node("n1", Partitions="one,two,here"), config=config).profile.partitions
    assert (made["one"].qos, made["two"].allowed_qos) == ("gold", ["gold", "silver"])
    assert (made["here"].qos, made["here"].allowed_qos, made["here"].automatic) == (None, [], True)


def test_what_is_powered_down_and_not_shown_counts() -> None:
    parts = partition("gpu", Nodes="n[1-8]") + partition("cloud", Nodes="c[1-4]")
    made = drafted(parts, node("n1") + node("n2")).profile
    assert made.node_types["a100x4"].nodes == 8
    assert (made.partitions["cloud"].kinds, made.partitions["cloud"].max_nodes) == ([], 4)


def test_one_type_of_gpu_needs_no_type_in_the_request() -> None:
    assert drafted(GPU, node("n1")).profile.node_types["a100x4"].gpu_type is None


def test_a_cluster_without_gpus_runs_ranks_on_cores() -> None:
    profile = drafted(GPU, node("n1", Gres="(null)") + node("n2", Gres="npu:Other:8")).profile
    assert any("npu" in one for one in profile.unknown)
    assert profile.gpu_request.form == "none"
    (kind,) = profile.node_types.values()
    assert (kind.vendor, kind.gpus, kind.nodes) == ("none", None, 2)
    assert place(
        Resources(nodes=2, gpus=8, time="1:00:00"), LoadedSite("d", profile, ())
    ).select == {"partition": "gpu"}


def test_partitions_without_gpus_beside_others_are_named_and_left_out() -> None:
    made = drafted(GPU + partition("cpu"), node("n1") + node("c1", Gres="(null)", Partitions="cpu"))
    assert list(made.profile.partitions) == ["gpu"]
    assert "partitions without GPUs: cpu" in made.profile.unknown


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"AllowGroups": "rich"}, "AllowGroups=rich"),
        ({"AllowAccounts": "p1,p2"}, "AllowAccounts=p1,p2"),
        ({"AllowQos": "gold"}, "AllowQos=gold"),
        ({"AllocNodes": "login1"}, "AllocNodes=login1"),
        ({"Hidden": "YES"}, "Hidden=YES"),
        ({"ReqResv": "YES"}, "ReqResv=YES"),
        ({"RootOnly": "YES"}, "RootOnly=YES"),
        ({"State": "DRAIN"}, "not UP when asked"),
        ({"QoS": "shut"}, "QOS shut allows no job"),
    ],
)
def test_what_not_everybody_may_use_is_neither_chosen_by_itself_nor_proposed(
    changes: dict[str, str], why: str
) -> None:
    made = drafted(partition("gpu", **changes), node("n1"), qos="shut|||||||||0\n")
    way = made.profile.partitions["gpu"]
    assert not way.automatic
    assert not way.offered
    assert f"# {why}" in made.text


@pytest.mark.parametrize(
    ("changes", "qos", "limits"),
    [
        ({"MaxTime": "UNLIMITED"}, None, {"max_time": None, "max_nodes": None}),
        ({"MaxTime": "1000-00:00:00"}, None, {"max_time": None}),
        ({"MaxTime": "00:30:00", "DefaultTime": "00:05:00"}, None, {"default_time": "00:05:00"}),
        ({"MaxNodes": "2", "MinNodes": "2"}, None, {"max_nodes": 2, "min_nodes": 2}),
        (
            {"QoS": "q"},
            "q|06:00:00|node=3,gres/gpu=8|gres/gpu=9,node=5|gres/gpu=10|gres/gpu=4\n",
            {
                "max_time": "06:00:00",
                "max_nodes": 3,
                "max_gpus_per_job": 8,
                "max_gpus_per_user": 9,
                "max_nodes_per_user": 5,
                "max_gpus_per_account": 10,
                "min_gpus_per_job": 4,
            },
        ),
        ({"QoS": "q"}, "q|2-00:00:00||||\n", {"max_time": "1-00:00:00"}),
        ({"QoS": "q"}, None, {"max_time": "1-00:00:00", "max_gpus_per_job": None}),
        (
            {"QoS": "q"},
            "q||gres/gpu=2|||gres/gpu=9\n",
            {"max_gpus_per_job": 2, "min_gpus_per_job": None},
        ),
        ({"Exclusive": "NODE"}, None, {"whole_nodes": "given"}),
        ({"Exclusive": "USER"}, None, {"whole_nodes": None}),
        ({"OverSubscribe": "EXCLUSIVE"}, None, {"whole_nodes": "given"}),
    ],
)
def test_limits_are_the_partition_s_and_its_qos_s_whichever_are_stricter(
    changes: dict[str, str], qos: str | None, limits: dict[str, Any]
) -> None:
    made = drafted(partition("gpu", **changes), node("n1"), qos=qos)
    way = msgspec.to_builtins(made.profile.partitions["gpu"])
    assert {key: way[key] for key in limits} == limits
    if changes.get("QoS") and qos is None:
        assert "QOS q, whose limits are not known" in made.text


def test_a_partition_that_keeps_cores_for_others_gives_nodes_of_its_own_kind() -> None:
    capped = partition("half", MaxCPUsPerNode="32", MaxMemPerNode="250000")
    made = drafted(GPU + capped, node("n1", Partitions="gpu,half")).profile
    kinds = {key: made.node_types[way.node_type or ""] for key, way in made.partitions.items()}
    assert (kinds["gpu"].cpus, kinds["gpu"].memory_mb) == (64, 500_000)
    assert (kinds["half"].cpus, kinds["half"].memory_mb) == (32, 250_000)


def test_nodes_that_do_not_exist_yet_do_not_count_and_those_that_are_away_do() -> None:
    states = ("IDLE", "DOWN*", "IDLE+DRAIN", "MIXED+RESERVED", "IDLE+CLOUD+POWERED_DOWN", "FUTURE")
    nodes = "".join(node(f"n{i}", State=state) for i, state in enumerate(states))
    made = drafted(GPU, nodes)
    assert made.profile.node_types["a100x4"].nodes == 5
    assert "2 of them down" in made.text


def test_nodes_that_differ_in_memory_count_as_the_one_with_the_least() -> None:
    made = drafted(GPU, node("n1") + node("n2", RealMemory="400000", MemSpecLimit="1000"))
    assert made.profile.node_types["a100x4"].memory_mb == 399_000
    assert "399000 to 500000 MB of memory" in made.text


def test_a_node_that_never_registered_is_of_the_kind_like_it() -> None:
    unseen = node("n2").replace("Arch=x86_64 ", "")
    assert [k.nodes for k in drafted(GPU, node("n1") + unseen).profile.node_types.values()] == [2]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["n1"], "n1"),
        (["n1", "n2", "n3", "n7"], "n[1-3,7]"),
        (["n09", "n10", "n11"], "n[09-11]"),
        (["n8", "n9", "n10"], "n[8-10]"),
        (["a1", "b2", "login"], "login,a1,b2"),
        (["x1y1", "x1y2"], "x1y[1-2]"),
        (["n9" + "x", "n" + "9" * 30], "n9x,n" + "9" * 30),
    ],
)
def test_lists_of_nodes_are_compressed(names: list[str], shown: str) -> None:
    assert node_list(names) == shown


HOSTILE = [
    "$(reboot)",
    "it's",
    'say "x"',
    "-x",
    "\x1b[31mred\x1b[0m",
    "a" * 10_000,
    "ünï\u2028code",
    "line\rreturn",
    "x Gres=gpu:64 State=IDLE",
]


@pytest.mark.parametrize("words", HOSTILE)
def test_a_stranger_s_words_are_shown_harmlessly_and_change_no_fact(words: str) -> None:
    nodes = (
        node("n1").rstrip("\n")
        + f" Reason={words}\n"
        + node("n2", AvailableFeatures=words.replace(" ", "_"))
    )
    parts = GPU.rstrip("\n") + f" Comment={words}\n" + partition("closed", AllowAccounts=words)
    parts += partition("odd" + words.replace(" ", "_"))
    config = f"ClusterName = {words}\nSLURM_VERSION = 24.11.5 {words}\n"
    made = drafted(parts, nodes, qos=f"{words}|||||\n", config=config)
    assert all(c.isprintable() or c == "\n" for c in made.text)
    assert tomllib.loads(made.text) == made.tables
    profile = msgspec.convert(tomllib.loads(made.text), SiteProfile)
    assert {kind.gpus for kind in profile.node_types.values()} == {4}
    assert sum(kind.nodes or 0 for kind in profile.node_types.values()) == 2
    assert len(made.text) < 20_000


# The command itself


def test_the_command_prints_a_profile_or_writes_it_once(slurm_says: Says, tmp_path: Path) -> None:
    slurm_says(captured("24.11"))
    status, printed, _ = run("draft")
    assert status == 0
    assert tomllib.loads(printed)["slurm"]["version"] == "24.11"
    path = tmp_path / "ours.toml"
    assert run("draft", "--output", str(path))[0] == 0
    assert path.read_text() == printed
    status, _, told = run("draft", "--output", str(path))
    assert (status, "already exists" in told) == (2, True)
    path.write_text("old")
    assert run("draft", "--output", str(path), "--force")[0] == 0
    assert path.read_text() == printed


def test_with_json_it_prints_one_object(slurm_says: Says) -> None:
    slurm_says(captured("24.11"))
    status, printed, _ = run("draft", "--json")
    answer = checked(printed)
    assert (status, answer["cluster"], answer["file"]) == (0, "fsdpkit", None)
    assert tomllib.loads(answer["text"])["unknown"] == answer["unknown"]


GONE = 'echo "slurm_load_nodes error: Unable to contact slurm controller" >&2; exit 1'


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ({"config": GONE}, "Unable to contact slurm controller"),
        ({"node": GONE}, "slurmctld does not answer: try again in a minute"),
        ({"partition": f'head -c 300 "$(dirname "$0")/partition"; {GONE}'}, "Unable to contact"),
        ({"node": 'head -c 700 "$(dirname "$0")/node"; exit 0'}, "scontrol show node broke off"),
        ({"node": "exit 0"}, "named no node"),
        ({"partition": 'echo "No partitions in the system"; exit 0'}, "broke off"),
        ({"config": "echo nothing; exit 0"}, "it has no ClusterName"),
        ({"node": "kill -9 $$"}, "exit status -9"),
    ],
)
def test_a_slurm_that_does_not_answer_to_the_end_leaves_no_file(
    slurm_says: Says, tmp_path: Path, ends: dict[str, str], told: str
) -> None:
    slurm_says(captured("24.11"), **ends)
    path = tmp_path / "ours.toml"
    status, printed, said = run("draft", "--output", str(path))
    assert (status, printed, path.exists()) == (69, "", False)
    assert told in said
    assert [p.name for p in tmp_path.iterdir()] == ["slurm"]


def test_a_silent_slurm_is_given_up(slurm_says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_says(captured("24.11"), node="exec sleep 60")
    monkeypatch.setattr(slurm_answers, "_LIMIT_S", 0.5)
    status, printed, told = run("draft")
    assert (status, printed) == (69, "")
    assert "scontrol has not answered within" in told


@pytest.mark.parametrize("name", ["ours", "no/such/dir/ours.toml"])
def test_a_place_that_cannot_hold_a_profile_is_refused_before_slurm_is_asked(name: str) -> None:
    assert run("draft", "--output", name)[0] == 2


def test_what_the_kernel_and_the_shell_show_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\necho '--container-image=[USER@][REGISTRY#]IMAGE'\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    for name in ("class/net/lo", "class/net/hsn0", "class/infiniband/mlx5_0/ports/1"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "class/infiniband/mlx5_0/ports/1/link_layer").write_text("InfiniBand\n")
    seen = see(tmp_path, {"LMOD_VERSION": "8.7", "MODULEPATH": "/a::/b"})
    assert (seen.interfaces, seen.adapters) == (("hsn0",), (("mlx5_0", "InfiniBand"),))
    assert seen.container == "pyxis"
    assert (seen.modules, seen.module_paths, seen.fabric) == ("Lmod 8.7", ("/a", "/b"), "slingshot")
    nothing = see(tmp_path / "none", {})
    assert (nothing.interfaces, nothing.modules, nothing.fabric) == ((), None, None)


DENIED = 'echo "slurm_load: Access/permission denied" >&2; exit 1'


def test_nodes_that_slurm_does_not_show_this_user_leave_the_partitions_limits(
    slurm_says: Says, tmp_path: Path
) -> None:
    slurm_says(captured("24.11"), node=DENIED)
    status, text, error = run("draft", "--json")
    assert status == 0, error
    answer = checked(text)
    (tmp_path / "drafted.toml").write_text(answer["text"])
    profile = load_site(str(tmp_path / "drafted.toml")).profile
    assert profile.node_types == {}
    assert (profile.partitions["main"].max_time, profile.slurm.version) == ("1-00:00:00", "24.11")
    assert profile.partitions["main"].preempt is None, "who shares its nodes is unknown"
    (why,) = (line for line in answer["unknown"] if line.startswith("nodes, their GPUs"))
    assert why.endswith("scontrol show node: slurm_load: Access/permission denied")
    assert "scontrol show config and partition" in profile.sources[0].what
    # Held against the same cluster by the same user it says nothing wrong, nor by another.
    status, text, error = run("diff", str(tmp_path / "drafted.toml"), "--json")
    assert (status, checked(text)["differ"]) == (0, []), error
    assert any("scontrol show node" in line for line in checked(text)["unread"])
    slurm_says(captured("24.11"))
    status, text, error = run("draft", "--output", str(tmp_path / "whole.toml"))
    slurm_says(captured("24.11"), node=DENIED)
    status, text, error = run("diff", str(tmp_path / "whole.toml"), "--json")
    assert (status, checked(text)["differ"]) == (0, []), error


@pytest.mark.parametrize(
    ("ends", "unknown"),
    [
        ({"partition": DENIED}, ["partitions and their limits"]),
        ({"config": DENIED}, ["the cluster's name, Slurm's version"]),
        ({"config": DENIED, "node": DENIED}, ["the cluster's name, Slurm's version", "nodes, th"]),
        ({"partition": DENIED, "qos": DENIED}, ["partitions and their limits", "limits of QOS"]),
    ],
)
def test_what_slurm_refuses_stays_unknown_with_the_reason(
    slurm_says: Says, tmp_path: Path, ends: dict[str, str], unknown: list[str]
) -> None:
    slurm_says(captured("24.11"))
    assert run("draft", "--output", str(tmp_path / "whole.toml"))[0] == 0
    slurm_says(captured("24.11"), **ends)
    path = tmp_path / "drafted.toml"
    status, _, error = run("draft", "--output", str(path))
    assert status == 0, error
    listed = load_site(str(path)).profile.unknown
    for what in unknown:
        assert [line for line in listed if line.startswith(what) and "denied" in line], listed
    for profile in ("whole.toml", "drafted.toml"):
        status, text, error = run("diff", str(tmp_path / profile), "--json")
        assert (status, checked(text)["differ"]) == (0, []), (text, error)


def test_who_may_see_neither_partitions_nor_nodes_gets_no_profile(
    slurm_says: Says, tmp_path: Path
) -> None:
    slurm_says(captured("24.11"), partition=DENIED, node=DENIED)
    status, _, error = run("draft", "--output", str(tmp_path / "drafted.toml"))
    assert status == 69
    assert "Access/permission denied" in error
    assert not (tmp_path / "drafted.toml").exists()
