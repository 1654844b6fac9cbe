"""`fsdpkit checkpoint export`: weights for others to load.

Needs torch, but neither a process group nor a GPU.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from fsdpkit.cli.checkpoint_places import (
    CheckpointPlace,
    every_problem,
    find_checkpoints,
    of_step,
    require_some,
    run_argument,
)
from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.config.units import format_bytes
from fsdpkit.errors import NotFoundError, StorageError, UsageError
from fsdpkit.listing import counted


@answer("fsdpkit.checkpoint-export/1")
def _exported(
    checkpoint: Path, path: Path, files: Sequence[Path], bytes: int, load: Sequence[str]
) -> None:
    """The weights of a checkpoint, written for another program. load: how to read it."""


@click.command("export")
@run_argument
@click.argument("destination", metavar="DEST", required=False, type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(0), help="Checkpoint (default: the newest whole one).")
@click.option("--best", is_flag=True, help="The best one, by training.checkpoint.keep_best.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["huggingface", "file"]),
    default="huggingface",
    show_default=True,
    help="Directory of safetensors, or one file for torch.load.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Type of the weights (default: as trained).",
)
@click.option(
    "--with-optimizer", is_flag=True, help="Include the optimizer's state; needs --format file."
)
@json_option(_exported)
def command(
    run: str,
    destination: Path,
    runs: str | None,
    task: int | None,
    step: int | None,
    best: bool,
    kind: str,
    dtype: str | None,
    with_optimizer: bool,
    as_json: bool,
) -> int:
    """Write the weights of one of RUN's checkpoints to DEST.

    \b
      fsdpkit checkpoint export fsdp-t5-20261121-101500-3f2a model
      fsdpkit checkpoint export 3f2a model.pt --format file --step 2000
      fsdpkit checkpoint export 3f2a all.pt --format file --with-optimizer
      fsdpkit checkpoint export 3f2a model --best

    The checkpoint is verified first. An earlier export at DEST is replaced, anything else is not.
    """
    if with_optimizer and kind != "file":
        raise UsageError(
            "--with-optimizer: a Hugging Face directory has no place for it; add --format file."
        )
    if best and step is not None:
        raise UsageError("--best and --step name two checkpoints: give one of them.")
    places = find_checkpoints(run, runs, task)
    checkpoint = _whole_checkpoint(run, places, _best_step(run, places) if best else step)
    target = Path(os.path.abspath(os.path.expanduser(destination)))
    if not target.name:
        raise UsageError(f"DEST: {target} cannot be made.")

    import torch

    from fsdpkit.training.export import export_file, export_hugging_face

    chosen = getattr(torch, dtype) if dtype else None
    if kind == "file":
        export_file(checkpoint, target, dtype=chosen, with_optimizer=with_optimizer)
        files = [target]
    else:
        export_hugging_face(checkpoint, target, dtype=chosen)
        files = sorted(target.iterdir())
    total_bytes = sum(file.stat().st_size for file in files)
    ways = _ways_to_load(target, destination, with_optimizer)
    if as_json:
        return _exported(checkpoint, target, files, total_bytes, ways)
    size = format_bytes(total_bytes)
    what = "weights and optimizer" if with_optimizer else "weights"
    click.echo(f"{destination}: {what} of {checkpoint.name}, {size} in {counted(files, 'file')}")
    for line in ways:
        click.echo(f"  {line}")
    return 0


def _whole_checkpoint(run: str, places: Sequence[CheckpointPlace], step: int | None) -> Path:
    """The newest whole checkpoint, or that of `step`, after every byte of it was read. Of an array:
    of the first task that has any. Raises StorageError when it is not whole, ConfigError when it is
    of another format."""
    require_some(run, places)
    first = [place for place in places if place.checkpoints][:1]
    for name, path in reversed(of_step(run, first, step)):
        problems = every_problem(path)
        if not problems:
            return path
        click.echo(f"fsdpkit: {name} is refused: {'; '.join(problems)}", err=True)
    what = "no checkpoint is whole" if step is None else f"the one of step {step} is not whole"
    raise StorageError(f"{run}: {what}; nothing was exported.")


def _best_step(run: str, places: Sequence[CheckpointPlace]) -> int:
    """The step of the best checkpoint, of an array: of the first task that has any. Raises
    NotFoundError when none was measured by what the run keeps its best by."""
    from fsdpkit.runs.checkpoints import best_of, describe

    require_some(run, places)
    found = best_of(next(place.checkpoints for place in places if place.checkpoints))
    if found is None:
        raise NotFoundError(
            f"{run} has no best checkpoint: a run keeps one by the metric that "
            "training.checkpoint.keep_best names. Leave --best out, or choose one by --step."
        )
    return describe(found[0]).step


def _ways_to_load(target: Path, typed: Path, with_optimizer: bool) -> list[str]:
    """How to read an export, as lines to copy."""
    where = str(typed)
    if target.is_file():
        load = f"torch.load({where!r}, weights_only=True)"
        if not with_optimizer:
            return [load]
        return [
            f"saved = {load}",
            'model.load_state_dict(saved["model"])',
            "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict(model, optimizer,",
            '    saved["optimizer"], options=StateDictOptions(full_state_dict=True))',
        ]
    config: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        config = json.loads((target / "config.json").read_text("utf-8"))
    lines = []
    if config.get("model_type") == "t5":
        lines.append(f'fsdpkit generate {shlex.quote(where)} "some text"')
    if architectures := config.get("architectures"):
        lines.append(f"transformers.{architectures[0]}.from_pretrained({where!r})")
    first = min(target.glob("*.safetensors"))
    return lines or [f"safetensors.torch.load_file({str(typed / first.name)!r})"]
