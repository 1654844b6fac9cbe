"""`fsdpkit scale`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.groups import FirstWordOrCommand
from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import (
    as_typed,
    complete,
    fsdpkit_as_typed,
    runs_option,
    table,
    wanted,
)
from fsdpkit.cli.trusting import consent, trust_option

if TYPE_CHECKING:
    from fsdpkit.sweeps.scaling import Mode, Size
    from fsdpkit.sweeps.scaling_record import Study, StudyPaths


@answer("fsdpkit.scale-start/1")
def _started(name: str, dir: Path, runs: dict[str, str]) -> None:
    """A scaling study that was started. runs: by mode and nodes (`weak 2`)."""


@answer("fsdpkit.scale-status/2")
def _study(name: str, dir: Path, sizes: Sequence[Size], knee: dict[str, int | None]) -> None:
    """A scaling study as it was measured so far; with --dry-run, as it would be.

    knee: by mode, the last number of nodes before a step up that does not pay; null: none so far.
    """


@answer("fsdpkit.scale-extend/1")
def _extended(name: str, dir: Path, runs: dict[str, str]) -> None:
    """Sizes that were added to a study. runs: by mode and nodes, all that were submitted so far."""


@answer("fsdpkit.scale-write/1")
def _written(name: str, files: Sequence[Path]) -> None:
    """Files that `scale write` made."""


@answer("fsdpkit.scale-cancel/1")
def _cancelled(name: str, runs: Sequence[str]) -> None:
    """A study that was asked to end."""


class _Numbers(click.ParamType[Any]):
    """`1,2,4,8`."""

    name = "numbers"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, list):
            return value
        parts = str(value).split(",")
        if not all(part.isascii() and part.isdigit() and 0 < int(part) <= 10_000 for part in parts):
            self.fail(f"{value!r}: write numbers of nodes as 1,2,4,8", param, ctx)
        return [int(part) for part in parts]


@click.group("scale", cls=FirstWordOrCommand, first="JOB")
def command() -> None:
    """Measure how a job scales, with one run per number of nodes.

    \b
      fsdpkit scale t5 --nodes 1,2,4,8 --gpus 4 --set training.steps=100
      fsdpkit scale t5 --nodes 1,2 --gpus 4 --both
      fsdpkit scale t5 --nodes 1,2,4,8 --gpus 4 --dry-run
      fsdpkit scale status scale-fsdp-t5
      fsdpkit scale extend scale-fsdp-t5 --nodes 4,8
      fsdpkit scale write scale-fsdp-t5 -o proposal

    JOB is as for fsdpkit submit. Begin with few nodes, and add larger sizes by extend while they
    are efficient. All options: fsdpkit scale JOB --help.
    """


@command.command("start")
@click.argument("job", shell_complete=complete("job"))
@click.option(
    "--nodes",
    type=_Numbers(),
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
    nodes: list[int],
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
    """Start a study of JOB."""
    from fsdpkit.cli.submit import say_where
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
        return _show(prepared.paths, prepared.study, as_json)
    paths, study = scaling_study.start(prepared, asked)
    if as_json:
        return _started(study.name, paths.dir, _submitted(study))
    click.echo(study.name)
    _print_runs(study, study.nodes)
    typed, where = fsdpkit_as_typed(), as_typed(paths.dir)
    click.echo(f"  {typed} scale status {where}\n  {typed} scale write {where}")
    return 0


def _submitted(study: Study) -> dict[str, str]:
    return {f"{point.mode} {point.nodes}": point.run for point in study.points}


def _print_runs(study: Study, nodes: Sequence[int]) -> None:
    for point in study.points:
        if point.nodes in nodes:
            click.echo(f"{point.nodes} nodes ({point.mode}): {point.run}")


def _open(name: str, runs: str | None) -> tuple[StudyPaths, Study]:
    from fsdpkit.runs.store import runs_dir
    from fsdpkit.sweeps.scaling_record import load, study_paths

    paths = study_paths(name, runs_dir(runs))
    return paths, load(paths)


def _measured(paths: StudyPaths, study: Study) -> dict[Mode, list[Size]]:
    from fsdpkit.sweeps.scaling_study import measured

    return {mode: measured(paths, study, mode) for mode in study.modes}


@command.command("status")
@click.argument("name")
@runs_option
@json_option(_study)
def status(name: str, runs: str | None, as_json: bool) -> int:
    """Show what was measured so far, and where more nodes stop paying off."""
    return _show(*_open(name, runs), as_json)


def _show(paths: StudyPaths, study: Study, as_json: bool) -> int:
    """Each size as far as it is known; of one that was not submitted what is predicted."""
    from fsdpkit.sweeps.scaling import knee
    from fsdpkit.sweeps.scaling_tables import HEAD, rows

    found = _measured(paths, study)
    if as_json:
        everything = [one for sizes in found.values() for one in sizes]
        knees: dict[str, int | None] = {mode: knee(sizes) for mode, sizes in found.items()}
        return _study(study.name, paths.dir, everything, knees)
    table([*HEAD], [row for sizes in found.values() for row in rows(sizes)])
    for mode, sizes in found.items():
        if (where := knee(sizes)) is not None:
            click.echo(
                f"{mode}: knee at {where} nodes; the next step adds less than half of what as many "
                "of the smallest size do"
            )
    if any(one.predicted_tokens_per_s is None for sizes in found.values() for one in sizes):
        click.echo(
            "PREDICTED is empty where nothing was known of that size before it was submitted: ask "
            "fsdpkit plan about it first"
        )
    return 0


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
    """Write the results of NAME for a proposal: scaling.csv, scaling.tex, scaling.svg and
    scaling.png."""
    from fsdpkit.errors import StorageError
    from fsdpkit.runs.layout import write_atomically
    from fsdpkit.sweeps.scaling_tables import as_csv, as_latex

    paths, study = _open(name, runs)
    found = _measured(paths, study)
    everything = [one for sizes in found.values() for one in sizes]
    files: dict[str, str | bytes] = {
        "scaling.csv": as_csv(everything),
        "scaling.tex": as_latex(everything),
    }
    if not tables:
        from fsdpkit.sweeps.scaling_figure import figure

        files["scaling.svg"] = figure(found, study.name, "svg")
        files["scaling.png"] = figure(found, study.name, "png")
    directory = Path(output or study.name)
    try:
        directory.mkdir(exist_ok=True)
        for file, content in files.items():
            write_atomically(directory / file, content, by_umask=True)
    except OSError as error:
        raise StorageError(f"{directory} cannot be written: {error.strerror}") from error
    if as_json:
        return _written(study.name, [(directory / file).absolute() for file in files])
    click.echo("\n".join(str(directory / file) for file in files))
    return 0


@command.command("extend")
@click.argument("name")
@click.option(
    "--nodes", type=_Numbers(), required=True, metavar="N,N…", help="Numbers of nodes to add."
)
@runs_option
@json_option(_extended)
def extend_command(name: str, nodes: list[int], runs: str | None, as_json: bool) -> int:
    """Add numbers of nodes to NAME, and submit them."""
    from fsdpkit.sweeps.scaling_study import extend

    paths, _ = _open(name, runs)
    study = extend(paths, nodes, consent())
    if as_json:
        return _extended(study.name, paths.dir, _submitted(study))
    _print_runs(study, nodes)
    return 0


@command.command("cancel")
@click.argument("name")
@runs_option
@json_option(_cancelled)
def cancel_command(name: str, runs: str | None, as_json: bool) -> int:
    """End the runs of NAME."""
    from fsdpkit.sweeps.scaling_study import cancel

    paths, study = _open(name, runs)
    asked = cancel(paths)
    if as_json:
        return _cancelled(study.name, asked)
    what = f"asked to end {', '.join(asked)}" if asked else "all its runs have ended already"
    click.echo(f"{study.name}: {what}")
    return 0
