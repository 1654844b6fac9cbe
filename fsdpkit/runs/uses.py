"""What some attempts together used, in numbers and words: for the log, mails, `status`, reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fsdpkit.runs.account import USES, Account, Measured, Use

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
    """Of accounts together, such as all of a run."""

    accounts: Sequence[Account]

    @property
    def granted_h(self) -> float:
        """GPU-hours, or node-hours on a machine without."""
        return sum(one.gpu_hours for one in self.accounts)

    @property
    def parts(self) -> list[UsedHours]:
        """They add up to what was granted; those that are nothing are left out."""
        hours = {use: sum(one.hours(use) for one in self.accounts) for use in USES}
        return [UsedHours(use, h, h / self.granted_h) for use, h in hours.items() if h > 0]

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
        unit = "GPU" if any(one.gpus for one in self.accounts) else "node"
        return f"{unit}-minutes" if self._in_minutes else f"{unit}-hours"

    @property
    def _in_minutes(self) -> bool:
        return self.granted_h < 0.5

    def shown(self, hours: float) -> str:
        """In that unit."""
        value = hours * 60 if self._in_minutes else hours
        return f"{value:,.{0 if value >= 1000 else 1 if value >= 10 else 2}f}"

    def measured(
        self, value: Callable[[Measured], float | None], of: Callable[[Measured], float | None]
    ) -> float | None:
        """The share that one sum has of another, in the accounts that have both, 0 to 1."""
        both = [(value(one.measured), of(one.measured)) for one in self.accounts if one.measured]
        known = [(part, whole) for part, whole in both if part is not None and whole]
        whole = sum(one for _, one in known)
        return min(1.0, sum(part for part, _ in known) / whole) if whole else None

    @property
    def busy_share(self) -> float | None:
        return self.measured(lambda one: one.busy_s, lambda one: one.gpu_s)

    @property
    def active_share(self) -> float | None:
        return self.measured(lambda one: one.active_s, lambda one: one.gpu_s)

    @property
    def kwh(self) -> float | None:
        """Of the GPUs, and of processors and memory where that is known, on the nodes that were
        measured."""
        told = [
            value
            for one in self.accounts
            if one.measured
            for value in (one.measured.energy_j, one.measured.host_energy_j)
            if value is not None
        ]
        return sum(told) / 3.6e6 if told else None

    def mean(self, value: Callable[[Account], float | None]) -> float | None:
        """Of what accounts say of their steps that count, by those steps' time."""
        known = [
            (number, sum(one.hours(use) for use in COUNTS))
            for one in self.accounts
            if (number := value(one)) is not None
        ]
        hours = sum(weight for _, weight in known)
        return sum(number * weight for number, weight in known) / hours if hours else None

    @property
    def words(self) -> str:
        """`used 32.0 of 48.0 GPU-hours: computing 61%, loading data 20%, …; 1.9 kWh`."""
        asked = [one.asked_s for one in self.accounts[-1:] if one.asked_s]
        last = self.accounts[-1]
        of = ""
        if len(self.accounts) == 1 and asked:
            asked_h = max(asked[0] * last.nodes * max(1, last.gpus) / 3600, self.granted_h)
            of = f" of {self.shown(asked_h)}"
        largest = sorted(self.parts, key=lambda part: -part.share)[:_TOLD]
        parts = ", ".join(f"{part.name} {part.share:.0%}" for part in largest if part.share > 0.005)
        energy = f"; {kwh:.2g} kWh" if (kwh := self.kwh) else ""
        return f"used {self.shown(self.granted_h)}{of} {self.shown_unit}: {parts}{energy}"
