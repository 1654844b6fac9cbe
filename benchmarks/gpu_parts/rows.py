"""Rows on disk: one JSON object a line, appended and synced as soon as it is known.

The file is the record; a result is made from it. A line that was cut short by a crash is passed
over, and nothing in the file is ever changed. Standard library only.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

Status = Literal["started", "measured", "failed", "skipped", "unavailable", "done"]
Row = dict[str, Any]

ABOUT, END = "about", "the part"
"""Names of the rows that say what a part ran on, and how it ended."""

KNOWN = ("measured", "done")


def append(file: Path, row: Mapping[str, Any]) -> Row:
    """Write `row` with the time as `at`; on disk when this returns."""
    row = {**row, "at": round(time.time(), 3)}
    with file.open("ab+") as lines:
        if lines.seek(0, os.SEEK_END):
            lines.seek(-1, os.SEEK_END)
            if lines.read(1) != b"\n":  # what was there was cut short
                lines.write(b"\n")
        lines.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        lines.flush()
        os.fsync(lines.fileno())
    return row


def read(file: Path) -> list[Row]:
    """All whole rows, in the order in which they were written."""
    if not file.exists():
        return []
    found = []
    for line in file.read_bytes().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and {"part", "name", "status"} <= row.keys():
            found.append(row)
    return found


def latest(rows: Iterable[Row]) -> list[Row]:
    """One row for each part and name, in the order of their first appearance.

    The last one counts, but what was measured is only replaced by what is measured anew.
    """
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = row["part"], row["name"]
        before = found.get(key)
        keeps = before is not None and before["status"] == "measured" and key[1] != END
        if not keeps or row["status"] in KNOWN:
            found[key] = row
    return list(found.values())


def shown(rows: Iterable[Row]) -> list[Row]:
    """`latest` for a result: what was begun and never ended has failed."""
    return [
        {**row, "status": "failed", "why": "the process ended while this was measured"}
        if row["status"] == "started"
        else row
        for row in latest(rows)
    ]


def is_done(rows: Iterable[Row], part: str) -> bool:
    """Whether nothing of the part is left to measure."""
    own = [row for row in latest(rows) if row["part"] == part]
    ended = any(row["name"] == END and row["status"] == "done" for row in own)
    return ended and all(row["status"] not in ("failed", "skipped", "started") for row in own)
