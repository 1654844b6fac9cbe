"""What `fsdpkit plan --json` prints, in bytes, and what `plan` says beside memory and speed:
whether the job finishes, what it costs, when it would start, and what its saves and its data ask of
the file system and of host memory. Everything is computed, nothing measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from fsdpkit.cli.json_output import answer
from fsdpkit.cli.options import print_sentences
from fsdpkit.config.units import format_bytes, format_gb
from fsdpkit.errors import FsdpkitError
from fsdpkit.reporting.printable import printable

if TYPE_CHECKING:
    from fsdpkit.cli.plan_question import PlanPlace, PlanQuestion
    from fsdpkit.config.trainer import TrainingLength
    from fsdpkit.planning.asked import AskedStep
    from fsdpkit.planning.cost import Cost
    from fsdpkit.planning.finish import Finish
    from fsdpkit.planning.forecast import Forecast
    from fsdpkit.planning.speed import Speed
    from fsdpkit.planning.verdict import MemoryVerdict
    from fsdpkit.scheduling.soonest import PartitionStart


@dataclass(frozen=True, kw_only=True)
class PlannedMemory:
    """Of one GPU at the peak of a step."""

    card: str
    card_bytes: int
    limit_bytes: int
    """What reserved and outside may take together."""
    allocated_bytes: int
    reserved_bytes: int
    context_bytes: int
    nccl_bytes: int
    communicators: int
    total_bytes: int
    """Reserved and outside."""
    peak: str
    """The moment: phase, module, operation."""
    peak_step: int
    """From 1."""
    kinds: dict[str, int]
    """What is allocated at the peak, by kind."""
    made_by: dict[str, dict[str, int]]
    """Of the two largest kinds: by operation."""
    held_by: dict[str, dict[str, int]]
    """Of the two largest kinds: by layer."""
    weights_bytes: int
    optimizer_bytes: int
    gathered_bytes: int
    """Gathered weights and messages, most at once."""
    gathered_by_unit: dict[str, int]
    kept_for_backward: dict[str, int]
    """Activations and scores when backward begins, by layer."""
    kept_in_checkpointed_layers: dict[str, int]
    """Of it what layers keep inside that are computed again; empty if all is well."""
    least_total_bytes: int | None
    """With all that depends on values as small as it can be; None: nothing does."""
    host_bytes: int
    """Host memory that each rank's tensors take."""


@dataclass(frozen=True, kw_only=True)
class OnePlan:
    """One set of settings, `KEY=VALUE` on top of what was asked for.

    memory: null where they are refused; `refused` then says why. lower_bound: whether something
    could not be followed, as the notes say, so that it takes at least as much. sources: where the
    values outside of the allocator come from.
    """

    sets: Sequence[str]
    fit: Literal["fits", "tight", "does not fit", "not known", "refused"]
    lower_bound: bool = False
    memory: PlannedMemory | None = None
    refused: str | None = None
    notes: Sequence[str] = ()
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Of one job. None: not known, or not asked for."""

    finish: Finish
    cost: Cost
    balance: str | None
    """What the centre's command says of the account."""
    starts: Sequence[PartitionStart]
    """With --soonest: by partition, the one that ends first at the top."""
    why_no_starts: str
    """With --soonest: why Slurm could not be asked; else empty."""
    host_bytes: int
    """Host memory of a node for what is offloaded."""
    host_copy_bytes: int
    """The same for the copy of which checkpoints are written while training goes on."""
    host_memory_mb: int | None
    """What the job gets of a node."""
    data_bytes_per_s: float | None
    """That the file system must deliver to all ranks together."""
    read_gb_s: float | None
    """That it can, by the site's profile."""


@answer("fsdpkit.plan/2")
def planned(
    plans: Sequence[OnePlan],
    speed: Speed | None,
    speed_rests_on: str | None,
    speed_network_assumed: str | None,
    speed_left_out: Sequence[str],
    outlook: Outlook | None,
) -> None:
    """Of what was asked for; then, if it does not fit, what would, or all variations.

    speed: of what was asked for; null where nothing is known of it. It rests on published figures,
    or on runs. speed_network_assumed: null if what joins the nodes was measured, or its profile
    says it. speed_left_out: what was measured and does not count, with the reason. outlook: null
    where values are compared.
    """


def print_plans(
    found: Sequence[tuple[tuple[str, ...], MemoryVerdict | str]],
    expected: Forecast | None = None,
    ahead: Outlook | None = None,
) -> None:
    """Each with what it was asked for; a text in place of one that was refused."""
    planned(
        plans=[_one(sets, each) for sets, each in found],
        speed=expected.speed if expected else None,
        speed_rests_on=expected.rests_on or None if expected else None,
        speed_network_assumed=expected.network or None if expected else None,
        speed_left_out=expected.left_out if expected else (),
        outlook=ahead,
    )


def _one(sets: Sequence[str], found: MemoryVerdict | str) -> OnePlan:
    if isinstance(found, str):
        return OnePlan(sets=sets, fit="refused", refused=found)
    return OnePlan(
        sets=sets,
        fit=found.fit,
        lower_bound=found.is_lower_bound,
        memory=_memory(found),
        notes=found.notes,
        sources=dict(found.outside.sources),
    )


def _memory(found: MemoryVerdict) -> PlannedMemory:
    from fsdpkit.planning.outside import SAFE

    ran, around, card = found.replayed, found.outside, found.asked.card
    return PlannedMemory(
        card=card.name,
        card_bytes=card.memory,
        limit_bytes=int(card.memory * SAFE),
        allocated_bytes=ran.allocated,
        reserved_bytes=ran.reserved,
        context_bytes=around.context,
        nccl_bytes=around.nccl,
        communicators=around.communicators,
        total_bytes=found.total,
        peak=ran.where,
        peak_step=ran.step + 1,
        kinds={str(kind): size for kind, size in found.kinds.items()},
        made_by={str(kind): sums for kind, sums in found.makers.items()},
        held_by={str(kind): sums for kind, sums in found.holders.items()},
        weights_bytes=found.weights,
        optimizer_bytes=found.optimizer,
        gathered_bytes=found.gathered,
        gathered_by_unit=found.units,
        kept_for_backward=found.kept.by_layer,
        kept_in_checkpointed_layers=found.kept.inside,
        least_total_bytes=found.least,
        host_bytes=found.host,
    )


def outlook(
    question: PlanQuestion,
    place: PlanPlace,
    found: MemoryVerdict,
    expected: Forecast | None,
    *,
    soonest: bool,
) -> Outlook:
    """soonest: ask Slurm when it would start. Raises ConfigError for a stranger's command."""
    from fsdpkit.planning.cost import cost_of
    from fsdpkit.planning.finish import allowed, finish, saved_state
    from fsdpkit.scheduling.charging import rates_of

    asked = found.asked
    profile, resources = place.profile, place.job.spec.resources
    length, size = _length(place, asked), _checkpoint_bytes(found)
    speed = expected.speed if expected else None
    why = expected.why if expected else "--compiled plans memory alone"
    if speed is not None and speed.host_bound:
        speed, why = None, "the host bounds it"
    ends = finish(
        length,
        speed.step_s if speed else None,
        saved_state(size, profile.storage.write_gb_s),
        allowed(resources, profile, place.placement.way, place.job.spec.retry.on_time_limit),
        f"speed is not predicted: {why}",
    )
    shards = asked.settings.sharding.shard_ranks(asked.ranks, asked.gpus)
    starts, why_no_starts = _starts(question, asked, ends) if soonest else ((), "")
    copies = length.background and length.saves and size
    return Outlook(
        finish=ends,
        cost=cost_of(resources, place.placement, rates_of(profile, place.placement), ends.seconds),
        balance=question.balance(place),
        starts=starts,
        why_no_starts=why_no_starts,
        host_bytes=found.replayed.host * asked.gpus,
        host_copy_bytes=size // shards * asked.gpus if copies and size else 0,
        host_memory_mb=place.placement.memory_mb or place.placement.node_type.memory_mb,
        data_bytes_per_s=_data_bytes_per_s(asked, speed.samples_per_s.middle) if speed else None,
        read_gb_s=profile.storage.read_gb_s,
    )


def _length(place: PlanPlace, asked: AskedStep) -> TrainingLength:
    from fsdpkit.config.trainer import TrainingLength

    if asked.model is None:
        return place.job.trainer.length(asked.settings, asked.ranks, Path.cwd())
    if asked.settings.steps:
        return TrainingLength(steps=asked.settings.steps, source="training.steps")
    return TrainingLength(source="say how many the script makes: --set training.steps=N")


def _checkpoint_bytes(found: MemoryVerdict) -> int | None:
    """Weights and optimizer state of all ranks, each once; None where they are in host memory."""
    from fsdpkit.config.training.footprint import checkpoint_bytes

    asked = found.asked
    if asked.model is None:
        return checkpoint_bytes(asked.settings)
    if asked.settings.sharding.cpu_offload or found.fit == "not known":
        return None
    shards = asked.settings.sharding.shard_ranks(asked.ranks, asked.gpus)
    return (found.weights + found.optimizer) * shards


def _data_bytes_per_s(asked: AskedStep, samples_per_s: float) -> float | None:
    """None for data that is made in memory, or whose samples are not counted."""
    from fsdpkit.data.counting import count_samples
    from fsdpkit.data.inputs import PYTHON_DOCS

    if asked.model is not None or asked.settings.data.source == PYTHON_DOCS:
        return None
    try:
        each = count_samples(asked.settings.data, Path.cwd()).bytes_each
    except (FsdpkitError, OSError):
        return None
    return None if each is None else each * samples_per_s


def _starts(
    question: PlanQuestion, asked: AskedStep, ends: Finish
) -> tuple[Sequence[PartitionStart], str]:
    """When each partition would start the job, or why that is not known."""
    from fsdpkit.planning.cards import card_of
    from fsdpkit.rendering.script import Plan
    from fsdpkit.runs.predicted import Span
    from fsdpkit.scheduling.soonest import starts

    def lasts(plan: Plan) -> Span | None:
        node = plan.placement.node_type
        same = node.gpu_memory_gb is not None and card_of(node, "").name == asked.card.name
        return ends.seconds if same or question.gpu is not None else None

    try:
        return starts(question.as_request(), lasts), ""
    except FsdpkitError as error:  # the plan itself is known all the same
        return (), str(error).splitlines()[0]


def print_outlook(found: Outlook) -> None:
    """For people."""
    print_sentences(_lines(found))
    if found.balance is not None:
        click.echo("balance, as the centre's command says it:")
        for text in found.balance.splitlines()[:12]:
            click.echo(f"  {printable(text)[:78]}")
    if found.starts:
        from fsdpkit.scheduling.soonest import lines

        click.echo("\n".join(["", *lines(found.starts)]))


def _lines(found: Outlook) -> Iterator[str]:
    from fsdpkit.planning.cost import cost_lines
    from fsdpkit.planning.finish import finish_lines

    yield from finish_lines(found.finish)
    if needed := found.host_bytes + found.host_copy_bytes:
        of = f", of {format_gb(found.host_memory_mb)}" if found.host_memory_mb else ""
        parts = f"{format_bytes(found.host_copy_bytes)} while a checkpoint is written"
        if found.host_bytes > 1 << 20:
            parts = f"{format_bytes(found.host_bytes)} always, {parts}"
        if needed > 1 << 20:
            yield f"  host memory of a node: {parts}{of}"
    if found.data_bytes_per_s is not None:
        able = f" of {found.read_gb_s:g} GB/s" if found.read_gb_s else ""
        yield f"  the file system delivers {format_bytes(found.data_bytes_per_s)}/s of data{able}"
    yield from cost_lines(found.cost)
    if found.why_no_starts:
        yield f"when it would start is not known: {found.why_no_starts}"
