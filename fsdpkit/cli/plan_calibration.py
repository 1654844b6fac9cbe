"""`fsdpkit plan --calibration`: what plans of speed rest on here, to be looked at and forgotten."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer
from fsdpkit.cli.options import print_sentences, table
from fsdpkit.errors import NotFoundError, storage_errors

if TYPE_CHECKING:
    from fsdpkit.planning.cards import Card
    from fsdpkit.planning.forecast import By
    from fsdpkit.planning.speed_learned import Basis
    from fsdpkit.planning.speed_measured import MeasuredSpeed, UsedSpeed


@answer("fsdpkit.plan-calibration/1")
def calibrated(
    gpu: str, site: str | None, rests_on: str, left_out: Sequence[str], runs: Sequence[UsedSpeed]
) -> None:
    """What `--calibration` shows."""


def show(card: Card, by: By, forget: Sequence[str], save_to: Path | None, as_json: bool) -> int:
    """What was measured, and what of it counts for `card`. Raises FsdpkitError."""
    from msgspec.structs import asdict

    from fsdpkit.planning.forecast import work_of_run
    from fsdpkit.planning.speed_learned import basis_of
    from fsdpkit.planning.speed_measured import UsedSpeed

    gpu = card.name
    records = by.records()
    gone = _forgotten(records, forget)
    records = [one for one in records if one.run not in gone]
    machine = by.machine(card)
    basis = basis_of(records, machine, lambda run: work_of_run(run, card))
    if save_to is not None:
        _save(basis, save_to, machine.torch)
    counted = [
        UsedSpeed(used=one.run in basis.used, **asdict(one)) for one in records if not one.forgotten
    ]
    if as_json:
        return calibrated(gpu, by.site, basis.words, basis.left_out, counted)
    for run in gone:
        click.echo(f"forgotten: {run}")
    if counted:
        head = ["RUN", "OF", "SITE", "GPU", "TORCH", "SHAPE", "S/STEP", "USED"]
        table(head, [_row(one) for one in counted])
    print_sentences([f"speed on {gpu}: {basis.words}"])
    print_sentences(f"left out: {sentence}" for sentence in basis.left_out)
    if save_to is not None:
        click.echo(f"written: {save_to}; others use it by --speed {save_to.name}")
    return 0


def _forgotten(records: Sequence[MeasuredSpeed], wanted: Sequence[str]) -> list[str]:
    from fsdpkit.planning.speed_measured import forget, named

    for name in wanted:  # all of them, before the first is forgotten
        if not named(records, name) and name != "all":
            raise NotFoundError(f"--forget {name[:80]}: nothing of that run is on record")
    gone = [one.run for name in wanted for one in forget(records, name)]
    return list(dict.fromkeys(gone))


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


def _save(basis: Basis, path: Path, torch: str | None) -> None:
    from fsdpkit.planning.speed_learned import save

    with storage_errors(path, "written"):
        save(basis.calibration, path, torch if basis.used else None)
