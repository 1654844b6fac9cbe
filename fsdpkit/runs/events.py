"""Events and samples: JSON lines with a time stamp, one writer a file.

A line is written with one `write` call, so a reader on another machine sees whole lines or a torn
last one, which it skips.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class JsonLines:
    """Appends records to one file. `time_s` (Unix time, seconds) is added to each."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - open for the writer's lifetime

    def write(self, **fields: Any) -> None:
        line = json.dumps({"time_s": round(time.time(), 3), **fields}, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole records of `path` in order; a missing file has none, a torn line is skipped."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    for line in data.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record
