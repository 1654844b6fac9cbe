"""Whether Slurm would ever start a job: what `sbatch --test-only` does not know of.

A request and what Slurm says of the cluster and of this user in; sentences out. What is unknown
forbids nothing. Of people and accounts only the limits count, never what else they run.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fsdpkit.config.units import format_time
from fsdpkit.errors import SchedulerError
from fsdpkit.listing import first_of
from fsdpkit.rendering.script import Plan
from fsdpkit.scheduling.live_cluster import LiveCluster, LivePartition
from fsdpkit.scheduling.live_limits import JOBS, LiveAssociation, LiveLimits, LiveQos, count
from fsdpkit.scheduling.live_placement import chosen, max_memory_per_cpu_mb
from fsdpkit.scheduling.slurm_answers import answers_for, answers_of


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
    reserved: bool = False
    """A reservation may bring its own partition."""

    def partitions(self, live: LiveCluster) -> list[LivePartition]:
        """Where it may run; empty if that is not known."""
        return [] if self.reserved and not self.partition else chosen(live, self.partition)

    @property
    def amounts(self) -> dict[str, int]:
        """In all, by Slurm's names of what it counts."""
        memory = {"mem": self.nodes * self.memory_mb} if self.memory_mb else {}
        gpus, cpus = self.nodes * self.gpus, self.nodes * self.cpus
        typed = {f"gres/gpu:{self.gpu_type}": gpus} if self.gpu_type else {}
        return {"node": self.nodes, "gres/gpu": gpus, "cpu": cpus, **memory, **typed}


@dataclass(frozen=True)
class Allowance:
    """never: why the job would be refused, or wait for ever. remarks: what may delay it, and what
    Slurm would do otherwise than asked."""

    never: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def request_of(plan: Plan) -> Request:
    resources, placement = plan.job.spec.resources, plan.placement
    return Request(
        partition=placement.select.get("partition"),
        account=resources.account.lower() if resources.account else None,
        qos=resources.qos or placement.select.get("qos"),
        nodes=resources.nodes_asked,
        time_s=resources.time_s,
        gpus=0 if placement.gpu_form == "none" else resources.gpus,
        cpus=placement.cpus_per_task,
        memory_mb=placement.memory_mb,
        gpu_type=placement.node_type.gpu_type or plan.site.profile.gpu_request.type,
        reserved=resources.reservation is not None,
    )


def with_remarks(plan: Plan) -> Plan:
    """The plan with a warning of delays and differences, as far as Slurm answers in time."""
    found = _allowance_of(plan)
    if isinstance(found, SchedulerError):
        return plan
    warnings = (*plan.placement.warnings, *found.remarks)
    return replace(plan, placement=replace(plan.placement, warnings=warnings))


def refuse_what_never_starts(plan: Plan) -> None:
    """Raises SchedulerError for a job that would never start, as far as Slurm answers in time."""
    found = _allowance_of(plan)
    if not isinstance(found, SchedulerError) and found.never:
        listed = "".join(f"\n  {why}" for why in found.never)
        raise SchedulerError(f"Slurm would refuse the job, or never start it:{listed}")


def judged(plan: Plan, test: Callable[[], str]) -> str:
    """What sbatch says of a script that it takes (`test`). Raises SchedulerError for no start."""
    found = _allowance_of(plan)
    unread = str(found).splitlines()[0] if isinstance(found, SchedulerError) else None
    refuse_what_never_starts(plan)
    try:
        told = test()
    except SchedulerError as error:
        if unread or "Access/permission denied" not in str(error) or not _names_this_host(plan):
            raise
        told = "sbatch --test-only cannot judge a partition that lists login nodes, as here"
    return f"{told} (limits were not read: {unread})" if unread else told


def _allowance_of(plan: Plan) -> Allowance | SchedulerError:
    """What the cluster's answers mean for the plan; an error where they were not to be had."""
    if (answers := answers_for(plan.site.profile)) is None:
        return SchedulerError("this cluster cannot be asked from here")
    try:
        return allowance(request_of(plan), answers.live(nodes=False))
    except SchedulerError as error:
        return error


def _names_this_host(plan: Plan) -> bool:
    """Whether jobs may come from here where a list says from where (AllocNodes): sbatch
    --test-only says of no job where it comes from, so Slurm refuses it there."""
    here = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    live = answers_of(plan.site.profile.slurm_clusters).live(nodes=False)
    partitions = chosen(live, request_of(plan).partition)
    lists = [one.login_nodes for one in partitions if one.login_nodes is not None]
    return bool(lists) and all(here & {*names} for names in lists)


def allowance(asked: Request, live: LiveCluster) -> Allowance:
    """What stands against the job, and what may delay it. Where a plug-in of the centre's may
    choose for a job that names no partition or QOS (JobSubmitPlugins), it never starts only if no
    choice is left."""
    plugins = live.config.get("JobSubmitPlugins") not in (None, "", "(null)")
    against = _against(asked, live, free=False)
    never = _against(asked, live, free=True) if against and plugins else against
    partitions = asked.partitions(live)
    doubts = against if not never else []
    remarks = [*doubts, *_more_cores(asked, live, partitions), *delays(asked, live, partitions)]
    return Allowance(tuple(never), tuple(remarks))


def _against(asked: Request, live: LiveCluster, *, free: bool) -> list[str]:
    """Why the job would not start in its partitions (slurm.conf, EnforcePartLimits). free: a job
    that names no partition or QOS may get any."""
    partitions: list[LivePartition | None] = [*asked.partitions(live)]
    if free and asked.partition is None:
        partitions += [one for one in live.partitions if one.up and not one.default]
    found = [_objections(asked, live, one, free=free) for one in partitions or [None]]
    all_must = live.config.get("EnforcePartLimits") == "ALL" and asked.partition is not None
    if not all_must and not all(found):
        return []
    shown = found if all_must or not free else found[:1]
    return list(dict.fromkeys(why for each in shown for why in each))


def _objections(
    asked: Request, live: LiveCluster, partition: LivePartition | None, *, free: bool
) -> list[str]:
    """Why the job would not start in one partition, by whichever of this user's associations."""
    if wrong := [*_membership(asked, live, partition)]:
        return wrong
    too_few = [*_too_few(asked, live, partition)] if partition else []
    too_few += [*_too_much(asked, live, partition)] if partition else []
    broken = []
    for way in _ways(asked, live, partition, free=free):
        found = [*too_few, *_of_partition(asked, way), *_above(asked, live, way)]
        if not found:
            return []
        broken.append(found)
    return min(broken, key=len)


class _Way(NamedTuple):
    """By which a job may run. None: not known."""

    own: LiveAssociation | None
    qos: str | None
    partition: LivePartition | None
    rule: LiveQos | None
    """Of the job's QOS."""
    partition_rule: LiveQos | None
    """Of the partition's."""

    @property
    def flags(self) -> set[str]:
        return {flag for rule in self[3:] if rule for flag in rule.flags}


def _ways(
    asked: Request, live: LiveCluster, partition: LivePartition | None, *, free: bool
) -> Iterator[_Way]:
    """By each association, with the QOS that the job would get; free: then with any other."""
    own, rules = _mine(asked, live), live.qos or {}
    special = [one for one in own if partition and one.partition == partition.name]
    usual = special or [one for one in own if not one.partition]
    for one in usual or (None,):
        default = one.default_qos if one else None
        others = one.qos if one and free and asked.qos is None else ()
        for qos in dict.fromkeys([asked.qos or default, *others]):
            of_partition = rules.get(partition.qos or "") if partition else None
            yield _Way(one, qos, partition, rules.get(qos or ""), of_partition)


def _mine(asked: Request, live: LiveCluster) -> list[LiveAssociation]:
    """This user's associations with the account that the job names."""
    own = [one for one in live.associations or () if one.user]
    return [one for one in own if asked.account in (None, one.account)]


def _membership(
    asked: Request, live: LiveCluster, partition: LivePartition | None
) -> Iterator[str]:
    """If the account or QOS that the job names is none of this user's, or not in the partition."""
    own = [one for one in live.associations or () if one.user]
    accounts = sorted({one.account for one in own})
    mine = _mine(asked, live)
    here = ("", partition.name.lower()) if partition else None
    shut = here is not None and not any(one.partition.lower() in here for one in mine)
    if live.enforces("associations") and partition and mine and shut:
        ways = [f"--account {one.account} --partition {one.partition}" for one in own]
        whose = asked.account or "you"
        yield f"partition {partition.name} is not open to {whose}: {first_of(ways, 6)}"
    if live.enforces("associations") and accounts and not mine:
        yield f"account {asked.account} is not among yours: --account {first_of(accounts, 12)}"
    names = sorted({name for one in mine for name in one.qos})
    if live.enforces("qos") and mine and asked.qos not in (None, *names):
        takes = [p.allowed_qos for p in asked.partitions(live) if p.allowed_qos is not None]
        fitting = [name for name in names if all(name in allowed for allowed in takes)]
        yours = (
            f"--set resources.qos={first_of(fitting, 12)}"
            if fitting
            else "none of yours would do there"
        )
        yield f"QOS {asked.qos} is not among yours: {yours}"


def _of_partition(asked: Request, way: _Way) -> Iterator[str]:
    """What the partition has against the job: whom it takes, and how large and long."""
    if (partition := way.partition) is None:
        return
    qos = way.qos
    where, account = f"partition {partition.name}", asked.account or (way.own and way.own.account)
    takes = partition.allowed_accounts
    if takes is not None and account not in (None, *takes):
        yield f"{where} is for accounts {first_of(takes, 12)} only"
    if account in partition.denied_accounts:
        yield f"{where} is not for account {account}"
    if partition.allowed_qos is not None and qos and qos not in partition.allowed_qos:
        yield f"{where} takes QOS {first_of(partition.allowed_qos, 12)} only, the job has {qos}"
    if qos in partition.denied_qos:
        yield f"{where} does not take QOS {qos}"
    if partition.state in ("DRAIN", "INACTIVE"):
        yield f"{where} takes no jobs: it is {partition.state}"
    most, least, longest_s = partition.max_nodes, partition.min_nodes, partition.max_time_s
    # Flags of a QOS lift the partition's own limits (Slurm's qos page).
    if most is not None and asked.nodes > most and "partitionmaxnodes" not in way.flags:
        yield f"{asked.nodes} nodes asked, {where} allows a job {most}"
    if least is not None and asked.nodes < least and "partitionminnodes" not in way.flags:
        yield f"{asked.nodes} nodes asked, {where} wants {least} or more"
    too_long = longest_s is not None and asked.time_s > longest_s
    if longest_s is not None and too_long and "partitiontimelimit" not in way.flags:
        yield f"{format_time(asked.time_s)} asked, {where} allows a job {format_time(longest_s)}"


def _too_few(asked: Request, live: LiveCluster, partition: LivePartition) -> Iterator[str]:
    """If the partition has not so many such nodes, up or not."""
    nodes, where = live.nodes_of(partition), f"partition {partition.name}"
    if partition.nodes and asked.nodes > len(partition.nodes):
        yield f"{asked.nodes} nodes asked, {where} has {len(partition.nodes)}"
    elif nodes and not live.unknown_nodes(partition):
        each = [sum(n for _, n in node.gpus) for node in nodes]
        if (enough := sum(n >= asked.gpus for n in each)) < asked.nodes:
            most = "" if enough else f" with so many: its largest have {max(each)}"
            yield f"{asked.nodes} nodes with {asked.gpus} GPUs asked, {where} has {enough}{most}"


def _too_much(asked: Request, live: LiveCluster, partition: LivePartition) -> Iterator[str]:
    """If a job may not have so much memory of a node; it would wait for MaxMemPerLimit."""
    most = partition.max_memory_mb or count(live.config.get("MaxMemPerNode"))
    if most and (asked.memory_mb or 0) > most:
        yield (
            f"{asked.memory_mb} MB a node asked, partition {partition.name} allows a job {most}: "
            f"--set resources.memory={most}M"
        )


def delays(asked: Request, live: LiveCluster, partitions: Sequence[LivePartition]) -> list[str]:
    """Why the job waits although nothing is against it."""
    found = []
    if partitions and all(one.state == "DOWN" for one in partitions):
        found.append(f"partition {partitions[0].name} is down: it starts no job until it is up")
    for one in partitions:
        nodes, more = live.nodes_of(one), live.unknown_nodes(one)
        away = sum(not node.usable for node in nodes)
        if len(nodes) - away + more < asked.nodes <= len(nodes) + more:
            found.append(
                f"{asked.nodes} nodes asked, {away} of {len(nodes)} nodes of partition {one.name} "
                "are down, drained or in maintenance"
            )
    return found


def _more_cores(
    asked: Request, live: LiveCluster, partitions: Sequence[LivePartition]
) -> Iterator[str]:
    memory = asked.memory_mb or 0
    for partition in partitions:
        most = max_memory_per_cpu_mb(partition, live)
        if most and memory > most * asked.cpus:
            yield (
                f"{memory} MB a node are more than partition {partition.name} gives {asked.cpus} "
                f"cores (MaxMemPerCPU={most}): Slurm would take, and charge for, "
                f"{-(-memory // most)} cores"
            )


def _above(asked: Request, live: LiveCluster, way: _Way) -> Iterator[str]:
    """The limits of QOS and accounts that the job is above."""
    if not live.enforces("limits"):
        return
    rules = [way.partition_rule, way.rule]
    if way.rule and "overpartqos" in way.rule.flags:
        rules.reverse()
    levels: list[Level] = [(f"QOS {rule.name}", rule) for rule in rules if rule]
    levels += _chain(way.own, live.associations or ()) if way.own else []
    yield from _above_limits(asked, levels, safe=live.enforces("safe"))


Level = tuple[str, LiveLimits]
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
    "MaxTRES": "allows a job",
    "GrpTRES": "allows all its jobs together",
    "MaxTRESPU": "allows one person at a time",
    "MaxTRESPA": "allows one account at a time",
    "MaxTRESPerNode": "allows of each node",
}


_MINUTES = ("MaxTRESMins", "GrpTRESRunMins", "MaxTRESRunMinsPU", "MaxTRESRunMinsPA")
"""Columns that count an amount by the minutes it is held; the later ones of all that runs."""


def _above_limits(asked: Request, levels: Sequence[Level], *, safe: bool) -> Iterator[str]:
    """Of each limit the level counts that sets it first: the partition's QOS, the job's, the
    association, the accounts above (Slurm's resource_limits page). What all jobs of an account may
    have together counts at each account, unless a QOS says otherwise. safe: a job starts only if it
    can end within what is left of its account's minutes."""
    amounts, defined = asked.amounts, set[tuple[str, str]]()

    def first(column: str, rule: LiveLimits) -> Iterator[tuple[str, int]]:
        kind = column.removesuffix("PU") if column in JOBS else column
        for name, amount in rule.of(column).items():
            if (kind, name) not in defined:
                yield name, amount
            if not column.startswith("Grp") or isinstance(rule, LiveQos):
                defined.add((kind, name))

    for whose, rule in levels:
        for column, words in _WORDS.items():
            have = {"gres/gpu": asked.gpus} if column == "MaxTRESPerNode" else amounts
            for name, most in first(column, rule):
                if have.get(name, 0) > most:
                    yield f"{have[name]} {_unit(name)} asked, {whose} {words} {most}"
        for name, least in first("MinTRES", rule):
            if amounts.get(name, least) < least:
                yield f"{amounts[name]} {_unit(name)} asked, {whose} wants {least} or more"
        times = [most_s for _, most_s in first("MaxWall", rule)]
        of_each = [pair for column in _MINUTES for pair in first(column, rule)]
        of_each += [pair for pair in first("GrpTRESMins", rule) if safe or pair[1] == 0]
        minutes = [(amounts.get(name), most) for name, most in of_each]
        times += [most * 60 // amount for amount, most in minutes if amount]
        for most_s in times:
            if asked.time_s > most_s:
                shown = format_time(most_s) if most_s else "no time"
                yield f"{format_time(asked.time_s)} asked, {whose} allows this job {shown}"
        if 0 in [most for each in JOBS for _, most in first(each, rule)]:
            yield f"{whose} allows no job at all"


def _unit(name: str) -> str:
    return {"node": "nodes", "gres/gpu": "GPUs", "cpu": "cores", "mem": "MB"}.get(name, name)
