"""What runs used and how they ended, as their owners' jobs recorded it in a centre's folder.
Nothing is known, or said, of any other run.

A record is its owner's word. So what it says of versions is held against the signed index, an
account that does not add up is left out, and what is said of causes and nodes comes with how many
users say so.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from fsdpkit.config.published.centre import open_centre
from fsdpkit.config.published.index import PublishedIndex
from fsdpkit.errors import NotFoundError, storage_errors
from fsdpkit.runs.shared_record import FOLDER, SharedRecord, Used, read_all, spent_of
from fsdpkit.runs.tally import Spent, weeks_since

WELL = ("done", "stopped")
_AHEAD_S = 86400
_LEAST_USERS, _DEVIATIONS = 5, 2.0
"""A cause grows if in the second half of the period it met so many users, and by so many standard
deviations more than the first half would make one expect of as many users."""
_LEAST_FAILURES = 2
_MOST_LISTED = 20


@dataclass(frozen=True)
class GrowingCause:
    """Users of whom it ended an attempt in each half of the period: no single user makes it grow,
    whatever the number of runs."""

    cause: str
    before: int
    now: int
    of_before: int
    """Users of whom any attempt ended."""
    of_now: int


@dataclass(frozen=True)
class FailingNode:
    """A node that ended attempts, as their owners' records have it."""

    node: str
    failures: int
    users: int
    causes: dict[str, int]
    last_s: float
    away: str | None = None
    """Slurm's state and reason, where it is drained or down now."""


class Failed(NamedTuple):
    """How an attempt ended, and whose."""

    user: int
    cause: str
    at_s: float
    nodes: tuple[str, ...]


@dataclass
class RunAudit:
    """Of a period, Unix time."""

    since_s: float
    until_s: float
    spent: list[Spent] = field(default_factory=list)
    """An attempt each, that began then."""
    failures: list[Failed] = field(default_factory=list)
    """How attempts ended then that were not done."""
    active: set[tuple[int, bool]] = field(default_factory=set)
    """Users of whom an attempt ended in the first half, and in the second (True)."""
    runs: int = 0
    """That were submitted then, or of which an attempt ended; array tasks count each."""
    users: set[int] = field(default_factory=set)
    without_end: int = 0
    """Of `runs`: they wait or run, or their owners have not looked since Slurm ended them."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Records and accounts that do not count, by the reason."""

    def has(self, at_s: float) -> bool:
        """Whether that is in the period."""
        return self.since_s <= at_s < self.until_s

    def is_late(self, at_s: float) -> bool:
        """Whether it is in the second half."""
        return at_s > (self.since_s + self.until_s) / 2

    @property
    def growing(self) -> list[GrowingCause]:
        """The most first."""
        met: dict[tuple[str, bool], set[int]] = defaultdict(set)
        for one in self.failures:
            met[one.cause, self.is_late(one.at_s)].add(one.user)
        early, late = (sum(half is it for _, half in self.active) for it in (False, True))
        found = []
        for cause in {cause for cause, _ in met} if early else ():
            before, now = len(met[cause, False]), len(met[cause, True])
            expected = before * late / early
            if now >= _LEAST_USERS and now - expected > _DEVIATIONS * math.sqrt(now + expected):
                found.append(GrowingCause(cause, before, now, early, late))
        return sorted(found, key=lambda one: (-one.now, one.cause))

    def nodes(self, away: Mapping[str, str]) -> list[FailingNode]:
        """Those that failed more than once, the ones that most users met first. away: what Slurm
        says of nodes that are drained or down."""
        found: dict[str, list[Failed]] = defaultdict(list)
        for one in self.failures:
            for node in dict.fromkeys(one.nodes):
                found[node].append(one)
        nodes = [
            FailingNode(
                node,
                failures=len(each),
                users=len({one.user for one in each}),
                causes=dict(Counter(one.cause for one in each).most_common()),
                last_s=max(one.at_s for one in each),
                away=away.get(node) or away.get(node.partition(".")[0]),
            )
            for node, each in found.items()
            if len(each) >= _LEAST_FAILURES
        ]
        return sorted(nodes, key=lambda one: (-one.users, -one.failures, one.node))[:_MOST_LISTED]


def audit(centre: Path, weeks: int, now_s: float | None = None) -> RunAudit:
    """Of the last weeks, with this one. Raises NotFoundError, StorageError, ConfigError."""
    now_s = time.time() if now_s is None else now_s
    found = RunAudit(weeks_since(weeks, now_s), now_s)
    folder = centre / FOLDER
    if not folder.is_dir():
        raise NotFoundError(
            f"{folder} is not there, so no run can tell of itself: mkdir -m 1733 {folder}"
        )
    published = open_centre(centre)
    index = published.index if published else None
    waiting: dict[tuple[int, str], SharedRecord] = {}
    tasks: set[tuple[int, str]] = set()
    with storage_errors(folder, "read"):
        for owner, record in read_all(folder, found.since_s):
            if isinstance(record, str):
                found.left_out[record] += 1
            elif record.submitted_s > now_s + _AHEAD_S:
                found.left_out["submitted in the future"] += 1
            elif record.tasks is not None:  # an array, of which perhaps no task has ended yet
                waiting[owner, record.run] = record
            else:
                tasks.add((owner, record.run))
                _add(found, owner, record, index, now_s)
    for (owner, run), record in waiting.items():
        if (owner, run) not in tasks:
            _add(found, owner, record, index, now_s)
    return found


def _add(
    found: RunAudit, owner: int, record: SharedRecord, index: PublishedIndex | None, now_s: float
) -> None:
    ends = [end for end in record.ends if found.has(end.at_s)]
    if not ends and not found.has(record.submitted_s):
        return
    found.runs += 1
    found.users.add(owner)
    found.without_end += not record.ends or record.ends[-1].action == "requeue"
    found.active |= {(owner, found.is_late(end.at_s)) for end in ends}
    found.failures += [
        Failed(owner, end.cause, end.at_s, (*end.nodes,)) for end in ends if end.cause not in WELL
    ]
    words = {{"template": "version"}.get(u.kind, u.kind): _version(u, index) for u in record.used}
    for one in spent_of(owner, record, now_s):
        if isinstance(one, str):
            found.left_out[one] += 1
        elif found.has(one.account.began_s):
            found.spent.append(replace(one, words={**one.words, **words}))


def _version(used: Used, index: PublishedIndex | None) -> str:
    """With how what the run says of it compares with the centre's index as it is now."""
    text = " ".join(filter(None, (used.name, used.version)))
    if index is None:
        return text
    entry = index.entry(used.kind, used.name)
    version = entry.versions.get(used.version or "") if entry else None
    if version is None:
        return f"{text}, not of this centre"
    if version.sha256 != used.sha256:
        return f"{text}, not as published"
    return text if version.withdrawn is None else f"{text}, withdrawn"


def attempts(found: RunAudit) -> Iterator[dict[str, object]]:
    """Each attempt as one flat table of plain values, for other programs. Left out: what is not
    known, for it is not nothing."""
    for one in found.spent:
        account = msgspec.to_builtins(one.account)
        del account["schema"]
        used_s, measured = account.pop("used_s"), account.pop("measured") or {}
        line = {"comment": f"fsdpkit:{one.run}", "run": one.run, "task": one.task, "uid": one.user}
        line |= {**one.words, "cause": one.cause, **account, **measured}
        line["gpus_per_node"], line["nodes"] = line.pop("gpus"), account["nodes"]
        line |= {f"used_{use}_s": seconds for use, seconds in used_s.items()}
        yield {name: value for name, value in line.items() if value is not None}
