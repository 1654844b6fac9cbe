"""The files that a job names, looked at before it is queued: milliseconds now or hours in a queue.

Only beginnings and headers are read, never a whole corpus, and with the standard library and
msgspec alone, since this is on the path of every submission. What it lets through, the trainer
checks again in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from fsdpkit.bounded import open_regular
from fsdpkit.config.training import DataSettings, ModelSettings, TrainingSettings
from fsdpkit.data.index import check_fits, read_index
from fsdpkit.data.model_files import weight_problems
from fsdpkit.data.readers import input_files, pieces, read, whole
from fsdpkit.data.rows import BATCH_BYTES, NAME_THE_FIELDS, FilePiece
from fsdpkit.data.tokenizer_files import largest_id
from fsdpkit.errors import FsdpkitError

PYTHON_DOCS = "python-docs"


def input_problems(
    settings: TrainingSettings, world_size: int | None, workdir: Path | None = None
) -> list[str]:
    """What is wrong with the files of `settings`, a sentence each with file and row; empty if all
    is well. `world_size` is the number of ranks, None when it is not known; relative paths start at
    `workdir`, by default the current directory. Nothing is raised for a file that is no good."""
    workdir = workdir or Path.cwd()
    problems = [
        *_told(_data_problems(settings.data, world_size, workdir)),
        *_told(_vocabulary_problems(settings, workdir)),
        *_told(_model_problems(settings.model, workdir)),
    ]
    return list(dict.fromkeys(problems))  # two of them may stumble over the same file


def _told(problems: Iterator[str]) -> Iterator[str]:
    try:
        yield from problems
    except FsdpkitError as error:
        yield str(error)
    except OSError as error:
        yield f"{error.filename}: cannot be read: {error.strerror}."


def _data_problems(data: DataSettings, world_size: int | None, workdir: Path) -> Iterator[str]:
    if data.source != PYTHON_DOCS:
        yield from _source_problems(data, data.source, world_size, workdir)
    if data.held_out_source is not None:
        # Evaluating, a rank may be without a sample.
        yield from _source_problems(data, data.held_out_source, None, workdir)


def _source_problems(
    data: DataSettings, source: str, world_size: int | None, workdir: Path
) -> Iterator[str]:
    fields = [data.source_field]
    if data.task == "pairs":
        fields.append(data.target_field)
    where = workdir / source
    if where.is_dir():
        index = read_index(where)
        prefix = data.source_prefix
        check_fits(where, index, len(fields), data.tokenizer, workdir, source_prefix=prefix)
        yield from _too_few(data, str(where), index.rows, world_size)
        return
    rows = 0
    paths = input_files(str(where))
    all_seen = len(paths) <= 3
    for path in paths[:3]:
        if path.suffix == ".parquet":
            yield from _parquet_problems(path)
            all_seen = False
            continue
        piece = whole(path) if path.suffix == ".csv" else next(pieces(path, BATCH_BYTES))
        count, problem = _first_rows(piece, fields, data.bad_rows)
        if problem:
            yield problem
            return
        rows += count
        all_seen = all_seen and path.stat().st_size <= BATCH_BYTES
    if data.limit or all_seen:
        yield from _too_few(data, str(where), rows if all_seen else data.limit, world_size)


def _first_rows(piece: FilePiece, fields: list[str], policy: str) -> tuple[int, str | None]:
    """Usable rows in the first megabyte, and what is wrong with them."""
    rows = 0
    bad = []
    for batch in islice(read(piece, fields), 2):  # the first batch of some formats is empty
        rows += len(batch.rows)
        bad += batch.bad
    if bad and policy == "fail" and bad[0].lacks_field:
        return rows, f"{bad[0]}. {NAME_THE_FIELDS}"
    if bad and policy == "fail":
        return rows, (
            f'{bad[0]}. Correct it, or set training.data.bad_rows = "skip" to leave such rows out.'
        )
    if bad and not rows:
        return rows, f"{piece.path}: none of the first {len(bad)} rows can be used: {bad[0]}."
    if not rows:
        return rows, f"{piece.path}: holds no rows."
    return rows, None


def _too_few(data: DataSettings, source: str, rows: int, world_size: int | None) -> Iterator[str]:
    # A text of span corruption becomes many samples; a pair is one.
    rows = min(rows, data.limit) if data.limit else rows
    if data.task == "pairs" and world_size is not None and rows < world_size:
        yield (
            f"{source}: {rows} row{'s' if rows != 1 else ''} for {world_size} ranks: every rank "
            "needs one; use fewer nodes or GPUs, or more data"
            + (f" (training.data.limit is {data.limit})." if data.limit else ".")
        )


def _parquet_problems(path: Path) -> Iterator[str]:
    """Only the marks at both ends: the schema takes pyarrow, which a submission does not load."""
    with open_regular(path, links=True) as file:
        begin = file.read(4)
        file.seek(-min(4, path.stat().st_size), 2)
        end = file.read(4)
    if begin != b"PAR1" or end != b"PAR1":
        yield f"{path}: not a Parquet file, or one that was cut short."


def _vocabulary_problems(settings: TrainingSettings, workdir: Path) -> Iterator[str]:
    """Ids that the model has no embedding for."""
    data = settings.data
    where = workdir / data.source
    file = data.tokenizer or "bytes"
    path = workdir / file
    if data.source != PYTHON_DOCS and where.is_dir():
        record = read_index(where).preparation.tokenizer
        file, path = record.file, where / record.file
    largest = 258 if file == "bytes" else largest_id(path, data.task == "span-corruption")
    model = _in(settings.model, workdir)
    vocab_size = model.dimensions()["vocab_size"]
    if largest >= vocab_size:
        what = "the byte tokenizer" if file == "bytes" else f"{path}:"
        yield (
            f"{what} has ids up to {largest}, but the vocab_size of the model ({model.source}) is "
            f"{vocab_size}: choose the model's own tokenizer, or set training.model.vocab_size to "
            f"{largest + 1} or more for a model with new weights."
        )


def _model_problems(model: ModelSettings, workdir: Path) -> Iterator[str]:
    if model.pretrained:
        model = _in(model, workdir)
        assert model.pretrained is not None
        yield from weight_problems(Path(model.pretrained), model.dimensions())


def _in(model: ModelSettings, workdir: Path) -> ModelSettings:
    """`model` with its paths made to start at `workdir`."""
    changes = {
        key: str(workdir / path)
        for key in ("pretrained", "config")
        if (path := getattr(model, key)) is not None
    }
    return msgspec.structs.replace(model, **changes)
