"""How many samples an epoch has, counted before a job queues.

Prepared data says it; of other files a bounded part is read, and the rest estimated from its size.
What only a tokenizer can tell, such as the windows of span corruption, is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fsdpkit.bounded import COUNTED_BYTES
from fsdpkit.config.training import DataSettings
from fsdpkit.data import python_docs
from fsdpkit.data.index import read_index
from fsdpkit.data.inputs import PYTHON_DOCS
from fsdpkit.data.readers import input_files, read, whole
from fsdpkit.errors import ConfigError


class SampleCount(NamedTuple):
    """Of the data that a job trains on, without what is held out."""

    samples: int
    is_estimate: bool
    bytes_each: float | None
    """On disk; None for data that is made in memory."""


def count_samples(data: DataSettings, work_dir: Path) -> SampleCount:
    """The samples of an epoch. Raises ConfigError for data whose samples are not its rows, and what
    reading the files raises."""
    if data.task == "span-corruption" or data.packing:
        what = "packing" if data.packing else "span corruption"
        raise ConfigError(f"{what} makes other samples than rows, which only the run counts")
    if data.source == PYTHON_DOCS:
        found = SampleCount(sum(1 for _ in python_docs.docstrings()), False, None)
    elif (where := work_dir / data.source).is_dir():
        index = read_index(where)
        found = SampleCount(index.rows, False, index.bytes / max(1, index.rows))
    else:
        fields = [data.source_field, data.target_field]
        found = _count_in(input_files(str(where)), fields)
    rows = min(found.samples, data.limit or found.samples)
    if data.held_out and data.held_out_source is None:
        rows -= rows // round(1 / data.held_out)
    return found._replace(samples=rows)


def _count_in(files: Sequence[Path], fields: Sequence[str]) -> SampleCount:
    """Rows among the first COUNTED_BYTES, and what that makes for all of the bytes."""
    rows = seen = 0
    total = sum(path.stat().st_size for path in files)
    for path in files:
        for batch in read(whole(path), fields):
            rows, seen = rows + len(batch.rows), seen + batch.bytes
            if seen >= COUNTED_BYTES:
                break
        if seen >= COUNTED_BYTES:
            break
    if not rows or not seen:
        raise ConfigError(f"{files[0]}: holds no rows that can be counted")
    if seen >= total:
        return SampleCount(rows, False, total / rows)
    return SampleCount(round(rows * total / seen), True, seen / rows)
