"""`fsdpkit plan --tune`: which search is asked for, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.json_output import answer

if TYPE_CHECKING:
    from fsdpkit.planning.asked import AskedStep
    from fsdpkit.planning.forecast import By
    from fsdpkit.planning.tune import Tuned


@answer("fsdpkit.plan-tune/1")
def tuned(tuned: Tuned) -> None:
    """What `--tune` found."""


def search(
    base: AskedStep,
    nodes: Sequence[int],
    refused: dict[int, str],
    aim: Any,
    by: By,
    as_json: bool,
) -> int:
    """The fastest settings on some of `nodes`; 1 if none fit."""
    import msgspec

    from fsdpkit.planning import speed_words
    from fsdpkit.planning.tune import T5, allowed_by, tune

    basis = by.basis(base.card)
    allowed = allowed_by(base.entry.path) if base.model else T5
    where = nodes or (base.nodes,)
    found = tune(base, where, basis.calibration, aim=aim, allowed=allowed)
    if refused:
        why = next(iter(refused.values()))
        numbers = ", ".join(map(str, refused))
        found = msgspec.structs.replace(
            found, notes=(*found.notes, f"the site has no place for {numbers} nodes; {why}")
        )
    if as_json:
        tuned(found)
    else:
        for line in speed_words.tuned_lines(found):
            click.echo(line)
        click.echo(f"speed is computed from: recorded steps; {basis.words}")
        for line in speed_words.left_out_lines(basis.left_out):
            click.echo(line)
    return 0 if found.fits else 1
