"""`fsdpkit generate`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from fsdpkit.cli.options import chosen, complete_run, runs_option
from fsdpkit.config import assets
from fsdpkit.errors import NotFoundError

SCRIPT = Path("examples", "T5-fsdp", "generate.py")


@click.command("generate")
@click.argument("run", required=False, shell_complete=complete_run)
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--input", metavar="FILE", help="A .jsonl, .csv, .parquet or .txt file of texts.")
@click.option("--source-field", metavar="KEY", help="Field with the source text.")
@click.option("--target-field", metavar="KEY", help="Field with the target text.")
@click.option("--source-prefix", metavar="TEXT", help="Put before each text.")
@click.option(
    "--bad-rows", type=click.Choice(["fail", "skip"]), help="Stop at an unusable row, or skip it."
)
@click.option("--rouge", is_flag=True, help="Compare with the targets; needs fsdpkit[rouge].")
@click.option("-o", "--output", metavar="FILE", help="Write .jsonl there instead of printing.")
@click.option("--tokenizer", metavar="NAME", help="bytes, a tokenizer.json or a .model.")
@click.option("--beams", type=click.IntRange(1), help="Beam width (default 1: greedy).")
@click.option("--length-penalty", type=float, help="Above 1 prefers longer texts (default 1).")
@click.option("--early-stopping", is_flag=True, help="Stop once there are as many texts as beams.")
@click.option("--max-new-tokens", type=click.IntRange(1), help="Default 128.")
@click.option("--batch-size", type=click.IntRange(1), help="Texts at a time (default 8).")
@click.option("--device", help="Default: a GPU if there is one.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), help="Type to compute in.")
@runs_option
def command(run: str | None, texts: tuple[str, ...], runs: str | None, **options: Any) -> int:
    """Generate text with the T5 of RUN, here in one process: from TEXT, or from the rows of a file.

    \b
      fsdpkit generate fsdp-t5-20261121-101500-3f2a "def add(a, b): return a + b"
      fsdpkit generate model --input test.csv --rouge --beams 4
      fsdpkit submit generate -- --weights model --input test.csv    # on a cluster

    RUN is a run (its newest whole checkpoint is used; default: your newest run), a checkpoint, or a
    Hugging Face directory. Field names, prefix and tokenizer default to those of its training.
    """
    from importlib.util import find_spec

    if find_spec("torch") is None:  # said in a sentence, rather than by the program's traceback
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    if run and " " in run and not os.path.exists(run):
        texts, run = (run, *texts), None
    program = [sys.executable, str(assets.packaged_dir() / SCRIPT)]
    weights = str(_directory(str(chosen(run, runs)), runs))
    words = ["--weights", weights, *_words(options), "--", *texts]
    with subprocess.Popen(
        [*program, *words], stdout=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:  # a model may write what a terminal would obey
            click.echo(line, nl=False)
    return process.returncode


def _words(options: dict[str, Any]) -> Iterator[str]:
    """The options that were given, as the script takes them."""
    for name, value in options.items():
        if value is not None and value is not False:
            yield f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")


def _directory(weights: str, runs: str | None) -> Path:
    """A directory as it was given, else that of the run of which this is a part of the name."""
    from fsdpkit.runs.store import find_run, runs_dir

    path = Path(os.path.expanduser(weights))
    if path.is_dir():
        return path
    try:
        return Path(find_run(weights, runs_dir(runs)))
    except NotFoundError as error:
        raise NotFoundError(f"{error} Nor is it a directory.") from None
