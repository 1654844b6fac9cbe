"""Answers of live clusters: captured on three releases of Slurm, or made up where no cluster of
ours has the shape."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fsdpkit.scheduling.live_cluster import (
    LiveCluster,
    parse_config,
    parse_nodes,
    parse_partitions,
)
from fsdpkit.scheduling.live_limits import QOS_FORMAT, parse_qos
from fsdpkit.scheduling.login_node import LoginNode

CAPTURES = Path(__file__).parent / "captures"
RELEASES = sorted(path.name for path in CAPTURES.iterdir())
NOW_S = 1_764_000_000.0
LOGIN = LoginNode(
    host="login03.hpc.example.org",
    arch="x86_64",
    interfaces=("eno1", "ib0"),
    adapters=(("mlx5_0", "InfiniBand"), ("mlx5_1", "Ethernet")),
    modules="Lmod 8.7.30",
    module_paths=("/sw/modules/core", "/sw/modules/more"),
    loaded_modules=("gcc/13.2",),
    container="apptainer",
)

CONFIG = """\
Configuration data as of 2026-11-24T05:36:30
ClusterName             = made-up
PreemptType             = preempt/none
SLURM_VERSION           = 24.11.5
"""


def partition(name: str, **changes: str) -> str:
    told = {
        "PartitionName": name,
        "AllowGroups": "ALL",
        "AllowAccounts": "ALL",
        "AllowQos": "ALL",
        "AllocNodes": "ALL",
        "Default": "NO",
        "QoS": "N/A",
        "DefaultTime": "NONE",
        "Hidden": "NO",
        "MaxNodes": "UNLIMITED",
        "MaxTime": "1-00:00:00",
        "MinNodes": "0",
        "MaxCPUsPerNode": "UNLIMITED",
        "Nodes": "(null)",
        "PriorityTier": "1",
        "OverSubscribe": "NO",
        "PreemptMode": "OFF",
        "State": "UP",
        "MaxMemPerNode": "UNLIMITED",
    }
    return " ".join(f"{key}={value}" for key, value in {**told, **changes}.items()) + "\n"


def node(name: str, **changes: str) -> str:
    told = {
        "NodeName": name,
        "Arch": "x86_64",
        "CPUEfctv": "64",
        "CPUTot": "64",
        "AvailableFeatures": "(null)",
        "Gres": "gpu:a100:4(S:0-1)",
        "OS": "Linux 6.1.0 #1 SMP",
        "RealMemory": "500000",
        "State": "IDLE",
        "Partitions": "gpu",
        "CfgTRES": "cpu=64",
    }
    return " ".join(f"{key}={value}" for key, value in {**told, **changes}.items()) + "\n"


def answers(
    partitions: str, nodes: str, qos: str | None = "normal\n", config: str = CONFIG
) -> dict[str, str | None]:
    if qos is not None:  # an empty column for each limit that a line does not have
        columns = QOS_FORMAT.count(",")
        qos = "".join(f"{s}{'|' * (columns - s.count('|'))}\n" for s in qos.splitlines())
    return {
        "config": config,
        "partition": partitions,
        "node": nodes,
        "qos": qos,
        "assoc": None if qos is None else "",
    }


def captured(release: str) -> dict[str, str | None]:
    def read(name: str) -> str:
        return (CAPTURES / release / f"{name}.txt").read_text(encoding="utf-8")

    return answers(read("partition"), read("node"), read("qos"), read("config"))


def read(told: Mapping[str, str | None]) -> LiveCluster:
    def lines(name: str) -> list[str]:
        return (told[name] or "").split("\n")

    return LiveCluster(
        parse_config(iter(lines("config"))),
        tuple(parse_partitions(iter(lines("partition")))),
        tuple(parse_nodes(iter(lines("node")))),
        None if told["qos"] is None else parse_qos(iter(lines("qos"))),
    )


Says = Callable[..., Path]


@pytest.fixture
def slurm_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    """Puts scontrol and sacctmgr on PATH that give these answers; ends: how, by question."""

    def say(told: Mapping[str, str | None], **ends: str) -> Path:
        place = tmp_path / "slurm"
        place.mkdir(exist_ok=True)
        for name, text in told.items():
            if text is not None:
                (place / name).write_text(text)
        script = '#!/bin/bash\nquestion="${@: -1}"\n'
        for asked in ("qos", "assoc"):
            script += f'[[ $* != *"show {asked}"* ]] || question={asked}\n'
        for question, end in ends.items():
            script += f"if [[ $question == {question} ]]; then {end}; fi\n"
        script += f'exec cat "{place}/$question"\n'
        for command in ("scontrol", "sacctmgr"):
            path = place / command
            path.write_text(script)
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
        return place

    return say
