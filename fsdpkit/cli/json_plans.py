"""What `fsdpkit plan --json` prints. Bytes throughout; everything is computed, nothing measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from fsdpkit.planning.speed import Speed
from fsdpkit.planning.tune import Tuned

if TYPE_CHECKING:
    from fsdpkit.planning.forecast import Forecast
    from fsdpkit.planning.verdict import MemoryVerdict


class PlannedMemory(Struct, frozen=True, kw_only=True):
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
    measured_bytes: int | None = None
    """null: not measured."""
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
    """With all that depends on values as small as it can be; null: nothing does."""
    host_bytes: int
    """Host memory that each rank's tensors take."""


class OnePlan(Struct, frozen=True, kw_only=True):
    """One set of settings. `memory` is null where they are refused; `refused` then says why."""

    sets: list[str]
    """KEY=VALUE on top of what was asked for."""
    fit: Literal["fits", "tight", "does not fit", "not known", "refused"]
    lower_bound: bool = False
    """Whether something could not be followed, as the notes say: it takes at least as much."""
    memory: PlannedMemory | None = None
    refused: str | None = None
    notes: list[str] = []
    sources: dict[str, str] = {}
    """Where the values outside of the allocator come from."""


class PrintedPlans(Struct, frozen=True, kw_only=True):
    """Of what was asked for; then, if it does not fit, what would, or all variations."""

    schema: Literal["fsdpkit.plan/1"] = "fsdpkit.plan/1"
    plans: list[OnePlan]
    speed: Speed | None = None
    """Of what was asked for; null where nothing is known of it."""
    speed_rests_on: str | None = None
    """Published figures, or which runs."""
    speed_network_assumed: str | None = None
    """What was assumed of the network between nodes; null: it was measured, or its profile says."""
    speed_left_out: list[str] = []
    """What was measured and does not count, with the reason."""


class TunedPlan(Struct, frozen=True, kw_only=True):
    """What `--tune` found."""

    schema: Literal["fsdpkit.plan-tune/1"] = "fsdpkit.plan-tune/1"
    tuned: Tuned


class MeasuredRun(Struct, frozen=True, kw_only=True):
    """What one run, or one `fsdpkit check --nodes`, has measured. null: not measured."""

    run: str
    made_s: float
    site: str
    gpu: str
    torch: str
    nodes: int
    gpus: int
    step_s: float | None
    in_node_gb_s: float | None
    between_gb_s: float | None
    tflop_s: float | None
    used: bool
    """Whether plans for the GPU that was asked about go by it."""


class Calibrated(Struct, frozen=True, kw_only=True):
    """What `--calibration` shows."""

    schema: Literal["fsdpkit.plan-calibration/1"] = "fsdpkit.plan-calibration/1"
    gpu: str
    site: str | None
    rests_on: str
    left_out: list[str]
    runs: list[MeasuredRun]


def planned(
    found: Sequence[tuple[tuple[str, ...], MemoryVerdict | str]], expected: Forecast | None = None
) -> PrintedPlans:
    plans = [_one(list(sets), each) for sets, each in found]
    if expected is None:
        return PrintedPlans(plans=plans)
    return PrintedPlans(
        plans=plans,
        speed=expected.speed,
        speed_rests_on=expected.rests_on or None,
        speed_network_assumed=expected.network or None,
        speed_left_out=list(expected.left_out),
    )


def _one(sets: list[str], found: MemoryVerdict | str) -> OnePlan:
    if isinstance(found, str):
        return OnePlan(sets=sets, fit="refused", refused=found)
    from fsdpkit.planning.outside import SAFE

    ran, around, card = found.replayed, found.outside, found.asked.card
    memory = PlannedMemory(
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
        host_bytes=ran.host,
    )
    return OnePlan(
        sets=sets,
        fit=found.fit,
        lower_bound=found.is_lower_bound,
        memory=memory,
        notes=list(found.notes),
        sources=dict(around.sources),
    )
