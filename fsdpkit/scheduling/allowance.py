"""Whether Slurm would ever start a job: what `sbatch --test-only` does not know of.

Pure: a request and what Slurm says of the cluster and of this user in; sentences out. What is
unknown forbids nothing. Of people and accounts only the limits count, never what else they run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fsdpkit.config.units import format_time
from fsdpkit.listing import first_of
from fsdpkit.rendering.script import Plan
from fsdpkit.scheduling.live_cluster import LiveCluster, LivePartition
from fsdpkit.scheduling.live_limits import Counted, LiveAssociation, LiveQos
from fsdpkit.scheduling.live_placement import chosen, max_memory_per_cpu_mb


@dataclass(frozen=True)
class Request:
    """What a script asks of Slurm; the last four are of one node. None: it does not say."""

    partition: str | None
    account: str | None
    qos: str | None
    nodes: int
    time_s: int
    gpus: int
    cpus: int
    memory_mb: int | None

    @property
    def amounts(self) -> dict[str, int]:
        """In all, by Slurm's names of what it counts."""
        memory = {"mem": self.nodes * self.memory_mb} if self.memory_mb else {}
        gpus, cpus = self.nodes * self.gpus, self.nodes * self.cpus
        return {"node": self.nodes, "gres/gpu": gpus, "cpu": cpus, **memory}


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
    )


def objections(asked: Request, live: LiveCluster) -> list[str]:
    """Why the job would be refused, or wait for ever."""
    own = _associations(asked, live)
    qos = asked.qos or next((one.default_qos for one in own if one.default_qos), None)
    found = [why for one in chosen(live, asked.partition) for why in _at(one, asked, own, qos)]
    if live.counts_qos and asked.qos and own and not any(asked.qos in one.qos for one in own):
        yours = first_of(sorted({name for one in own for name in one.qos}), 12)
        found.append(f"QOS {asked.qos} is not among yours: {yours or 'none'}")
    if live.counts_limits:
        found += _of_accounts(asked, own, live.associations or ())
        rules = {qos, *(one.qos for one in chosen(live, asked.partition))}
        for name in sorted(filter(None, rules)):
            if (rule := (live.qos or {}).get(name)) is not None:
                found += _of_qos(asked, rule)
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


def _of_accounts(
    asked: Request, own: Sequence[LiveAssociation], known: Sequence[LiveAssociation]
) -> Iterator[str]:
    """Of the user's association, of its account and of those above. A job runs by one."""
    above = {one.account: one for one in known if not one.user}
    broken = [[*_of_chain(asked, one, above)] for one in own]
    if broken and all(broken):
        yield from broken[0]


def _of_chain(
    asked: Request, own: LiveAssociation, above: dict[str, LiveAssociation]
) -> Iterator[str]:
    yield from _of_association(asked, own, f"your association with account {own.account}")
    name, seen = own.account, set[str]()
    while name in above and name not in seen:
        seen.add(name)
        yield from _of_association(asked, above[name], f"account {name}")
        name = above[name].parent


def _of_association(asked: Request, one: LiveAssociation, whose: str) -> Iterator[str]:
    yield from _over(asked.amounts, one.per_job, f"{whose} allows a job")
    yield from _over(asked.amounts, one.in_all, f"{whose} allows all its jobs together")
    yield from _over({"gres/gpu": asked.gpus}, one.per_node, f"{whose} allows of each node")
    yield from _too_long(asked, one.max_time_s, one.job_minutes, whose)
    if 0 in (one.max_jobs, one.max_submitted):
        yield f"{whose} allows no job (MaxJobs or MaxSubmitJobs is 0)"


def _of_qos(asked: Request, one: LiveQos) -> Iterator[str]:
    whose = f"QOS {one.name}"
    yield from _over(asked.amounts, one.per_job, f"{whose} allows a job")
    yield from _over(asked.amounts, one.in_all, f"{whose} allows all its jobs together")
    yield from _over(asked.amounts, one.per_user, f"{whose} allows one person at a time")
    yield from _over(asked.amounts, one.per_account, f"{whose} allows one account at a time")
    yield from _over({"gres/gpu": asked.gpus}, one.per_node, f"{whose} allows of each node")
    for name, least in one.least.items():
        if asked.amounts.get(name, least) < least:
            yield f"{asked.amounts[name]} {_unit(name)} asked, {whose} wants {least} or more"
    yield from _too_long(asked, one.max_time_s, one.job_minutes, whose)


def _over(amounts: Counted, limits: Counted, words: str) -> Iterator[str]:
    for name, most in limits.items():
        if amounts.get(name, 0) > most:
            yield f"{amounts[name]} {_unit(name)} asked, {words} {most}"


def _too_long(asked: Request, most_s: int | None, minutes: Counted, whose: str) -> Iterator[str]:
    longest = [most_s] if most_s is not None else []
    longest += [
        limit * 60 // count for name, limit in minutes.items() if (count := asked.amounts.get(name))
    ]
    if longest and asked.time_s > min(longest):
        shown = format_time(min(longest)) if min(longest) else "none"
        yield f"{format_time(asked.time_s)} asked, {whose} allows this job {shown}"


def _unit(name: str) -> str:
    return {"node": "nodes", "gres/gpu": "GPUs", "cpu": "cores", "mem": "MB"}.get(name, name)
