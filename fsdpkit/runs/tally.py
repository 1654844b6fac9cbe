"""Accounts of many attempts, added up by week, project, name or whatever else they are known by.

Each attempt counts once, however often its run was queued again or resumed, and each task of an
array by its own accounts. The nodes of a hold are granted once: a run on it counts its own hours,
and the hold those of no run that is known. So rows add up to what the scheduler granted.

An account may be anybody's word: one that does not add up is left out (`wrong_in`), and what is
right in itself is believed, for nothing but its own user's lines.
"""

from __future__ import annotations

import datetime
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fsdpkit.runs.account import Account, Measured, Use

START_S = 3600.0
"""An attempt that failed within so long of its beginning, without a step, failed at its start."""
_AHEAD_S = 86400.0
_SLACK, _SLACK_S = 1.02, 5.0
"""Of sums over many intervals, by clocks of many nodes."""
_STEPS: tuple[Use, ...] = ("training", "repeated", "open", "checkpoints")
Waste = Literal["failed_at_start", "after_failures", "idle"]
"""failed_at_start: all that such an attempt was granted; of others, after_failures: steps repeated
or lost, and the time up to a restart; idle: nodes and GPUs that did nothing."""
_WASTES: Mapping[Waste, tuple[Use, ...]] = {
    "after_failures": ("repeated", "lost"),
    "idle": ("idle", "unused"),
}
Unit = Literal["GPU-hours", "node-hours"]
WORDS = (
    *("week", "project", "name", "run", "user"),
    *("partition", "gpu", "fsdpkit", "version", "site"),
)
"""What hours can be counted by; `version` and `site`: of the template and the profile."""
_Key = tuple[tuple[str | None, ...], Unit]


@dataclass(frozen=True, slots=True)
class Spent:
    """One attempt of somebody's run."""

    account: Account
    run: str
    user: int | str
    """Whose it is."""
    task: int | None = None
    """Of an array."""
    words: Mapping[str, str | None] = field(default_factory=dict)
    """What it is counted under: `project`, `name`, …; its `week` and `gpu` are the account's."""
    cause: str | None = None
    """How it ended: `done`, `stopped`, or why it failed; None: it runs, or nobody knows."""
    on: str | None = None
    """The hold, a run of the same user, whose nodes it was on."""
    holds: bool = False
    """Whether it is a hold, which is idle but for the runs on it."""


@dataclass(frozen=True)
class Row:
    """Many attempts. None: not measured, or not known. Shares are from 0 to 1."""

    by: dict[str, str | None]
    """Their words, in the order that was asked for."""
    unit: Unit
    """Of all hours here: node-hours without a GPU. Both are never in one row."""
    hours: float
    """Granted."""
    used: dict[Use, float]
    """Hours by use, the most first; they add up to `hours`."""
    wasted: dict[Waste, float]
    """Hours, each counted for one cause."""
    computing_share: float | None
    """Of `hours`: steps that count. None: no step is on record."""
    busy_share: float | None
    """Of what was sampled: a kernel ran."""
    active_share: float | None
    """The same, weighted by the share of multiprocessors that worked."""
    measured_share: float
    """Of `hours`: what was sampled."""
    gpu_kwh: float | None
    host_kwh: float | None
    asked_hours: float
    """By the time limits of those attempts that are over and had one; they were granted the next
    until they ended."""
    asked_used_hours: float
    attempts: int
    runs: int
    """Each task of an array is one."""
    users: int
    ends: dict[str, int]
    """Attempts by how they ended, as far as that is known; the most first."""
    queued_median_s: float | None
    """How long attempts waited in the queue, as the next; those on a hold do not."""
    queued_most_s: float | None


def week_of(at_s: float) -> str:
    """By ISO 8601 and local time, such as 2026-W48."""
    year, week, _ = datetime.datetime.fromtimestamp(at_s).isocalendar()
    return f"{year}-W{week:02}"


def weeks_since(weeks: int, now_s: float) -> float:
    """When the last weeks, with this one, began: Monday's midnight, Unix time."""
    now = time.localtime(now_s)
    day = now.tm_mday - now.tm_wday - 7 * (weeks - 1)
    return time.mktime((now.tm_year, now.tm_mon, day, 0, 0, 0, 0, 0, -1))


def wrong_in(account: Account, now_s: float) -> str | None:
    """Why an account cannot be believed; None: it adds up."""
    granted_s, measured = account.granted_s, account.measured or Measured()
    if not account.began_s <= account.ended_s <= now_s + _AHEAD_S:
        return "ends before it begins, or in the future"
    used_s = sum(account.used_s.values())
    if max(used_s, granted_s) > _SLACK * min(used_s, granted_s) + _SLACK_S:
        return "uses are not what was granted"
    if measured.gpu_s > _SLACK * granted_s * account.gpus + _SLACK_S:
        return "measured more than was granted"
    busy_s = max(measured.busy_s or 0, measured.active_s or 0)
    return "busy for longer than measured" if busy_s > _SLACK * measured.gpu_s + _SLACK_S else None


def tally(spent: Iterable[Spent], by: Sequence[str]) -> list[Row]:
    """One row for each of the words in `by`, in their order; without words, one for all.

    Attempts that come twice count once, as they came first. Holds need not come first.
    """
    return tallies(spent, [by])[0]


def tallies(spent: Iterable[Spent], bys: Sequence[Sequence[str]]) -> list[list[Row]]:
    """The same several times, by other words each, of what may be too much to be kept."""
    tables: list[defaultdict[_Key, _Sums]] = [defaultdict(_Sums) for _ in bys]

    def add(one: Spent, elsewhere_h: float = 0.0) -> None:
        unit: Unit = "GPU-hours" if one.account.gpus else "node-hours"
        words = {**one.words, "gpu": one.account.gpu, "week": week_of(one.account.began_s)}
        for by, rows in zip(bys, tables, strict=True):
            rows[tuple(map(words.get, by)), unit].add(one, elsewhere_h)

    seen: set[tuple[int | str, str, int | None, int]] = set()
    holds: list[Spent] = []
    guests: defaultdict[tuple[int | str, str], list[Account]] = defaultdict(list)
    for one in spent:
        if (key := (one.user, one.run, one.task, one.account.attempt)) in seen:
            continue
        seen.add(key)
        if one.holds:
            holds.append(one)
            continue
        if one.on is not None:
            guests[one.user, one.on].append(one.account)
        add(one)
    for one in holds:
        held, on_it = one.account, guests[one.user, one.run]
        add(one, sum(a.gpu_hours for a in on_it if held.began_s <= a.began_s < held.ended_s))
    found = [
        [one.row(dict(zip(by, words, strict=True)), unit) for (words, unit), one in rows.items()]
        for by, rows in zip(bys, tables, strict=True)
    ]
    return [
        sorted(rows, key=lambda r: ([*(w or "" for w in r.by.values())], r.unit)) for rows in found
    ]


class _Sums:
    """A row while attempts are added to it."""

    def __init__(self) -> None:
        self.sums: defaultdict[str, float] = defaultdict(float)
        """Hours; seconds and joules that were measured, each with the GPU-seconds it is of."""
        self.used: defaultdict[Use, float] = defaultdict(float)
        self.wasted: defaultdict[Waste, float] = defaultdict(float)
        self.ends: Counter[str] = Counter()
        self.runs: Counter[tuple[int | str, str, int | None]] = Counter()
        self.queued_s: list[float] = []

    def add(self, one: Spent, elsewhere_h: float) -> None:
        """An attempt, without the hours of a hold that are counted with the runs on it."""
        account = one.account
        to_hours = account.gpu_hours / (sum(account.used_s.values()) or 1.0)
        self.runs[one.user, one.run, one.task] += 1
        self.ends.update([one.cause] if one.cause else ())
        for use, seconds in account.used_s.items():
            self.used[use] += max(0.0, seconds * to_hours - elsewhere_h * (use == "idle"))
        for waste, seconds in _wasted_s(one):
            self.wasted[waste] += max(0.0, seconds * to_hours - elsewhere_h)
        if account.measured is not None and not elsewhere_h:
            for name in ("gpu_s", "busy_s", "active_s", "energy_j", "host_energy_j"):
                if (value := getattr(account.measured, name)) is not None:
                    self.sums[name] += value
                    self.sums[f"of {name}"] += account.measured.gpu_s
        if one.on is not None:
            return  # the hold asked, and waited, for it
        self.queued_s += [] if account.queued_s is None else [account.queued_s]
        if one.cause is not None and account.asked_s is not None:
            self.sums["asked"] += account.asked_s * account.nodes * max(1, account.gpus) / 3600
            self.sums["asked_used"] += account.gpu_hours

    def row(self, by: dict[str, str | None], unit: Unit) -> Row:
        sums, used, hours = self.sums, self.used, sum(self.used.values())
        unlogged = not used["training"] and used["unknown"] + used["unused"] > 0

        def of(part: float, whole: float) -> float | None:
            return min(1.0, part / whole) if whole > 0 else None

        return Row(
            by=by,
            unit=unit,
            hours=hours,
            used=_most_first(used),
            wasted=_most_first(self.wasted),
            computing_share=None if unlogged else of(used["training"], hours),
            busy_share=of(sums["busy_s"], sums["of busy_s"]),
            active_share=of(sums["active_s"], sums["of active_s"]),
            measured_share=of(sums["gpu_s"], hours * 3600) or 0.0,
            gpu_kwh=sums["energy_j"] / 3.6e6 if "energy_j" in sums else None,
            host_kwh=sums["host_energy_j"] / 3.6e6 if "host_energy_j" in sums else None,
            asked_hours=sums["asked"],
            asked_used_hours=sums["asked_used"],
            attempts=self.runs.total(),
            runs=len(self.runs),
            users=len({user for user, _, _ in self.runs}),
            ends=_most_first(self.ends),
            queued_median_s=statistics.median(self.queued_s) if self.queued_s else None,
            queued_most_s=max(self.queued_s, default=None),
        )


def _most_first(amounts: Mapping[Any, Any]) -> dict[Any, Any]:
    return dict(sorted(filter(lambda one: one[1], amounts.items()), key=lambda one: -one[1]))


def _wasted_s(one: Spent) -> Iterable[tuple[Waste, float]]:
    """Node-seconds, each with what they were lost to."""
    used_s, lasted_s = one.account.used_s, one.account.ended_s - one.account.began_s
    failed = one.cause not in (None, "done", "stopped")
    if failed and lasted_s <= START_S and not any(used_s.get(use) for use in _STEPS):
        return [("failed_at_start", sum(used_s.values()))]
    return [(waste, sum(used_s.get(use, 0.0) for use in _WASTES[waste])) for waste in _WASTES]
