"""`fsdpkit plan`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.options import AFTERWARDS, WHAT, GroupedCommand, complete, grouped, wanted

if TYPE_CHECKING:
    from fsdpkit.planning.asked import Asked
    from fsdpkit.planning.verdict import Verdict


@click.command("plan", cls=GroupedCommand)
@click.argument("job", required=False, shell_complete=complete("job"))
@wanted("sets")
@grouped(
    WHAT,
    "--model",
    metavar="FILE.py:FUNCTION",
    help="A function that gives a model and a batch, in the place of the job's T5.",
)
@wanted("nodes", "gpus", "time", "cluster", "partition", "account", "spare")
@grouped("Resources", "--gpu", help="GPU by name or memory: h100-80, a100-40, 48.")
@grouped(
    "Questions",
    "--try",
    "tried",
    multiple=True,
    metavar="KEY=V1,V2",
    help="Plan each of these values, and compare; several: all combinations.",
)
@grouped(
    "Questions", "--most", metavar="KEY", help="The largest value that fits, as of batch_size."
)
@grouped(
    AFTERWARDS,
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.svg",
    help="Draw memory over one step.",
)
@grouped(AFTERWARDS, "--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(
    job: str | None,
    cluster: str | None,
    model: str | None,
    gpu: str | None,
    tried: tuple[str, ...],
    most: str | None,
    picture: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Say whether JOB fits its GPUs' memory, and what takes it, before it queues.

    \b
      fsdpkit plan --nodes 2 --gpus 4 --set training.model.preset=t5-v1.1-xl
      fsdpkit plan --gpu h100-80 --try training.sharding.activation_checkpointing=none,full
      fsdpkit plan --gpu a100-40 --most training.batch_size
      fsdpkit plan --gpu 48 --model train.py:planned

    One rank's training step runs here without values and without a GPU: seconds to a minute.
    Everything is computed and nothing measured. Exit status: 0 if it fits, 1 if it does not.
    """
    from fsdpkit.errors import UsageError
    from fsdpkit.planning import plans, words

    if tried and most:
        raise UsageError("--try compares values, --most looks for one: choose one")
    if picture and (tried or most):
        raise UsageError("--picture draws one plan: leave out --try and --most")

    def ask(extra: Sequence[str] = ()) -> Asked:
        return asked(job, cluster, gpu, model, extra, options)

    if tried:
        compared = list(plans.tried(ask, tried))
        if as_json:
            _answer([(sets, each) for sets, each in compared])
        else:
            _print(words.rows(compared))
        return 0
    if most:
        found = plans.most(ask, most, _start(ask(), most))
        if found is None:
            click.echo(f"{most}: not even 1 fits")
            return 1
        number, largest = found
        if as_json:
            _answer([((f"{most}={number}",), largest)])
        else:
            click.echo(f"{most} = {number} fits, the most that was found")
            _print(words.table(largest))
        return 0
    one = plans.plan(ask())
    better = [] if one.fit == "fits" else list(plans.what_would_fit(ask, one.asked))
    if picture:
        from fsdpkit.planning.picture import draw
        from fsdpkit.runs.layout import write_atomically

        write_atomically(picture, draw(one))
    if as_json:
        _answer([((), one), *better])
    else:
        _print(words.table(one))
        if better:
            ((sets, fitting),) = better
            how = " ".join(f"--set {each}" for each in sets)
            click.echo(f"would fit: {how} ({words.headline(fitting)})")
        elif one.fit != "fits":
            click.echo("nothing tried here fits: use more GPUs, or training.sharding.cpu_offload")
    return 0 if one.fit != "does not fit" else 1


def asked(
    job: str | None,
    cluster: str | None,
    gpu: str | None,
    model: str | None,
    extra: Sequence[str],
    options: dict[str, Any],
) -> Asked:
    """The job as `submit` reads it, and the card it would run on. Raises FsdpkitError."""
    import msgspec

    from fsdpkit.config.job import load_job
    from fsdpkit.config.placement import place
    from fsdpkit.config.site import choose_site
    from fsdpkit.config.training import TrainingSettings, problems
    from fsdpkit.errors import ConfigError
    from fsdpkit.planning.asked import Asked
    from fsdpkit.planning.cards import card_named, card_of
    from fsdpkit.scheduling.submission import training_of
    from fsdpkit.scheduling.wanted import Wanted

    said = Wanted(**{**options, "sets": (*options.get("sets", ()), *extra)})
    loaded = load_job(job, options=said.options, sets=said.sets)
    resources = loaded.spec.resources
    if gpu is not None:
        card = card_named(gpu)
    else:
        site, _ = choose_site(cluster)
        card = card_of(place(resources, site).node_type, f"site {site.id}")
    settings = training_of(loaded, Path.cwd())
    if settings is None:
        if model is None:
            raise ConfigError(
                f"job {loaded.spec.name} has no [training] for the T5 trainer: name a function "
                "that gives the model and a batch, by --model FILE.py:FUNCTION"
            )
        settings = TrainingSettings()
    if wrong := problems(settings, resources.ranks, resources.gpus):
        raise ConfigError("\n".join(wrong))
    assert not isinstance(settings, msgspec.UnsetType)
    return Asked(settings, resources.nodes, resources.gpus, card, loaded.entry, model)


def _start(asked: Asked, key: str) -> int:
    """The value of a whole-number key of [training] now. Raises UsageError for another key."""
    from fsdpkit.errors import UsageError

    value: Any = asked.settings
    for name in key.removeprefix("training.").split("."):
        value = getattr(value, name, None)
    if key.startswith("training.micro_batch") and value is None:
        value = asked.settings.batch_size
    if not isinstance(value, int) or isinstance(value, bool) or not key.startswith("training."):
        raise UsageError(
            f"--most {key[:80]}: not a whole number of [training], such as training.batch_size or "
            "training.data.source_length"
        )
    return value


def _print(lines: Any) -> None:
    for line in lines:
        click.echo(line)


def _answer(found: Sequence[tuple[tuple[str, ...], Verdict | str]]) -> None:
    from fsdpkit.cli.json_output import print_answer
    from fsdpkit.cli.json_plans import planned

    print_answer(planned(found))
