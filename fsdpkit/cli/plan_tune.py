"""`fsdpkit plan --tune`: which search is asked for, and its answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fsdpkit.planning.asked import AskedStep
    from fsdpkit.planning.forecast import By
    from fsdpkit.planning.tune import Tuned


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
    from fsdpkit.planning.tune_space import nodes_that_fit
    from fsdpkit.scheduling.wanted import Wanted

    if gpu is not None and cluster is None:
        return list(nodes), {}
    said = Wanted(**options)
    resources = load_job(job, options=said.options, sets=said.sets).spec.resources
    site, _ = choose_site(cluster)
    fitting, refused = nodes_that_fit(resources, site, nodes or (resources.nodes,))
    if not fitting:
        raise UsageError("--tune: " + next(iter(refused.values())))
    return fitting, refused


def answer(
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

    basis = by.basis(base.card.name)
    tuned = _of_model if base.model else _of_trainer
    found, rests_on = tuned(base, nodes, aim, basis.calibration)
    if refused:
        why = next(iter(refused.values()))
        numbers = ", ".join(map(str, refused))
        found = msgspec.structs.replace(
            found, notes=(*found.notes, f"the site has no place for {numbers} nodes; {why}")
        )
    if as_json:
        from fsdpkit.cli.json_output import print_answer
        from fsdpkit.cli.json_plans import TunedPlan

        print_answer(TunedPlan(tuned=found))
    else:
        for line in speed_words.tuned_lines(found):
            click.echo(line)
        click.echo(f"speed is computed from: {rests_on}; {basis.words}")
        for line in speed_words.left_out_lines(basis.left_out):
            click.echo(line)
    return 0 if found.fits else 1


def _of_trainer(
    base: AskedStep, nodes: Sequence[int], aim: Any, calibration: Any
) -> tuple[Tuned, str]:
    from fsdpkit.config.training import TrainingSettings
    from fsdpkit.planning import plans
    from fsdpkit.planning.forecast import goal_of
    from fsdpkit.planning.outside import SAFE
    from fsdpkit.planning.tune import tune

    def memory_of(settings: TrainingSettings, nodes: int, gpus: int) -> int:
        each = dataclasses.replace(base, settings=settings, nodes=nodes, gpus=gpus)
        return plans.plan(each).total

    found = tune(
        base.settings,
        nodes=nodes or (base.nodes,),
        gpus=base.gpus,
        base_nodes=base.nodes,
        calibration=calibration,
        memory_of=memory_of,
        room_bytes=int(base.card.memory * SAFE),
        aim=aim,
        goal=goal_of(base),
    )
    return found, "a closed form, an estimate"


def _of_model(
    base: AskedStep, nodes: Sequence[int], aim: Any, calibration: Any
) -> tuple[Tuned, str]:
    from fsdpkit.planning.tune_model import tune_model

    found = tune_model(base, nodes or (base.nodes,), aim, calibration)
    return found, "the layers of a recorded step, put together for each setting, an estimate"
