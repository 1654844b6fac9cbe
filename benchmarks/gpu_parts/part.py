"""Rows of results, each on disk as soon as it is known, whatever becomes of the next.

A part of the measurement is a process of its own, because a GPU whose kernel failed is of no more
use to the process. It appends its rows to a file, one JSON object a line; gpu.py reads them, and
stops a part that outlasts its time.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu_parts.device import Device
from fsdpkit.training.distributed import Ranks

Status = Literal["measured", "failed", "skipped", "unavailable"]
Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One part under way. `deadline` is a time of `time.time()`, `dry` asks for tiny sizes."""

    name: str
    file: Path
    deadline: float
    dry: bool
    ranks: Ranks
    device: Device

    @property
    def scratch(self) -> Path:
        """For large files: a directory beside its file, which gpu.py removes after the part."""
        directory = self.file.with_suffix("")
        directory.mkdir(exist_ok=True)
        return directory

    @property
    def left_s(self) -> float:
        return self.deadline - time.time()

    def measure(
        self,
        name: str,
        action: Callable[[], Mapping[str, Any]],
        *,
        needs_s: float = 0.0,
        lacks: str | None = None,
    ) -> Row:
        """The row `name` with what `action` finds, or with why there is nothing (`why`).

        `needs_s` is what it takes as a rule: with less time left it is not begun. `lacks` says
        what is missing here, if anything.
        """
        print(f"begin {name}", flush=True)
        count = self.device.counts()
        began = time.perf_counter()
        found: Mapping[str, Any]
        if lacks:
            found = {"status": "unavailable", "why": lacks}
        elif not self.dry and self.left_s < needs_s:
            found = {"status": "skipped", "why": f"{self.left_s:.0f} s left, takes {needs_s:.0f}"}
        else:
            try:
                found = {"status": "measured", **action()}
            except Exception as error:
                traceback.print_exc()
                found = {"status": "failed", "why": explain(error)}
        took_s = time.perf_counter() - began
        return self.record(name, {**found, "counts": count()}, took_s)

    def record(self, name: str, found: Mapping[str, Any], took_s: float = 0.0) -> Row:
        row = {"part": self.name, "name": name, **found, "took_s": round(took_s, 2)}
        append(self.file, row)
        return row


def append(file: Path, row: Row) -> None:
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")
        lines.flush()
        os.fsync(lines.fileno())


def explain(error: BaseException) -> str:
    """The error, and the last line of our own code that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "site-packages" not in frame.filename]
    where = f" ({Path(ours[-1].filename).name}:{ours[-1].lineno})" if ours else ""
    said = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}: {said}{where}"
