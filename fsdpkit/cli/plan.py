"""`fsdpkit plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.json_output import json_option
from fsdpkit.cli.options import (
    AFTERWARDS,
    WHAT,
    WithTrainerArgs,
    complete,
    grouped,
    node_counts,
    print_sentences,
    wanted,
    write_file,
)
from fsdpkit.cli.plan_answer import outlook, planned, print_outlook, print_plans
from fsdpkit.cli.plan_question import PlanQuestion
from fsdpkit.cli.plan_tune import search, tuned
from fsdpkit.cli.trusting import consent, trust_option
from fsdpkit.errors import UsageError

if TYPE_CHECKING:
    from fsdpkit.planning.asked import AskedStep
    from fsdpkit.planning.forecast import By
    from fsdpkit.planning.plans import Ask


_question = partial(grouped, "Questions")


@click.command("plan", cls=WithTrainerArgs)
@click.pass_obj
@click.argument("job", required=False, shell_complete=complete("job"))
@wanted("sets")
@grouped(
    WHAT,
    "--model",
    metavar="FILE.py:FUNCTION|DIRECTORY",
    help="Instead of the job's T5: a model that a function returns, or a transformers directory.",
)
@grouped(
    "Resources",
    "--nodes",
    metavar="N",
    callback=node_counts,
    help="Number of nodes; with --tune also several: 1,2,4 or 1-8.",
)
@wanted("gpus", "time", "cluster", "partition", "account", "spare")
@grouped("Resources", "--gpu", help="GPU by name or memory: h100-80, a100-40, 48.")
@_question(
    "--try",
    "tried",
    multiple=True,
    metavar="KEY=V1,V2",
    help="Compare plans for these values; repeated: all combinations.",
)
@_question(
    "--most", metavar="KEY", help="Find the largest value that fits, as for training.batch_size."
)
@_question(
    "--soonest",
    is_flag=True,
    help="Ask Slurm when each partition would start the job, and show when it ends.",
)
@_question(
    "--compiled",
    is_flag=True,
    help="Follow compiled blocks as torch.compile's graphs: memory alone, not kept for submit.",
)
@_question("--tune", is_flag=True, help="Look for the fastest settings that fit.")
@_question(
    "--aim",
    type=click.Choice(["tokens_per_s", "gpu_hours"]),
    default="tokens_per_s",
    show_default=True,
    help="What --tune optimises.",
)
@_question(
    "--no-calibration",
    "published",
    is_flag=True,
    help="Predict speed from published figures alone, ignoring measurements.",
)
@trust_option
@wanted("runs", runs="Directory of runs to learn speed from (default: $FSDPKIT_RUNS, else ./runs).")
@grouped(
    AFTERWARDS,
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.svg",
    help="Draw memory over one step.",
)
@json_option(planned, tuned, group=AFTERWARDS)
def command(
    args: tuple[str, ...],
    job: str | None,
    cluster: str | None,
    model: str | None,
    gpu: str | None,
    nodes: tuple[int, ...],
    tried: tuple[str, ...],
    most: str | None,
    soonest: bool,
    compiled: bool,
    tune: bool,
    aim: Any,
    published: bool,
    trust: tuple[str, ...],
    runs: str | None,
    picture: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Predict whether JOB fits its GPUs, what uses their memory, and how fast it trains.

    \b
      fsdpkit plan --nodes 2 --gpus 4 --set training.model.preset=t5-v1.1-xl
      fsdpkit plan --gpu h100-80 --try training.sharding.activation_checkpointing=none,full
      fsdpkit plan --gpu a100-40 --most training.batch_size
      fsdpkit plan --gpu h100-80 --tune --nodes 1-8
      fsdpkit plan --gpu 48 --model train.py:planned -- --batch 16

    Nothing is queued: one rank's training step runs here, without a GPU and on tensors without
    values, in seconds to a minute. All figures are computed, none measured. Exit status: 0 if it
    fits, 1 if it does not or that is unknown.
    """
    from fsdpkit.planning.apart import one_child
    from fsdpkit.planning.forecast import By
    from fsdpkit.runs.store import runs_dir
    from fsdpkit.scheduling.wanted import Wanted

    context = click.get_current_context()
    _refuse_what_does_not_fit(context.params)
    if args and model is None:
        raise UsageError(
            "arguments after -- go to the script that --model names; for trainer settings use "
            "--set KEY=VALUE"
        )
    said = Wanted(nodes=nodes[0] if len(nodes) == 1 else None, **options)
    question = PlanQuestion(job, cluster, model, gpu, said, args, compiled, consent(trust))
    by = By(not published, runs_dir(runs), *question.site_and_network())
    context.with_resource(one_child())
    if tune:
        where, refused = question.places(nodes)
        return search(question.step(), where, refused, aim, by, as_json)
    if tried:
        return _compare(question.step, tried, as_json)
    if most:
        return _largest(question.step, most, as_json)
    # A plan of our T5 is kept by its settings, that of a script by what it is told.
    own = model is not None
    told = question.args_alone() if own else None
    keep = not own or told is not None
    return _one(question, by, picture, as_json, soonest=soonest, keep=keep, told=told)


def _refuse_what_does_not_fit(given: Mapping[str, Any]) -> None:
    """Raises UsageError for options that ask different questions."""
    several_plans = bool(given["tried"]) + bool(given["most"]) + given["tune"]
    if several_plans > 1:
        raise UsageError("--try compares values, --most looks for one, --tune for all: choose one")
    if given["soonest"] and several_plans:
        raise UsageError("--soonest is about one plan: leave out --try, --most and --tune")
    if given["picture"] and several_plans:
        raise UsageError("--picture draws one plan: leave out --try, --most and --tune")
    if given["compiled"] and (given["tune"] or given["published"]):
        raise UsageError("--compiled plans memory alone: leave out --tune and options of speed")
    if len(given["nodes"]) > 1 and not given["tune"]:
        raise UsageError("--nodes: several numbers are for --tune")


def _compare(ask: Ask, tried: Sequence[str], as_json: bool) -> int:
    """--try: a plan for each combination of values."""
    from fsdpkit.planning import plans, words

    compared = list(plans.tried(ask, tried))
    if as_json:
        print_plans(compared)
    else:
        click.echo("\n".join(words.rows(compared)))
    return 0


def _largest(ask: Ask, most: str, as_json: bool) -> int:
    """--most: the largest value of one key that fits."""
    from fsdpkit.planning import plans, words

    now = ask(())
    start, values = _start(now, most), plans.candidates(now, most)
    found = plans.most(ask, most, values, start)
    if found is None:
        click.echo(f"{most}: not even {values[0]} fits")
        return 1
    if as_json:
        print_plans([((f"{most}={found.number}",), found.plan)])
    else:
        beyond = "" if found.beyond is None else f", {found.beyond} does not"
        click.echo(f"{most} = {found.number} fits{beyond}")
        print_sentences(words.table(found.plan))
    return 0


def _one(
    question: PlanQuestion,
    by: By,
    picture: Path | None,
    as_json: bool,
    *,
    soonest: bool,
    keep: bool,
    told: Sequence[str] | None,
) -> int:
    """One plan, its speed, when it ends, and what would fit if it does not."""
    from fsdpkit.planning import plans, speed_words, words
    from fsdpkit.planning.forecast import forecast

    ask, place = question.step, question.place()
    one = plans.plan(ask(()))
    expected = None if one.asked.compiled else forecast(one.asked, by, one.tape)
    open_ended = one.fit in ("fits", "not known")
    better = [] if open_ended else list(plans.what_would_fit(ask, one.asked))
    if keep and expected is not None:
        plans.keep(one, [sets for sets, _ in better], expected, told)
    if picture:
        from fsdpkit.planning.picture import draw

        write_file(draw(one), picture)
    ahead = outlook(question, place, one, expected, soonest=soonest)
    if as_json:
        print_plans([((), one), *better], expected, ahead)
    else:
        print_sentences(words.table(one))
        if expected is not None:
            click.echo()
            print_sentences(speed_words.lines(expected))
        click.echo()
        print_outlook(ahead)
        if better:
            ((sets, fitting),) = better
            how = " ".join(f"--set {each}" for each in sets)
            print_sentences([f"would fit: {how} ({words.headline(fitting)})"])
        elif not open_ended:
            click.echo("nothing tried here fits: use more GPUs, or training.sharding.cpu_offload")
    return 1 if one.fit in ("does not fit", "not known") else 0


def _start(asked: AskedStep, key: str) -> int:
    """The value of a whole-number key of [training] now. Raises UsageError for another key."""
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
