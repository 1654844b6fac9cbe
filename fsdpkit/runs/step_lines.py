"""The steps that a training logged, as an account needs them: when, how long, what of it counts.

A file of a gigabyte is read line by line, and kept as plain columns: no numpy, for the batch shell
reads it, too, in the job's last seconds. Numbers that no step can have are none.
"""

from __future__ import annotations

import contextlib
import math
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fsdpkit.bounded import METRICS_BYTES, lines_in, open_regular
from fsdpkit.runs.reading import parsed

Step = Annotated[float, Meta(ge=0, le=2**53)]
Line = TypeVar("Line", bound=msgspec.Struct)
_LONGEST_S = 1e9
_MAY_HOLD_NO_NUMBER = re.compile(rb"\bNaN\b|\bInfinity\b|[eE]\+?\d{3}")
"""Words that Python's json writes and JSON does not know, and numbers that no float holds."""


def typed_lines(path: Path, kind: type[Line], newest: int | None = None) -> Iterator[Line]:
    """The well-formed lines among the `newest` bytes of a file; none where it cannot be read."""
    decode = msgspec.json.Decoder(kind).decode
    try:
        with open_regular(path) as file:
            for line in lines_in(file, newest or METRICS_BYTES):
                try:
                    yield decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    if _MAY_HOLD_NO_NUMBER.search(line):
                        with contextlib.suppress(ValueError):  # msgspec's errors are ValueErrors
                            yield msgspec.convert(parsed(line), kind)
    except OSError:
        return


class _Logged(msgspec.Struct, gc=False):
    """What of a line of metrics.jsonl matters here."""

    time_s: Annotated[float, Meta(ge=0, le=1e11)]
    step: Step
    eval_loss: float | UnsetType | None = UNSET
    step_time_s: float | None = None
    loading_s: float | None = None
    tflops_per_device: float | None = None
    mfu: float | None = None
    checkpoint_bytes: float | None = None
    checkpoint_blocked_s: float | None = None
    checkpoint_written_s: float | None = None
    rank_compute_s: list[float] | None = None


def between(value: float | None, most: float) -> float:
    """0 for a number that is none, negative or too large."""
    return value if value is not None and 0 <= value <= most else 0.0


class StepLines:
    """Columns of the steps, by time, and the checkpoints in the file's order."""

    def __init__(self, lines: Iterable[_Logged] = ()) -> None:
        self.time_s, self.step, self.step_time_s = array("d"), array("d"), array("d")
        self.loading_s = array("d")
        """Rank 0 waited for data, since the line before; -1: not measured."""
        self.waiting_s = array("d")
        """A step's, of the ranks' mean: until the slowest has computed."""
        self.tflops, self.mfu = array("d"), array("d")
        self.saves: list[tuple[float, float, float]] = []
        """Step, when, and for how long it stopped training."""
        self.unsaved_after = math.inf
        """Steps after it are lost, unless they were done again."""
        for line in lines:
            if line.eval_loss is not UNSET:
                continue
            if line.checkpoint_written_s is not None or line.checkpoint_bytes is not None:
                blocked_s = between(line.checkpoint_blocked_s, _LONGEST_S)
                self.saves.append((line.step, line.time_s, blocked_s))
            else:
                self._add(line)
        self.again = self._done_again()
        self._by_time()
        apart = [later - one for one, later in pairwise(self.step) if later > one]
        self.steps_a_line = median_low(apart) if apart else math.inf

    def _add(self, line: _Logged) -> None:
        count = line.step - self.step[-1] if self.step and line.step > self.step[-1] else 1.0
        self.time_s.append(line.time_s)
        self.step.append(line.step)
        self.step_time_s.append(between(line.step_time_s, _LONGEST_S))
        known = line.loading_s is not None
        self.loading_s.append(between(line.loading_s, _LONGEST_S) if known else -1.0)
        self.tflops.append(between(line.tflops_per_device, 1e18))
        self.mfu.append(between(line.mfu, 10.0))
        self.waiting_s.append(-1.0)
        if (ranks := line.rank_compute_s) and all(0 <= one <= _LONGEST_S for one in ranks):
            # It stands for the steps since the ranks were compared before, too.
            waited_s = (max(ranks) - sum(ranks) / len(ranks)) / count
            place = len(self.waiting_s) - 1
            while place >= 0 and self.waiting_s[place] < 0:
                self.waiting_s[place] = max(0.0, waited_s)
                place -= 1

    def _done_again(self) -> array[float]:
        """For each whether the step was done again later."""
        again, lowest = array("d", self.step), math.inf
        for place in range(len(self.step) - 1, -1, -1):
            again[place] = self.step[place] >= lowest
            lowest = min(lowest, self.step[place])
        return again

    def _by_time(self) -> None:
        if all(one <= later for one, later in pairwise(self.time_s)):
            return
        order = sorted(range(len(self.time_s)), key=self.time_s.__getitem__)
        for column in vars(self).values():
            if isinstance(column, array):
                column[:] = array("d", [column[place] for place in order])

    def between(self, begin_s: float, end_s: float) -> range:
        """Places of the lines in an interval, its end included."""
        return range(bisect_right(self.time_s, begin_s), bisect_right(self.time_s, end_s))

    def lost(self, place: int) -> bool:
        return self.step[place] > self.unsaved_after and not self.again[place]

    def steps_of_first(self, place: int, began_s: float) -> float:
        """Steps that the first line of a launch stands for: since the checkpoint it began from."""
        step = self.step[place]
        known = (saved for saved, at_s, _ in self.saves if at_s <= began_s and saved < step)
        # The checkpoint may be another run's.
        return min(step - max(known, default=0.0), self.steps_a_line)

    def blocked_between_s(self, begin_s: float, end_s: float) -> float:
        return sum(blocked_s for _, at_s, blocked_s in self.saves if begin_s < at_s <= end_s)

    def saved_step(
        self, newest: float | None, told: Iterable[int], began_s: Iterable[float]
    ) -> float:
        """The last logged step whose work is saved, by any writer: by the checkpoints that are
        known, by what a script that stopped as asked has said, and by where a later launch went
        on.

        newest: of the checkpoints on disk; began_s: of all launches."""
        saved = max([newest or 0.0, *(one for one, _, _ in self.saves)])
        if not self.step:
            return saved
        saved = max([saved, *(float(one) for one in told if one <= self.step[-1])])
        firsts = (bisect_left(self.time_s, one) for one in sorted(began_s))
        later = [place for place in firsts if 0 < place < len(self.step)]
        return max(saved, self.step[later[-1]] - 1) if later else saved


def step_lines(path: Path) -> StepLines:
    """Of a metrics.jsonl; a missing or unreadable file has none."""
    return StepLines(typed_lines(path, _Logged))
