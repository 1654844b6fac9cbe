"""One part of the measurement under way: a process of its own, which appends rows to a file."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts.device import Device
from benchmarks.gpu_parts.rows import Row, append, read
from fsdpkit.training.distributed import Ranks

__all__ = ["Part", "Row"]


@dataclass(frozen=True)
class Part:
    """`call` is the number of this call of gpu.py in `file`, `deadline` a time of `time.time()`;
    `dry` asks for tiny sizes, and `card` is the GPU's name for `fsdpkit plan`."""

    name: str
    file: Path
    call: int
    deadline: float
    dry: bool
    card: str
    scratch: Path
    ranks: Ranks
    device: Device

    @property
    def left_s(self) -> float:
        return self.deadline - time.time()

    def known(self, part: str) -> list[Row]:
        """What the file has of another part, in all calls."""
        return [r for r in read(self.file) if r["part"] == part and r["status"] == "measured"]

    def measure(
        self,
        name: str,
        action: Callable[[], Mapping[str, Any]],
        *,
        needs_s: float = 0.0,
        lacks: str | None = None,
    ) -> Row:
        """The row `name` with what `action` finds, or with why there is nothing (`why`).

        With less time left than `needs_s` it is not begun. `lacks` says what is missing, if
        anything.
        """
        if lacks:
            return self.record(name, "skipped", {"why": lacks})
        if self.left_s < (0.0 if self.dry else needs_s):
            why = f"{max(0.0, self.left_s):.0f} s left, takes {needs_s:.0f} s"
            return self.record(name, "skipped", {"why": why})
        print(f"begin {name}", flush=True)
        began = time.perf_counter()
        try:
            found, status = action(), "measured"
        except Exception as error:
            traceback.print_exc()
            found, status = {"why": explain(error)}, "failed"
        row = self.record(name, status, {**found, "took_s": time.perf_counter() - began})
        self.device.free()  # what the step held, now that nothing refers to it
        return row

    def record(self, name: str, status: str, found: Mapping[str, Any]) -> Row:
        row = {"call": self.call, "part": self.name, "name": name, "status": status, **found}
        return append(self.file, row)


def explain(error: BaseException) -> str:
    """The error, and the last line of our own code that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "-packages" not in frame.filename]
    where = f" ({Path(ours[-1].filename).name}:{ours[-1].lineno})" if ours else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}{where}"
