"""What a person sees of a running loop: a progress bar in a terminal, plain lines in a file."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Literal

from fsdpkit.training.distributed import Ranks

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Display:
    """Rank 0's view of the run; on other ranks every method does nothing. Use it with `with`.
    `kind` is `training.metrics.progress`: auto shows a bar where stdout is a terminal. What is
    printed meanwhile (`Ranks.say`) appears above the bar."""

    def __init__(
        self,
        ranks: Ranks,
        steps: int,
        *,
        start: int = 0,
        kind: Literal["auto", "bar", "lines"] = "auto",
    ) -> None:
        self._ranks, self._steps = ranks, steps
        self._bar: Bar | None = None
        if ranks.is_first and (kind == "bar" or (kind == "auto" and sys.stdout.isatty())):
            self._bar, self._task = _start_bar(steps, start)

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def step(self, step: int) -> None:
        """`step` steps are done; moves the bar."""
        if self._bar:
            self._bar.update(self._task, completed=step)

    def line(self, fields: dict[str, Any]) -> None:
        """Show a line that `Metrics.log` has returned."""
        if self._bar:
            self._bar.update(self._task, numbers=short(fields))
        else:
            self._ranks.say(text(fields, self._steps))

    def close(self) -> None:
        """Leave the bar as it stands; what is printed now comes below it."""
        if self._bar:
            self._bar.stop()
            self._bar = None


def text(fields: dict[str, Any], steps: int) -> str:
    """A logged line in words, of 80 columns: `step      5/100  loss 5.1234  grad 2.34  …`."""
    parts = [
        f"step {fields['step']:>6}/{steps}",
        f"loss {fields.get('loss', math.nan):.4f}",
        f"grad {fields['grad_norm']:.2f}",
        f"lr {fields['lr']:.2e}",
        f"{fields['tokens_per_s']:,.0f} tokens/s",
        f"{fields['step_time_s']:.3f} s",
    ]
    if "mfu" in fields:
        parts.append(f"MFU {fields['mfu']:.1%}")
    if fields.get("skipped"):
        parts.append(f"{fields['skipped']} skipped")
    return "  ".join(parts)


def short(fields: dict[str, Any]) -> str:
    """What fits beside a bar in 80 columns."""
    mfu = f" {fields['mfu']:.0%}" if "mfu" in fields else ""
    return f"loss {fields.get('loss', math.nan):.3f} {fields['tokens_per_s']:,.0f} tok/s{mfu}"


def _start_bar(steps: int, start: int) -> tuple[Bar, TaskID]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        MofNCompleteColumn(),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(compact=True),
        expand=True,
    )
    task = bar.add_task("training", total=steps, completed=start, numbers="")
    bar.start()
    return bar, task
