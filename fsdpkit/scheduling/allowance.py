"""Whether Slurm would ever start a job: what `sbatch --test-only` does not know of.

A request and what Slurm says of the cluster and of this user in; sentences out. What is unknown
forbids nothing. Of people and accounts only the limits count, never what else they run.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fsdpkit.config.units import format_time
from fsdpkit.errors import SchedulerError
from fsdpkit.listing import first_of
from fsdpkit.rendering.script import Plan
from fsdpkit.scheduling.live_cluster import LiveCluster, LivePartition, ask
from fsdpkit.scheduling.live_limits import LiveAssociation, LiveQos
from fsdpkit.scheduling.live_placement import chosen, max_memory_per_cpu_mb


@dataclass(frozen=True)
class Request:
    """What a script asks of Slurm; the last are of one node. None: it does not say."""

    partition: str | None
    account: str | None
    qos: str | None
    nodes: int
    time_s: int
    gpus: int
    cpus: int
    memory_mb: int | None
    gpu_type: str | None = None

    @property
    def amounts(self) -> dict[str, int]:
        """In all, by Slurm's names of what it counts."""
        memory = {"mem": self.nodes * self.memory_mb} if self.memory_mb else {}
        gpus, cpus = self.nodes * self.gpus, self.nodes * self.cpus
        typed = {f"gres/gpu:{self.gpu_type}": gpus} if self.gpu_type else {}
        return {"node": self.nodes, "gres/gpu": gpus, "cpu": cpus, **memory, **typed}


def request_of(plan: Plan) -> Request:
    resources, placement = plan.job.spec.resources, plan.placement
    return Request(
        partition=placement.select.get("partition"),
        account=resources.account,
        qos=resources.qos or placement.select.get("qos"),
        nodes=resources.nodes_asked,
        time_s=resources.time_s,
        gpus=0 if placement.gpu_form == "none" else resources.gpus,
        cpus=placement.cpus_per_task,
        memory_mb=placement.memory_mb,
        gpu_type=placement.node_type.gpu_type or plan.site.profile.gpu_request.type,
    )


def judged(plan: Plan, test: Callable[[], str]) -> str:
    """What sbatch says of a script that it would take (`test`), and what Slurm would do otherwise
    than asked. Raises SchedulerError if it would not, or its job would wait for ever."""
    refused: SchedulerError | None = None
    try:
        told = test()
    except SchedulerError as error:
        if "Access/permission denied" not in str(error):
            raise
        told, refused = "", error
    try:
        live = ask(plan.site.profile.slurm_clusters)
    except SchedulerError as error:
        if refused is not None:
            raise refused from None
        return f"{told} (limits were not read: {str(error).splitlines()[0]})"
    asked = request_of(plan)
    if refused is not None:
        if not _names_this_host(chosen(live, asked.partition)):
            raise refused
        told = "sbatch --test-only cannot judge a partition that lists login nodes, as here"
    if wrong := objections(asked, live):
        listed = "".join(f"\n  {why}" for why in wrong)
        raise SchedulerError(
            f"sbatch would take the script, but its job would be refused or never start:{listed}"
        )
    return "\n".join([told, *remarks(asked, live)])


def _names_this_host(partitions: Sequence[LivePartition]) -> bool:
    """Whether jobs may come from here where a list says from where (AllocNodes): sbatch
    --test-only says of no job where it comes from, so Slurm refuses it there."""
    here = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    lists = [one.login_nodes for one in partitions if one.login_nodes is not None]
    return bool(lists) and all(here & {*names} for names in lists)


def objections(asked: Request, live: LiveCluster) -> list[str]:
    """Why the job would be refused, or wait for ever."""
    own = _associations(asked, live)
    qos = asked.qos or next((one.default_qos for one in own if one.default_qos), None)
    partitions = chosen(live, asked.partition)
    found = [why for one in partitions for why in _at(one, asked, own, qos)]
    if live.counts_qos and asked.qos and own and not any(asked.qos in one.qos for one in own):
        yours = first_of(sorted({name for one in own for name in one.qos}), 12)
        found.append(f"QOS {asked.qos} is not among yours: {yours or 'none'}")
    if live.counts_limits:
        names = dict.fromkeys([*(one.qos for one in partitions), qos])
        rules = [rule for name in names if name and (rule := (live.qos or {}).get(name))]
        levels: list[Level] = [(f"QOS {rule.name}", rule) for rule in rules]
        ways = [[*levels, *_chain(one, live.associations or ())] for one in own] or [levels]
        broken = [[*_above_limits(asked, way)] for way in ways]
        found += broken[0] if all(broken) else []
    return list(dict.fromkeys(found))


def remarks(asked: Request, live: LiveCluster) -> list[str]:
    """What Slurm would do otherwise than asked."""
    memory, found = asked.memory_mb or 0, []
    for partition in chosen(live, asked.partition):
        most = max_memory_per_cpu_mb(partition, live)
        if most and memory > most * asked.cpus:
            found.append(
                f"{memory} MB a node are more than partition {partition.name} gives {asked.cpus} "
                f"cores (MaxMemPerCPU={most}): Slurm would take, and charge for, "
                f"{-(-memory // most)} cores"
            )
    return found


def _associations(asked: Request, live: LiveCluster) -> list[LiveAssociation]:
    """This user's, by which the job would run."""
    own = [one for one in live.associations or () if one.user]
    if asked.account is not None:
        own = [one for one in own if one.account == asked.account.lower()]
    names = asked.partition.split(",") if asked.partition else []
    return [one for one in own if one.partition in names] or [o for o in own if not o.partition]


def _at(
    partition: LivePartition, asked: Request, own: Sequence[LiveAssociation], qos: str | None
) -> Iterator[str]:
    where, accounts = f"partition {partition.name}", {one.account for one in own}
    if asked.account is not None:
        accounts = {asked.account.lower()}
    allowed, denied = partition.allowed_accounts, {*partition.denied_accounts}
    if allowed is not None and accounts and not accounts & {*allowed}:
        yield f"{where} is for accounts {first_of(allowed, 12)} only"
    if accounts and accounts <= denied:
        yield f"{where} is not for account {first_of(sorted(accounts), 12)}"
    if partition.allowed_qos is not None and qos and qos not in partition.allowed_qos:
        yield f"{where} takes QOS {first_of(partition.allowed_qos, 12)} only, the job has {qos}"
    if qos and qos in partition.denied_qos:
        yield f"{where} does not take QOS {qos}"


Level = tuple[str, LiveQos | LiveAssociation]
"""Whose limits, and they."""


def _chain(own: LiveAssociation, known: Sequence[LiveAssociation]) -> Iterator[Level]:
    """The user's association, its account and those above."""
    yield f"your association with account {own.account}", own
    above = {one.account: one for one in known if not one.user}
    name, seen = own.account, set[str]()
    while name in above and name not in seen:
        seen.add(name)
        yield f"account {name}", above[name]
        name = above[name].parent


_WORDS = {
    "per_job": "allows a job",
    "in_all": "allows all its jobs together",
    "per_user": "allows one person at a time",
    "per_account": "allows one account at a time",
    "per_node": "allows of each node",
}


def _above_limits(asked: Request, levels: Sequence[Level]) -> Iterator[str]:
    """Of each limit the level counts that sets it first: the partition's QOS, the job's, the
    association, the accounts above (Slurm's resource_limits page)."""
    amounts, defined = asked.amounts, set[tuple[str, str]]()

    def first(kind: str, name: str) -> bool:
        known = (kind, name) in defined
        defined.add((kind, name))
        return not known

    for whose, rule in levels:
        for kind, words in _WORDS.items():
            have = {"gres/gpu": asked.gpus} if kind == "per_node" else amounts
            for name, most in getattr(rule, kind, {}).items():
                if first(kind, name) and have.get(name, 0) > most:
                    yield f"{have[name]} {_unit(name)} asked, {whose} {words} {most}"
        for name, least in getattr(rule, "least", {}).items():
            if first("least", name) and amounts.get(name, least) < least:
                yield f"{amounts[name]} {_unit(name)} asked, {whose} wants {least} or more"
        times = {"": rule.max_time_s}
        times |= {n: m * 60 // amounts[n] for n, m in rule.job_minutes.items() if amounts.get(n)}
        for name, most_s in times.items():
            if most_s is not None and first("time", name) and asked.time_s > most_s:
                shown = format_time(most_s) if most_s else "no time"
                yield f"{format_time(asked.time_s)} asked, {whose} allows this job {shown}"
        for key in ("max_jobs", "max_submitted"):
            most = getattr(rule, key)
            if most is not None and first(key, "") and most == 0:
                yield f"{whose} allows no job at all"


def _unit(name: str) -> str:
    return {"node": "nodes", "gres/gpu": "GPUs", "cpu": "cores", "mem": "MB"}.get(name, name)
