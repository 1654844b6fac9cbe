"""`fsdpkit plan --tune`: which search is asked for, and its answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.json_output import answer

if TYPE_CHECKING:
    from fsdpkit.config.job import Resources
    from fsdpkit.config.site import LoadedSite
    from fsdpkit.planning.asked import AskedStep
    from fsdpkit.planning.forecast import By
    from fsdpkit.planning.tune import Tuned


@answer("fsdpkit.plan-tune/1")
def tuned(tuned: Tuned) -> None:
    """What `--tune` found."""


def places(
    job: str | None,
    cluster: str | None,
    gpu: str | None,
    nodes: Sequence[int],
    options: dict[str, Any],
) -> tuple[list[int], dict[int, str]]:
    """The numbers of nodes that the site has a place for, and why not the others; all of them where
    a GPU was named and no site. Raises UsageError if it has none for any."""
    from fsdpkit.config.job_loading import load_job
    from fsdpkit.config.site import choose_site
    from fsdpkit.errors import UsageError
    from fsdpkit.scheduling.wanted import Wanted

    if gpu is not None and cluster is None:
        return list(nodes), {}
    said = Wanted(**options)
    resources = load_job(job, options=said.options, sets=said.sets).spec.resources
    site, _ = choose_site(cluster)
    fitting, refused = places_of(resources, site, nodes or (resources.nodes,))
    if not fitting:
        raise UsageError("--tune: " + next(iter(refused.values())))
    return fitting, refused


def places_of(
    resources: Resources, site: LoadedSite, wanted: Iterable[int]
) -> tuple[list[int], dict[int, str]]:
    """Of the wanted numbers of nodes those that the site has a place for; why not the others."""
    from msgspec.structs import replace

    from fsdpkit.config.placement import place_to_plan
    from fsdpkit.errors import UsageError

    fit: list[int] = []
    refused: dict[int, str] = {}
    for nodes in wanted:
        try:
            place_to_plan(replace(resources, nodes=nodes), site)
            fit.append(nodes)
        except UsageError as error:
            refused[nodes] = str(error)
    return fit, refused


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
