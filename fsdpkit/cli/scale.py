"""`fsdpkit scale`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.groups import FirstWordOrCommand
from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import (
    complete,
    fsdpkit_as_typed,
    node_counts,
    print_sentences,
    runs_option,
    table,
    wanted,
)
from fsdpkit.cli.trusting import consent, trust_option
from fsdpkit.errors import storage_errors

if TYPE_CHECKING:
    from fsdpkit.planning.cost import Asked
    from fsdpkit.sweeps.scaling import Mode, Size


@answer("fsdpkit.scale-start/2")
def _started(name: str, runs: dict[str, str]) -> None:
    """Sizes of a scaling study that were submitted. runs: by mode and nodes (`weak 2`)."""


@answer("fsdpkit.scale-status/3")
def _study(
    name: str, sizes: Sequence[Size], knee: dict[str, int | None], asks: dict[str, Asked]
) -> None:
    """A scaling study as it was measured so far; with --dry-run, as it would be.

    knee: by mode, the last number of nodes before a step up that does not pay; null: none so far.
    asks: of a dry run what each size would ask for, by mode and nodes (`weak 2`).
    """


@answer("fsdpkit.scale-write/1")
def _written(name: str, files: Sequence[Path]) -> None:
    """Files that `scale write` made."""


@click.group("scale", cls=FirstWordOrCommand, first="JOB")
def command() -> None:
    """Measure how a job scales, with one run per number of nodes.

    \b
      fsdpkit scale t5 --nodes 1,2,4,8 --gpus 4 --set training.steps=100
      fsdpkit scale t5 --nodes 1,2 --gpus 4 --both
      fsdpkit scale t5 --nodes 1,2,4,8 --gpus 4 --dry-run
      fsdpkit scale status scale-fsdp-t5
      fsdpkit scale write scale-fsdp-t5 -o proposal

    JOB is as for fsdpkit submit. Begin with few nodes; while they are efficient, add larger sizes
    by the same command with other --nodes. Each size is a run of its own, named NAME-weak-N or
    NAME-strong-N. All options: fsdpkit scale JOB --help.
    """


@command.command("start")
@click.argument("job", shell_complete=complete("job"))
@click.option(
    "--nodes",
    callback=node_counts,
    required=True,
    metavar="N,N…",
    help="Numbers of nodes, such as 1,2,4,8.",
)
@click.option(
    "--weak", "how", flag_value="weak", default=True, help="Weak scaling: the same batch per rank."
)
@click.option(
    "--strong", "how", flag_value="strong", help="Strong scaling: the same batch over all ranks."
)
@click.option("--both", "how", flag_value="both", help="Run each size both ways.")
@click.option(
    "--batch",
    metavar="args.NAME=N",
    help="For your own script: --NAME=N is its batch per rank, on the smallest size.",
)
@click.option("--name", help="Name of the study (default: scale-JOB).")
@wanted("sets")
@wanted("gpus", "time", "cluster", "partition", "account")
@wanted("runs")
@trust_option
@click.option("--dry-run", is_flag=True, help="Print the prediction for each size; submit nothing.")
@json_option(_started, _study)
def start(
    job: str,
    nodes: tuple[int, ...],
    how: str,
    batch: str | None,
    name: str | None,
    sets: tuple[str, ...],
    cluster: str | None,
    runs: str | None,
    trust: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    **resources: Any,
) -> int:
    """Start a study of JOB, or add sizes to it."""
    from fsdpkit.cli.submitting import say_where
    from fsdpkit.sweeps import scaling_study
    from fsdpkit.sweeps.scaling import MODES

    said = [f"resources.{key}={value}" for key, value in resources.items() if value is not None]
    modes: list[Mode] = [mode for mode in MODES if how in (mode, "both")]
    agreed = consent(trust, submits=not dry_run)
    asked = scaling_study.StudyRequest(
        nodes, modes, job, name, [*said, *sets], cluster, batch, runs, agreed
    )
    prepared = scaling_study.prepare(asked)
    say_where(prepared.plans[modes[0], max(nodes)], prepared.why_site)
    if dry_run:
        from fsdpkit.planning.cost import asked_by

        asks = {f"{mode} {count}": asked_by(p) for (mode, count), p in prepared.plans.items()}
        return _show(prepared.name, scaling_study.planned(prepared), asks, as_json)
    submitted: dict[str, str] = {}
    for size, run in scaling_study.submit(prepared, agreed):
        submitted[size] = run
        click.echo(f"{size} {'node' if size.endswith(' 1') else 'nodes'}: {run}", err=as_json)
    if as_json:
        return _started(prepared.name, submitted)
    typed, name = fsdpkit_as_typed(), prepared.name
    click.echo(f"  {typed} scale status {name}\n  {typed} scale write {name}")
    return 0


def _measured(name: str, runs: str | None) -> dict[Mode, list[Size]]:
    from fsdpkit.runs.store import runs_dir
    from fsdpkit.sweeps.scaling_study import measured

    return measured(name, runs_dir(runs))


@command.command("status")
@click.argument("name")
@runs_option
@json_option(_study)
def status(name: str, runs: str | None, as_json: bool) -> int:
    """Show what was measured so far, and where more nodes stop paying off."""
    return _show(name, _measured(name, runs), {}, as_json)


def _show(name: str, found: dict[Mode, list[Size]], asks: dict[str, Asked], as_json: bool) -> int:
    """Each size as far as it is known; of one that was not submitted what is predicted."""
    from fsdpkit.sweeps.scaling import knee
    from fsdpkit.sweeps.scaling_tables import HEAD, rows

    if as_json:
        everything = [one for sizes in found.values() for one in sizes]
        return _study(name, everything, {mode: knee(sizes) for mode, sizes in found.items()}, asks)
    table([*HEAD], [row for sizes in found.values() for row in rows(sizes)])
    print_sentences(_remarks(found))
    return 0


def _remarks(found: dict[Mode, list[Size]]) -> Iterator[str]:
    """What to know of the sizes of a study."""
    from fsdpkit.sweeps.scaling import knee

    for mode, sizes in found.items():
        if (where := knee(sizes)) is not None:
            yield (
                f"{mode}: knee at {where} nodes; the next step adds less than half of what as many "
                "of the smallest size do"
            )
    if any(one.predicted_tokens_per_s is None for sizes in found.values() for one in sizes):
        yield (
            "PREDICTED is empty where nothing was known of that size before it was submitted: ask "
            "fsdpkit plan about it first"
        )


@command.command("write")
@click.argument("name")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False),
    help="Directory for the files (default: NAME in the current directory).",
)
@click.option("--tables", is_flag=True, help="Write no figures, which need matplotlib.")
@runs_option
@json_option(_written)
def write(name: str, output: str | None, tables: bool, runs: str | None, as_json: bool) -> int:
    """Write the results of NAME for a proposal: scaling.csv, .tex, .svg and .png."""
    from fsdpkit.runs.layout import write_atomically
    from fsdpkit.sweeps.scaling_tables import as_csv, as_latex

    found = _measured(name, runs)
    everything = [one for sizes in found.values() for one in sizes]
    files: dict[str, str | bytes] = {
        "scaling.csv": as_csv(everything),
        "scaling.tex": as_latex(everything),
    }
    if not tables:
        from fsdpkit.sweeps.scaling_tables import figure

        files["scaling.svg"] = figure(found, name, "svg")
        files["scaling.png"] = figure(found, name, "png")
    directory = Path(output or name)
    with storage_errors(directory, "written"):
        directory.mkdir(exist_ok=True)
        for file, content in files.items():
            write_atomically(directory / file, content, by_umask=True)
    if as_json:
        return _written(name, [(directory / file).absolute() for file in files])
    click.echo("\n".join(str(directory / file) for file in files))
    return 0
