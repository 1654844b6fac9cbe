"""`fsdpkit plan --calibration`: what plans of speed rest on here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fsdpkit.cli.json_output import answer
from fsdpkit.cli.options import print_sentences, table

if TYPE_CHECKING:
    from fsdpkit.planning.cards import Card
    from fsdpkit.planning.forecast import By
    from fsdpkit.planning.speed_measured import UsedSpeed


@answer("fsdpkit.plan-calibration/1")
def calibrated(
    gpu: str, site: str | None, rests_on: str, left_out: Sequence[str], runs: Sequence[UsedSpeed]
) -> None:
    """What `--calibration` shows."""


def show(card: Card, by: By, as_json: bool) -> int:
    """What was measured, and what of it counts for `card`. Raises FsdpkitError."""
    from msgspec.structs import asdict

    from fsdpkit.planning.forecast import work_of_run
    from fsdpkit.planning.speed_learned import basis_of
    from fsdpkit.planning.speed_measured import UsedSpeed

    gpu = card.name
    records = by.records()
    basis = basis_of(records, by.machine(card), lambda run: work_of_run(run, card))
    counted = [UsedSpeed(used=one.run in basis.used, **asdict(one)) for one in records]
    if as_json:
        return calibrated(gpu, by.site, basis.words, basis.left_out, counted)
    if counted:
        head = ["RUN", "OF", "SITE", "GPU", "TORCH", "SHAPE", "S/STEP", "USED"]
        table(head, [_row(one) for one in counted])
    print_sentences([f"speed on {gpu}: {basis.words}"])
    print_sentences(f"left out: {sentence}" for sentence in basis.left_out)
    return 0


def _row(one: UsedSpeed) -> list[str]:
    day = time.strftime("%Y-%m-%d", time.localtime(one.made_s))
    return [
        one.run,
        day,
        one.site,
        one.gpu or "?",
        one.torch.partition("+")[0] or "?",
        f"{one.nodes} x {one.gpus}",
        f"{one.step_s:.3g}" if one.step_s else "check" if one.is_check else "-",
        "yes" if one.used else "no",
    ]
