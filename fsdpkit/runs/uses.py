"""What some attempts together used, in numbers and words: for the log, mails, `status`, reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fsdpkit.runs.account import USES, Account, Use
from fsdpkit.runs.tally import Row, Spent, tally

_TOLD = 4
"""Uses in a sentence, the largest."""
COUNTS: tuple[Use, ...] = ("training", "loading", "waiting")
"""Of steps that count."""


@dataclass(frozen=True)
class UsedHours:
    """Hours of one use. `share` is that of all that was granted, 0 to 1."""

    use: Use
    hours: float
    share: float

    @property
    def name(self) -> str:
        return USES[self.use][0]

    @property
    def formula(self) -> str:
        return USES[self.use][1]


@dataclass(frozen=True)
class Uses:
    """Of accounts together, such as all of a run, but for a hold's."""

    accounts: Sequence[Account]

    @cached_property
    def row(self) -> Row | None:
        """None: without an account."""
        spent = (Spent(one, str(place), "") for place, one in enumerate(self.accounts))
        return next(iter(tally(spent, ())), None)

    @property
    def granted_h(self) -> float:
        """GPU-hours, or node-hours on a machine without."""
        return self.row.hours if self.row else 0.0

    @property
    def parts(self) -> list[UsedHours]:
        """They add up to what was granted; those that are nothing are left out."""
        hours = self.row.used if self.row else {}
        return [UsedHours(u, hours[u], hours[u] / self.granted_h) for u in USES if hours.get(u)]

    def share(self, *uses: Use) -> float | None:
        """Of what was granted, 0 to 1; None: nothing was granted yet, or no program logged steps,
        so that it is not known."""
        parts = {part.use: part.share for part in self.parts}
        if not parts or (parts.keys() & {"unknown", "unused"} and not parts.keys() & {*COUNTS}):
            return None
        return sum(parts.get(use, 0.0) for use in uses)

    @property
    def shown_unit(self) -> str:
        """Of a run that had no hour, minutes."""
        unit = self.row.unit if self.row else "GPU-hours"
        return unit.replace("hours", "minutes") if self.granted_h < 0.5 else unit

    def shown(self, hours: float) -> str:
        """In that unit."""
        value = hours * 60 if self.granted_h < 0.5 else hours
        return f"{value:,.{0 if value >= 1000 else 1 if value >= 10 else 2}f}"

    @property
    def kwh(self) -> float | None:
        """Of the GPUs, and of processors and memory where that is known."""
        told = [one for one in (self.row.gpu_kwh, self.row.host_kwh) if one] if self.row else []
        return sum(told) or None

    @property
    def words(self) -> str:
        """`used 32.0 of 48.0 GPU-hours: computing 61%, loading data 20%, …; 1.9 kWh`."""
        one = self.accounts[0] if len(self.accounts) == 1 else None
        asked_h = (one.asked_s or 0.0) * one.nodes * max(1, one.gpus) / 3600 if one else 0.0
        of = f" of {self.shown(max(asked_h, self.granted_h))}" if asked_h else ""
        largest = sorted(self.parts, key=lambda part: -part.share)[:_TOLD]
        parts = ", ".join(f"{part.name} {part.share:.0%}" for part in largest if part.share > 0.005)
        energy = f"; {kwh:.2g} kWh" if (kwh := self.kwh) else ""
        return f"used {self.shown(self.granted_h)}{of} {self.shown_unit}: {parts}{energy}"
