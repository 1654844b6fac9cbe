"""`fsdpkit data`: prepare training data once, and look at what was prepared."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import table
from fsdpkit.cli.terminal import console
from fsdpkit.config.units import format_bytes
from fsdpkit.errors import UsageError

if TYPE_CHECKING:
    from fsdpkit.data.index import DataIndex
    from fsdpkit.data.pool import PreparationProgress

PLAIN_LINE_S = 10
"""Seconds between lines of progress where no terminal shows a bar."""
MOST_BY_DEFAULT = 8
"""Processes, when nobody says: a login node is shared."""
MOST_LENGTHS = 10_000_000
"""Rows whose lengths are sorted for percentiles; of more, every n-th."""


@answer("fsdpkit.data-prepare/1")
def _prepared(
    dir: Path,
    was_prepared: bool,
    task: str,
    rows: int,
    tokens: int,
    bytes: int,
    bad_rows: int,
    bad_examples: Sequence[str],
    fingerprint: str,
) -> None:
    """A directory that `data prepare` made.

    was_prepared: it had been before, from the same input. bad_examples: why some of the rows that
    were left out cannot be used.
    """


@dataclass(frozen=True)
class Lengths:
    """How many tokens the rows have in one field."""

    min: int
    p5: int
    p50: int
    p95: int
    p99: int
    max: int


@answer("fsdpkit.data-show/1")
def _shown(
    dir: Path,
    task: str,
    tokenizer: str,
    vocab_size: int,
    rows: int,
    tokens: int,
    bytes: int,
    shards: int,
    bad_rows: int,
    bad_examples: Sequence[str],
    inputs: Sequence[str],
    fingerprint: str,
    lengths: dict[str, Lengths],
    row: int,
    texts: dict[str, str],
) -> None:
    """What a prepared directory holds, and one of its rows.

    lengths, texts: by field; the latter are the row's, decoded.
    """


@click.group("data")
def command() -> None:
    """Prepare training data once, and look at it.

    \b
      fsdpkit data prepare pairs.jsonl --output prepared
      fsdpkit data show prepared
    """


@command.command("prepare")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "-o", "--output", required=True, type=click.Path(file_okay=False), help="Directory to create."
)
@click.option(
    "--tokenizer",
    default="bytes",
    show_default=True,
    help="bytes (ByT5), a tokenizer.json or a SentencePiece .model.",
)
@click.option(
    "--task",
    type=click.Choice(["pairs", "span-corruption"]),
    default="pairs",
    show_default=True,
    help="Training task: source and target, or a single text.",
)
@click.option(
    "--source-field", default="source", show_default=True, help="Field with the source text."
)
@click.option(
    "--target-field", default="target", show_default=True, help="Field with the target text."
)
@click.option(
    "--source-prefix",
    default="",
    metavar="TEXT",
    help='Put before each source text, such as "summarize: ".',
)
@click.option(
    "--processes",
    type=click.IntRange(1, 1024),
    help=f"Processes (default: CPUs, at most {MOST_BY_DEFAULT}).",
)
@click.option(
    "--bad-rows",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="Stop at an unusable row, or skip it.",
)
@click.option("--force", is_flag=True, help="Replace data that was prepared from other input.")
@json_option(_prepared)
def prepare(
    inputs: tuple[str, ...],
    output: str,
    processes: int | None,
    force: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Tokenise .jsonl, .csv, .parquet or .txt files into memory-mapped shards.

    \b
      fsdpkit data prepare pairs.jsonl --output prepared
      fsdpkit data prepare 'text/*.txt' --task span-corruption --output prepared

    To continue an interrupted preparation, run the same command again.
    """
    from fsdpkit.config.training import DataSettings
    from fsdpkit.data.preparing import prepare

    asked = DataSettings(**settings)
    processes = processes or min(len(os.sched_getaffinity(0)), MOST_BY_DEFAULT)
    try:
        with _shown_progress() as report:
            done = prepare(
                inputs, Path(output), asked, processes=processes, force=force, report=report
            )
    except KeyboardInterrupt:
        click.echo("fsdpkit: stopped; the same command goes on from here", err=True)
        raise
    index = done.index
    if as_json:
        return _prepared(
            dir=Path(output).absolute(),
            was_prepared=done.found,
            task=index.preparation.task,
            rows=index.rows,
            tokens=index.tokens,
            bytes=index.bytes,
            bad_rows=index.bad_rows,
            bad_examples=index.bad_examples,
            fingerprint=index.fingerprint,
        )
    if done.found:
        click.echo(f"{output}: is prepared already", err=True)
    _tell_bad_rows(index)
    click.echo(f"{output}: {index.rows:,} rows, {index.tokens:,} tokens, {_size(index)}")
    source = shlex.quote(f"training.data.source={output}")
    click.echo(f"  fsdpkit data show {shlex.quote(output)}")
    words = f"--set {source} --set training.data.task={asked.task}"
    if asked.source_prefix:
        words += " --set " + shlex.quote(f"training.data.source_prefix={asked.source_prefix}")
    click.echo(f"  fsdpkit submit {words}")
    return 0


@command.command("show")
@click.argument("directory", type=click.Path(file_okay=False))
@click.option("--row", type=click.IntRange(0), default=0, help="Row to print, from 0.")
@json_option(_shown)
def show(directory: str, row: int, as_json: bool) -> int:
    """Print what a prepared directory holds, and one of its rows."""
    from fsdpkit.data.index import read_index
    from fsdpkit.data.prepared import open_tokens, tokenizer_of

    path = Path(directory)
    index = read_index(path)
    if row >= index.rows:
        raise UsageError(f"--row {row}: {directory} has rows 0 to {index.rows - 1}.")
    tokens, made = open_tokens(path), index.preparation
    tokenizer = tokenizer_of(path, made.tokenizer)
    fields = list(enumerate(made.fields))
    lengths = {name: _percentiles(tokens.lengths(i)) for i, name in fields}
    texts = {name: tokenizer.decode(tokens.ids(row, i).tolist()) for i, name in fields}
    if as_json:
        return _shown(
            dir=path.absolute(),
            task=made.task,
            tokenizer=made.tokenizer.file,
            vocab_size=made.tokenizer.vocab_size,
            rows=index.rows,
            tokens=index.tokens,
            bytes=index.bytes,
            shards=len(index.shards),
            bad_rows=index.bad_rows,
            bad_examples=index.bad_examples,
            inputs=[record.path for record in made.inputs],
            fingerprint=index.fingerprint,
            lengths=lengths,
            row=row,
            texts=texts,
        )
    facts = {
        "task": made.task,
        "tokenizer": f"{made.tokenizer.file}, {made.tokenizer.vocab_size:,} ids",
        "rows": f"{index.rows:,}",
        "tokens": f"{index.tokens:,}",
        "size": _size(index),
        "bad rows": f"{index.bad_rows:,} left out" if index.bad_rows else "none",
        "inputs": _inputs(index),
        "fingerprint": index.fingerprint,
    }
    for name, fact in facts.items():
        click.echo(_cut(f"{name:<12}{fact}"))
    _tell_bad_rows(index)
    click.echo("\nLength in tokens")
    rows = [[name, *(f"{count:,}" for count in astuple(one))] for name, one in lengths.items()]
    table(["FIELD", "MIN", "5%", "50%", "95%", "99%", "MAX"], rows)
    click.echo(f"\nRow {row:,}")
    for name, text in texts.items():
        click.echo(_cut(f"  {name}: {_printable(text)}"))
    return 0


def _percentiles(lengths: Any) -> Lengths:
    import numpy as np

    some = lengths[:: max(1, -(-len(lengths) // MOST_LENGTHS))]
    p5, p50, p95, p99 = map(int, np.percentile(some, [5, 50, 95, 99], method="lower"))
    least, most = int(lengths.min()), int(lengths.max())
    return Lengths(min=least, p5=p5, p50=p50, p95=p95, p99=p99, max=most)


def _inputs(index: DataIndex) -> str:
    inputs = index.preparation.inputs
    total = sum(record.bytes for record in inputs)
    first = Path(inputs[0].path).name
    if len(inputs) == 1:
        return f"{format_bytes(total)}, {first}"
    return f"{format_bytes(total)}, {len(inputs):,} files, the first {first}"


def _size(index: DataIndex) -> str:
    count = len(index.shards)
    return f"{format_bytes(index.bytes)} in {count:,} shard{'s' if count > 1 else ''}"


def _tell_bad_rows(index: DataIndex) -> None:
    if index.bad_rows:
        click.echo(f"fsdpkit: bad rows left out: {index.bad_rows:,}, such as", err=True)
        for example in index.bad_examples:
            click.echo(f"  {example}", err=True)


def _printable(text: str) -> str:
    text = text.replace("\n", "⏎")
    return "".join(c if c.isprintable() else "·" for c in text)


def _cut(line: str) -> str:
    width = shutil.get_terminal_size().columns
    return line if len(line) <= width else line[: width - 1] + "…"


@contextmanager
def _shown_progress() -> Iterator[Callable[[PreparationProgress], None]]:
    """A bar for a person at a terminal, else a line now and then; both on standard error."""
    if not sys.stderr.isatty():
        yield _plain_lines()
        return
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    with Bar(
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:3.0f}%"),
        TextColumn("{task.fields[told]}", markup=False),
        TimeRemainingColumn(),
        console=console(err=True),
    ) as bar:
        task = bar.add_task("", total=None, told="")
        started = time.monotonic()

        def update(progress: PreparationProgress) -> None:
            told = _told(progress, time.monotonic() - started)
            done = progress.bytes_found + progress.bytes
            bar.update(task, completed=done, total=progress.bytes_total, told=told)

        yield update


def _plain_lines() -> Callable[[PreparationProgress], None]:
    started = last = time.monotonic()

    def tell(progress: PreparationProgress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PLAIN_LINE_S or progress.shards_whole == progress.shards:
            last = now
            shards = f"{progress.shards_whole:,} of {progress.shards:,} shards"
            click.echo(f"fsdpkit: {shards}, {_told(progress, now - started)}", err=True)

    return tell


def _told(progress: PreparationProgress, elapsed_s: float) -> str:
    done = format_bytes(progress.bytes_found + progress.bytes)
    rate = format_bytes(progress.bytes / max(elapsed_s, 1e-9))
    return f"{done} of {format_bytes(progress.bytes_total)}, {rate}/s, {progress.rows:,} rows"
