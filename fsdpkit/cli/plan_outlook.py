"""What `fsdpkit plan` says beside memory and speed: whether the job finishes, what it costs, when
it would start, and what its saves and its data ask of the file system and of host memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.options import print_sentences
from fsdpkit.cli.plan_answer import Outlook
from fsdpkit.config.units import format_bytes, format_gb
from fsdpkit.errors import FsdpkitError
from fsdpkit.reporting.printable import printable

if TYPE_CHECKING:
    from fsdpkit.cli.plan_question import PlanPlace, PlanQuestion
    from fsdpkit.config.trainer import TrainingLength
    from fsdpkit.planning.asked import AskedStep
    from fsdpkit.planning.finish import Finish
    from fsdpkit.planning.forecast import Forecast
    from fsdpkit.planning.verdict import MemoryVerdict
    from fsdpkit.scheduling.soonest import PartitionStart


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
