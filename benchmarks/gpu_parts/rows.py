"""Rows on disk: one JSON object a line, appended and synced as soon as it is known.

The file is the record, and a result is made from it. Nothing in it is changed, and a line that was
cut short is passed over. Standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]

ABOUT, END = "about", "the part"
"""Names of the row about a call's machine, and of the one that says how a part ended."""


def append(file: Path, row: Mapping[str, Any]) -> Row:
    """Write `row`; on disk when this returns. What was cut short before ends with its line."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write("\n" + json.dumps(row, ensure_ascii=False) + "\n")
        lines.flush()
        os.fsync(lines.fileno())
    return dict(row)


def read(file: Path) -> list[Row]:
    """All whole rows, in the order in which they were written."""
    found = []
    for line in file.read_bytes().split(b"\n") if file.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and {"call", "part", "name", "status"} <= row.keys():
            found.append(row)
    return found
