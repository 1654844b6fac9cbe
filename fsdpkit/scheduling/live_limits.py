"""What Slurm's accounting allows this user: QOS and associations, as records.

Reading only. All of it is sacctmgr's text; a limit that is empty there is none, and one that could
not be read is none either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fsdpkit.config.units import parse_time_s

Counted = Mapping[str, int]
"""By Slurm's names of what it counts: node, gres/gpu, …"""


@dataclass(frozen=True, kw_only=True)
class LiveLimits:
    """What a QOS or an association limits. None, and what is not in a mapping: without a limit."""

    max_time_s: int | None = None
    per_job: Counted = field(default_factory=dict)
    per_node: Counted = field(default_factory=dict)
    in_all: Counted = field(default_factory=dict)
    """Of all its jobs together."""
    job_minutes: Counted = field(default_factory=dict)
    """Of one job: how many of them, times its minutes."""
    jobs: Counted = field(default_factory=dict)
    """How many, by sacctmgr's name of the limit: MaxJobs and MaxSubmit are of one person, or of the
    association."""


@dataclass(frozen=True, kw_only=True)
class LiveQos(LiveLimits):
    """The limits of a QOS."""

    name: str
    per_user: Counted = field(default_factory=dict)
    per_account: Counted = field(default_factory=dict)
    least: Counted = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    """As in sacctmgr(1), in lower case; an administrator's."""


@dataclass(frozen=True, kw_only=True)
class LiveAssociation(LiveLimits):
    """What an account may use, and which user of it; of the account itself, user is empty."""

    account: str
    user: str = ""
    partition: str = ""
    parent: str = ""
    qos: tuple[str, ...] = ()
    default_qos: str = ""
    """Of a job that names none: `normal` where the association does not say."""


QOS_FORMAT = (
    "Name,MaxWall,MaxTRES,MaxTRESPU,MaxTRESPA,MinTRES,MaxTRESPerNode,GrpTRES,MaxTRESMins,"
    "MaxJobsPU,MaxSubmitPU,MaxJobsPA,MaxSubmitPA,GrpJobs,GrpSubmit,Flags"
)
ASSOC_FORMAT = (
    "Account,User,Partition,ParentName,QOS,DefaultQOS,MaxWall,MaxTRES,MaxTRESPerNode,GrpTRES,"
    "MaxTRESMins,MaxJobs,MaxSubmit,GrpJobs,GrpSubmit"
)


def parse_qos(lines: Iterable[str]) -> dict[str, LiveQos]:
    """Output of `sacctmgr -nP show qos format=` QOS_FORMAT."""
    return {
        row["Name"]: LiveQos(
            name=row["Name"],
            per_user=_tres(row["MaxTRESPU"]),
            per_account=_tres(row["MaxTRESPA"]),
            least=_tres(row["MinTRES"]),
            flags=tuple(row["Flags"].lower().split(",")),
            **_limits(row),
        )
        for row in _rows(lines, QOS_FORMAT)
    }


def parse_associations(lines: Iterable[str]) -> list[LiveAssociation]:
    """Output of `sacctmgr -nP show assoc format=` ASSOC_FORMAT."""
    return [
        LiveAssociation(
            account=row["Account"],
            user=row["User"],
            partition=row["Partition"],
            parent=row["ParentName"],
            qos=tuple(filter(None, row["QOS"].split(","))),
            default_qos=row["DefaultQOS"]
            or ("normal" if "normal" in row["QOS"].split(",") else ""),
            **_limits(row),
        )
        for row in _rows(lines, ASSOC_FORMAT)
    ]


def _limits(row: Mapping[str, str]) -> dict[str, Any]:
    """Those that a QOS and an association have alike."""
    of_jobs = {n.removesuffix("PU"): t for n, t in row.items() if re.match("...(Jobs|Submit)", n)}
    return {
        "max_time_s": time_s(row["MaxWall"]),
        "per_job": _tres(row["MaxTRES"]),
        "per_node": _tres(row["MaxTRESPerNode"]),
        "in_all": _tres(row["GrpTRES"]),
        "job_minutes": _tres(row["MaxTRESMins"]),
        "jobs": _counted(of_jobs.items()),
    }


def _rows(lines: Iterable[str], form: str) -> Iterator[dict[str, str]]:
    columns = form.split(",")
    for line in lines:
        cells = line.split("|")
        if len(cells) == len(columns):
            yield dict(zip(columns, cells, strict=True))


def _tres(text: str) -> dict[str, int]:
    return _counted(one.partition("=")[::2] for one in text.split(","))


def _counted(pairs: Iterable[tuple[str, str]]) -> dict[str, int]:
    amounts = {name: _amount(text) for name, text in pairs}
    return {name: amount for name, amount in amounts.items() if amount is not None}


def _amount(text: str) -> int | None:
    """A number, of memory with its unit in megabytes; 0 is a limit."""
    match = re.fullmatch(r"(\d{1,12})(?:\.\d+)?([MGT]?)", text, re.ASCII)
    return (
        None if match is None else int(match[1]) * {"": 1, "M": 1, "G": 2**10, "T": 2**20}[match[2]]
    )


def count(text: str | None) -> int | None:
    """A number above none; UNLIMITED, N/A and what is no number are no limit."""
    if text is None or not re.fullmatch(r"\d{1,12}", text, re.ASCII):
        return None
    return int(text) or None


def time_s(text: str | None) -> int | None:
    """UNLIMITED, NONE and more than a year are no limit."""
    try:
        return parse_time_s(text) if text and ":" in text else None
    except ValueError:
        return None
