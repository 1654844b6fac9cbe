"""The host's memory: a cluster whose jobs get no more than they were granted.

Slurm puts each step into a memory cgroup (task/cgroup, version 1) and the kernel ends the process
that takes most when it is full. Nodes share the machine's hierarchy, each below a name of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from tests.faults.trial import PATIENCE_S, Trial
from tests.slurm_cluster.machines import poll

from .stage import STOP, Stage, scenario

MEMORY_CLUSTER = {"nodes": 2}
"""A cluster of its own: its configuration is changed for good."""
CGROUP_CONF = """CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace=yes
"""
MOUNT = """
mount -t tmpfs tmpfs /sys/fs/cgroup
for kind in memory freezer; do
    mkdir /sys/fs/cgroup/$kind
    mount -t cgroup -o $kind cgroup /sys/fs/cgroup/$kind
done
"""
EATING = ("--break", "eat-memory", "--ranks", "1")


def constrain_memory(stage: Stage) -> None:
    """From now on the cluster's daemons hold jobs to their memory."""
    cluster = stage.cluster
    conf = cluster.conf.read_text()
    if "task/cgroup" in conf:
        return
    conf = conf.replace("TaskPlugin=task/none", "TaskPlugin=task/cgroup")
    cluster.conf.write_text(conf.replace("CR_Core\n", "CR_Core_Memory\n"))
    (cluster.root / "etc" / "cgroup.conf").write_text(CGROUP_CONF)
    cluster.stop_controller()
    for node in cluster.options.node_names:
        _stop_slurmd(stage, node)
        stage.on_node(node, ["sh", "-ec", MOUNT], ["true"])
    cluster.start_controller()
    for node in cluster.options.node_names:
        cluster.start_node(node)
    cluster.wait_idle()


def forget_cgroups(nodes: Iterable[str]) -> None:
    """What slurmd leaves of its cgroups when it has ended, in the machine's own hierarchy."""
    for node in nodes:
        with contextlib.suppress(OSError):
            Path(f"/sys/fs/cgroup/memory/slurm_{node}").rmdir()


def _stop_slurmd(stage: Stage, node: str) -> None:
    pid = stage.cluster.places.pid_file(f"slurmd.{node}").read_text().strip()
    stage.cluster.node_exec(node, ["kill", pid])

    def gone() -> bool:
        return stage.cluster.node_exec(node, ["kill", "-0", pid]).returncode != 0

    poll(gone, PATIENCE_S, "end of slurmd")


@scenario("host-out-of-memory", "host-out-of-memory", rank=1, node="node2", cluster=MEMORY_CLUSTER)
def killed_in_step(stage: Stage) -> Trial:
    """Rank 1 takes more memory than the job was granted, and the kernel ends it in its cgroup."""
    constrain_memory(stage)
    return stage.linear(*EATING, sets=("resources.memory=900M", *STOP))


@scenario(
    "host-out-of-memory-again", "host-out-of-memory", rank=1, node="node2", cluster=MEMORY_CLUSTER
)
def killed_again(stage: Stage) -> Trial:
    """The same with ranks that are started again, until their restarts are used up."""
    constrain_memory(stage)
    sets = ("resources.memory=900M", "retry.restarts=1", "retry.requeues=0")
    return stage.linear(*EATING, sets=sets)
