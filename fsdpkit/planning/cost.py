"""What a job asks for and costs: GPU-hours, and the centre's own units where its rates are known.
No torch."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fsdpkit.config.billing import HourlyRates
from fsdpkit.config.job import Resources
from fsdpkit.config.placement import Placement
from fsdpkit.config.units import parse_array
from fsdpkit.rendering.script import Plan
from fsdpkit.runs.predicted import Span

_HOUR_S = 3600


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Of the whole training where its length is predicted; `most`: of one job's time limit."""

    gpus: int
    """That are charged for: those of whole nodes where jobs get whole nodes, spare ones too."""
    gpu_hours: Span | None
    most_gpu_hours: float
    unit: str | None = None
    """What the centre charges in; None: its rates are not known."""
    units: Span | None = None
    most_units: float | None = None
    source: str = ""
    """Where the rates are from, or why they could not be used."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a submission would ask for: what a person agrees to."""

    cluster: str
    partition: str | None
    """None: Slurm's default."""
    account: str | None
    nodes: int
    """Of each task, standby nodes included."""
    gpus_per_node: int
    tasks: int
    """Of an array; else 1."""
    time_limit_s: int
    most_gpu_hours: float
    """If all run up to the time limit, once; 0 in an allocation that exists."""
    requeues: bool
    """Whether the job may queue itself again, by `[retry]`; each start may cost as much again."""


def asked_by(plan: Plan) -> Asked:
    """Of the job, or of all tasks of its array."""
    resources = plan.job.spec.resources
    tasks = len(parse_array(plan.array)[0]) if plan.array else 1
    allowed = plan.allocation is None and plan.site.profile.policy.requeue is not False
    most_gpu_hours = tasks * cost_of(resources, plan.placement, None, None).most_gpu_hours
    return Asked(
        cluster=plan.site.id,
        partition=plan.placement.partition,
        account=resources.account,
        nodes=resources.nodes_asked,
        gpus_per_node=resources.gpus,
        tasks=tasks,
        time_limit_s=resources.time_s,
        most_gpu_hours=0.0 if plan.allocation else most_gpu_hours,
        requeues=allowed and plan.job.may_requeue,
    )


def cost_of(
    resources: Resources, placement: Placement, rates: HourlyRates | None, seconds: Span | None
) -> Cost:
    """seconds: as the training is predicted to last, all its jobs together."""
    nodes, node = resources.nodes_asked, _charged(resources, placement)
    gpus = nodes * int(node["gres/gpu"] or 0)
    most_h = resources.time_s / _HOUR_S
    hours = None if seconds is None else seconds.times(1 / _HOUR_S)
    found = Cost(
        gpus=gpus,
        gpu_hours=None if hours is None else hours.times(gpus),
        most_gpu_hours=gpus * most_h,
    )
    if rates is None:
        return found
    if (each_h := rates.per_hour(node, nodes)) is None:
        lacking = ", ".join(name for name in rates.weights if node.get(name, 0) is None)
        why = f"how much {lacking} a node gives is not known: --set resources.memory=SIZE says it"
        return msgspec.structs.replace(found, source=why)
    return msgspec.structs.replace(
        found,
        unit=rates.unit,
        units=None if hours is None or not each_h else hours.times(each_h),
        most_units=each_h * most_h,
        source=rates.source,
    )


def _charged(resources: Resources, placement: Placement) -> dict[str, float | None]:
    """What of one node counts, by Slurm's names."""
    node, whole = placement.node_type, placement.way.whole_nodes == "given" or resources.exclusive
    memory_mb: float | None = placement.memory_mb
    if whole or memory_mb == 0:
        memory_mb = node.memory_mb
    gpus = (node.gpus if whole else None) or resources.gpus
    cpus = (node.cpus if whole else None) or placement.cpus_per_task
    found: dict[str, float | None] = {"cpu": cpus, "mem": memory_mb, "node": 1, "gres/gpu": gpus}
    if node.gpu_type:
        found[f"gres/gpu:{node.gpu_type.lower()}"] = gpus
    return found


def cost_lines(cost: Cost) -> Iterator[str]:
    """For people."""
    yield f"costs {_amount(cost.gpu_hours, cost.most_gpu_hours, 'GPU-hours')}"
    if cost.unit is not None and cost.most_units is not None:
        yield f"  = {_amount(cost.units, cost.most_units, cost.unit)}"
    if cost.source:
        yield f"  rates: {cost.source}"


def _amount(span: Span | None, most: float, unit: str) -> str:
    whole = f"{_number(most)} in one whole --time"
    if span is None:
        return f"at most {_number(most)} {unit} in one whole --time"
    low, middle, high = map(_number, (span.low, span.middle, span.high))
    spread = "" if low == high else f" ({low} to {high})"
    return f"{middle} {unit}{spread}, {whole}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
