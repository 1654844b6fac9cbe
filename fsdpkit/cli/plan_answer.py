"""What `fsdpkit plan --json` prints. Bytes throughout; everything is computed, nothing measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fsdpkit.cli.json_output import answer

if TYPE_CHECKING:
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
    reserved_without_expandable_segments_bytes: int
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
        reserved_without_expandable_segments_bytes=found.segments.reserved,
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
