"""One part of the measurement under way: a process of its own, which appends rows to a file.

A process of its own because a GPU whose kernel failed is of no more use to the process. Rows that
an earlier start of the part has measured are not measured again.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts.device import Device
from benchmarks.gpu_parts.rows import Row, append
from fsdpkit.training.distributed import Ranks

__all__ = ["BROKEN", "Part", "Row", "Unavailable", "explain"]

BROKEN = 70
"""Exit status of a process whose GPU context is gone; gpu.py starts it anew for the other rows."""

_STICKY = (
    "illegal memory access",
    "misaligned address",
    "unspecified launch",
    "device-side assert",
)


class Unavailable(Exception):
    """What a row wants is not to be had here, and nobody is to blame."""


@dataclass(frozen=True)
class Part:
    """`deadline` is a time of `time.time()`, `dry` asks for tiny sizes; `earlier` are rows by name
    that stay as they are, `context` all rows that are known, of other parts too."""

    name: str
    file: Path
    deadline: float
    dry: bool
    ranks: Ranks
    device: Device
    scratch: Path
    earlier: Mapping[str, Row] = field(default_factory=dict)
    context: tuple[Row, ...] = ()

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
        what is missing here, if anything. Exits with BROKEN when the GPU can do no more.
        """
        if name in self.earlier:
            return self.earlier[name]
        if lacks:
            return self.record(name, {"status": "unavailable", "why": lacks})
        if self.left_s < (0.0 if self.dry else needs_s):
            why = f"{max(0.0, self.left_s):.0f} s left, takes {needs_s:.0f}"
            return self.record(name, {"status": "skipped", "why": why})
        print(f"begin {name}", flush=True)
        append(self.file, {"part": self.name, "name": name, "status": "started"})
        count = self.device.counts()
        began = time.perf_counter()
        broken = False
        found: Mapping[str, Any]
        try:
            found = {"status": "measured", **action()}
        except Unavailable as error:
            found = {"status": "unavailable", "why": str(error)}
        except Exception as error:
            traceback.print_exc()
            found = {"status": "failed", "why": explain(error)}
            broken = any(words in str(error) for words in _STICKY)
        took_s = time.perf_counter() - began
        row = self.record(name, {**found, "counts": count()}, took_s)
        if broken:
            raise SystemExit(BROKEN)
        if found["status"] == "failed":
            self.device.free()  # what the failed step held, now that nothing refers to it
        return row

    def record(self, name: str, found: Mapping[str, Any], took_s: float = 0.0) -> Row:
        row = {"part": self.name, "name": name, **found, "took_s": round(took_s, 2)}
        return append(self.file, row)


def explain(error: BaseException) -> str:
    """The error, and the last line of our own code that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "-packages" not in frame.filename]
    where = f" ({Path(ours[-1].filename).name}:{ours[-1].lineno})" if ours else ""
    said = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}: {said}{where}"
