"""What shared runs used, and how they ended, by week: from the records that their owners' jobs left
in a centre's folder. Nothing is known, or said, of any other run.

A record is its owner's word. So what it says of versions is held against the signed index, and it
counts once, for the line that it names.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fsdpkit.config.published.centre import open_centre
from fsdpkit.config.published.index import PublishedIndex
from fsdpkit.errors import NotFoundError, storage_errors
from fsdpkit.runs.shared_record import FOLDER, SharedRecord, Used, read_all

WEEK_S = 7 * 86400
_AHEAD_S = 86400
Standing = Literal["published", "withdrawn", "not as published", "not of this centre"]
_Line = tuple[str, str, str, str | None, Standing]
"""Week, kind, name, version, standing."""


@dataclass(frozen=True)
class UsedVersion:
    """One version of a template or profile, in one week."""

    week: str
    """By ISO 8601, such as 2026-W48."""
    kind: str
    name: str
    version: str | None
    standing: Standing
    """How what the run says of it compares with the centre's index as it is now."""
    runs: int
    """Array tasks that started count each."""
    users: int
    done: int
    failed: int
    unknown: int
    """Without an end on record: they wait or run, or were ended from outside."""
    causes: dict[str, int]
    """Of all attempts that were not done, those that were queued again, too; the most first."""


@dataclass
class _Counted:
    users: set[int] = field(default_factory=set)
    ends: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class AuditReport:
    lines: list[UsedVersion]
    left_out: dict[str, int]
    """Records that do not count, by the reason."""


def audit(centre: Path, weeks: int, now_s: float | None = None) -> AuditReport:
    """Of the last weeks, with this one. Raises NotFoundError, StorageError, ConfigError."""
    now_s = time.time() if now_s is None else now_s
    folder = centre / FOLDER
    if not folder.is_dir():
        raise NotFoundError(
            f"{folder} is not there, so no run can tell of itself: mkdir -m 1733 {folder}"
        )
    published = open_centre(centre)
    records, left_out = _records(folder)
    counts: dict[_Line, _Counted] = {}
    oldest = _week_begins(now_s) - (weeks - 1) * WEEK_S
    for owner, record in records:
        if record.submitted_s > now_s + _AHEAD_S:
            left_out["submitted in the future"] += 1
        elif record.submitted_s >= oldest:
            for used in record.used:
                standing = _standing(used, published.index if published else None)
                line = (_week(record.submitted_s), used.kind, used.name, used.version, standing)
                _count(counts.setdefault(line, _Counted()), owner, record)
    ordered = sorted(counts.items(), key=lambda item: [word or "" for word in item[0]])
    return AuditReport([_line(*item) for item in ordered], dict(left_out))


def _line(line: _Line, counted: _Counted) -> UsedVersion:
    return UsedVersion(
        *line,
        runs=counted.ends.total(),
        users=len(counted.users),
        done=counted.ends["done"],
        failed=counted.ends["failed"],
        unknown=counted.ends["unknown"],
        causes=dict(counted.causes.most_common()),
    )


def _records(folder: Path) -> tuple[list[tuple[int, SharedRecord]], Counter[str]]:
    found: dict[tuple[int, str], list[SharedRecord]] = {}
    left_out: Counter[str] = Counter()
    with storage_errors(folder, "read"):
        for owner, record in read_all(folder):
            if isinstance(record, str):
                left_out[record] += 1
            else:
                found.setdefault((owner, record.run), []).append(record)
    records = []
    for (owner, _), ones in found.items():
        tasks = [record for record in ones if record.task is not None]
        # The record of an array is there before any of its tasks has started.
        records += [(owner, record) for record in tasks or ones]
    return records, left_out


def _count(counted: _Counted, owner: int, record: SharedRecord) -> None:
    counted.users.add(owner)
    last = record.ends[-1] if record.ends else None
    if last is None or last.action == "requeue":
        counted.ends["unknown"] += 1
    else:
        counted.ends["done" if last.cause in ("done", "stopped") else "failed"] += 1
    counted.causes.update(end.cause for end in record.ends if end.cause not in ("done", "stopped"))


def _standing(used: Used, index: PublishedIndex | None) -> Standing:
    entry = index.entry(used.kind, used.name) if index else None
    version = entry.versions.get(used.version or "") if entry else None
    if used.sha256 is None or version is None:
        return "not of this centre" if version is None else "not as published"
    if version.sha256 != used.sha256:
        return "not as published"
    return "published" if version.withdrawn is None else "withdrawn"


def _week(at_s: float) -> str:
    year, week, _ = _date(at_s)
    return f"{year}-W{week:02}"


def _date(at_s: float) -> tuple[int, int, int]:
    import datetime

    return datetime.datetime.fromtimestamp(at_s).isocalendar()[:3]


def _week_begins(now_s: float) -> float:
    """Monday's midnight."""
    now = time.localtime(now_s)
    return time.mktime((now.tm_year, now.tm_mon, now.tm_mday - now.tm_wday, 0, 0, 0, 0, 0, -1))
