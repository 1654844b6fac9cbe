"""Events and samples: JSON lines with a time stamp, one writer per file.

A line is written with one `write` call, so a reader on another machine sees complete lines, or an
incomplete last one, which it skips.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fsdpkit.bounded import EVENTS_BYTES, read_end
from fsdpkit.runs.reading import parsed


class JsonLines:
    """Appends records to one file. `time_s` (Unix time, seconds) is added to each. A record that
    cannot be written, because the disk is full, is reported once on standard error and dropped:
    logging must not end the training."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._told = path, False
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - open for the writer's lifetime

    def write(self, **fields: Any) -> None:
        self.write_all([fields])

    def write_all(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Several records in one call to the file system."""
        now = {"time_s": round(time.time(), 3)}
        lines = (json.dumps({**now, **fields}, separators=(",", ":")) + "\n" for fields in records)
        try:
            self._file.write("".join(lines).encode(errors="replace"))
        except OSError as error:
            if not self._told:
                self._told = True
                words = f"fsdpkit: {self._path} cannot be written ({error.strerror}); going on"
                with contextlib.suppress(OSError):  # the log may be on the same disk
                    print(words, file=sys.stderr)

    def close(self) -> None:
        self._file.close()


def finite(fields: dict[str, Any]) -> dict[str, Any]:
    """The same with null for each number that is not finite, named in `not_finite`: JSON has no NaN
    and infinity, which Python's writer would write all the same."""
    words = {
        name: str(value)
        for name, value in fields.items()
        if isinstance(value, float) and not math.isfinite(value)
    }
    return {**fields, **dict.fromkeys(words), "not_finite": words} if words else fields


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete records of `path` in order, of a very large file the last; none: no file."""
    try:
        data = read_end(path, EVENTS_BYTES)
    except FileNotFoundError:
        return
    for line in data.splitlines():
        try:
            record = parsed(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record
