"""What the readers of all formats share: rows, pieces of files, and rows that are no use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fsdpkit.errors import ConfigError

BATCH_BYTES = 1 << 20
"""Input that is read, tokenised and written at a time."""

MAX_ROW_BYTES = 64 << 20
"""A longer row is no row: the file is something else than its name says."""

EXAMPLES = 5
"""Bad rows that are shown to the person."""

NO_FIELD = "no field "
"""How the reason begins why a row is no use that has other fields than were asked for."""

NAME_THE_FIELDS = (
    "Name the fields to read: source_field, target_field in training.data (--source-field, "
    "--target-field of data prepare)."
)

Row = tuple[str, ...]


class FilePiece(NamedTuple):
    """A part of a file that can be read alone: bytes [start, end), of Parquet row groups."""

    path: Path
    start: int
    end: int
    bytes: int  # of the file, for progress


class BadRow(NamedTuple):
    """A row that cannot be used."""

    where: str  # file and line or row, both counted from 1
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"

    @property
    def lacks_field(self) -> bool:
        """Whether its fields have other names: then most likely those of all rows have."""
        return self.reason.startswith(NO_FIELD)


class RowBatch(NamedTuple):
    """Some rows of a piece in their order, and how many bytes of the file they took."""

    rows: list[Row]
    bad: list[BadRow]
    bytes: int

    def refuse(self, where: str, reason: str) -> None:
        self.bad.append(BadRow(where, reason))


@dataclass(frozen=True)
class BadRows:
    """Rows that were left out: how many, and the first few as sentences."""

    count: int = 0
    examples: tuple[str, ...] = ()

    def and_also(self, later: BadRows) -> BadRows:
        """These and those of what comes after."""
        return BadRows(self.count + later.count, (*self.examples, *later.examples)[:EXAMPLES])


def sift(batch: RowBatch, policy: str) -> BadRows:
    """The bad rows of `batch` under "skip"; under "fail" a ConfigError that shows the first."""
    if not batch.bad:
        return BadRows()
    if policy == "fail" and batch.bad[0].lacks_field:
        raise ConfigError(f"{batch.bad[0]}. {NAME_THE_FIELDS}")
    if policy == "fail":
        raise ConfigError(
            f"{batch.bad[0]}. Correct the row, or leave such rows out: bad_rows = "
            '"skip" (--bad-rows skip).'
        )
    return BadRows(len(batch.bad), tuple(map(str, batch.bad[:EXAMPLES])))


def text_problem(field: str, value: object) -> str | None:
    """Why `value` is no text to train on, or None when it is."""
    if not isinstance(value, str):
        return f"field {field!r} must be a string, but is {_shown(value)}"
    if not value or value.isspace():
        return f"field {field!r} is empty"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            bad = ord(value[error.start])
            if 0xDC80 <= bad <= 0xDCFF:  # how surrogateescape carries an undecodable byte
                return f"field {field!r} is not UTF-8: byte {bad - 0xDC00:#04x}"
            return f"field {field!r} holds half of a surrogate pair, \\u{bad:04x}"
    return None


def _shown(value: object) -> str:
    if value is None:
        return "null"
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 60 else f"{text[:57]}…"
