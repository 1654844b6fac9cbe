"""What some attempts together used, in numbers and words: for the log, mails, `status`, reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from fsdpkit.runs.account import USES, Account, Use
from fsdpkit.runs.tally import Row, Spent, tally

_TOLD = 4
"""Uses in a sentence, the largest."""
COUNTS: tuple[Use, ...] = ("training", "loading", "waiting")
"""Of steps that count."""


class UsedHours(NamedTuple):
    """Hours of one use. `share` is that of all that was granted, 0 to 1."""

    use: Use
    name: str
    formula: str
    hours: float
    share: float


def parts_of(row: Row) -> list[UsedHours]:
    """They add up to what was granted; those that are nothing are left out."""
    return [
        UsedHours(use, *USES[use], row.used[use], row.used[use] / row.hours)
        for use in USES
        if row.used.get(use)
    ]


@dataclass(frozen=True)
class Uses:
    """Of one or more accounts together, such as all of a run, but for a hold's."""

    accounts: Sequence[Account]

    @cached_property
    def row(self) -> Row:
        spent = (Spent(one, str(place), "") for place, one in enumerate(self.accounts))
        return tally(spent, ())[0]

    @property
    def granted_h(self) -> float:
        """GPU-hours, or node-hours on a machine without."""
        return self.row.hours

    @property
    def parts(self) -> list[UsedHours]:
        return parts_of(self.row)

    def share(self, *uses: Use) -> float | None:
        """Of what was granted, 0 to 1; None: nothing was granted yet, or no program logged steps,
        so that it is not known."""
        parts = {part.use: part.share for part in self.parts}
        if not parts or ("training" not in parts and parts.keys() & {"unknown", "unused"}):
            return None
        return sum(parts.get(use, 0.0) for use in uses)

    @property
    def shown_unit(self) -> str:
        """Of a run that had no hour, minutes."""
        unit = self.row.unit
        return unit.replace("hours", "minutes") if self.granted_h < 0.5 else unit

    def shown(self, hours: float) -> str:
        """In that unit."""
        value = hours * 60 if self.granted_h < 0.5 else hours
        return f"{value:,.{0 if value >= 1000 else 1 if value >= 10 else 2}f}"

    @property
    def kwh(self) -> float | None:
        """Of the GPUs, and of processors and memory where that is known."""
        return sum(one or 0.0 for one in (self.row.gpu_kwh, self.row.host_kwh)) or None

    @property
    def words(self) -> str:
        """`used 32.0 of 48.0 GPU-hours: computing 61%, …; GPUs busy 70%, 1.9 kWh`."""
        one = self.accounts[0] if len(self.accounts) == 1 else None
        asked_h = (one.asked_s or 0.0) * one.nodes * max(1, one.gpus) / 3600 if one else 0.0
        of = f" of {self.shown(max(asked_h, self.granted_h))}" if asked_h else ""
        largest = sorted(self.parts, key=lambda part: -part.share)[:_TOLD]
        parts = ", ".join(f"{part.name} {part.share:.0%}" for part in largest if part.share > 0.005)
        busy = self.row.busy_share
        mfu = next((one.mfu for one in reversed(self.accounts) if one.mfu), None)
        told = [] if busy is None else [f"GPUs busy {busy:.0%}"]
        told += [f"MFU {mfu:.0%}"] if mfu else []
        told += [f"{self.kwh:.2g} kWh"] if self.kwh else []
        beside = f"; {', '.join(told)}" if told else ""
        return f"used {self.shown(self.granted_h)}{of} {self.shown_unit}: {parts}{beside}"
