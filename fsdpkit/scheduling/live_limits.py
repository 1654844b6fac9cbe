"""What Slurm's accounting allows this user: QOS and associations, as records.

Reading only. All of it is sacctmgr's text; a limit that is empty there is none, and one that could
not be read is none either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fsdpkit.config.units import parse_time_s

JOBS = (
    *("MaxJobs", "MaxSubmit", "MaxJobsPU", "MaxSubmitPU", "MaxJobsPA", "MaxSubmitPA"),
    *("GrpJobs", "GrpSubmit"),
)
"""Columns of sacctmgr that limit how many jobs there may be."""


@dataclass(frozen=True, kw_only=True)
class LiveLimits:
    """What a QOS or an association limits."""

    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By sacctmgr's column; of each by Slurm's names of what it counts (node, gres/gpu, …)."""

    def of(self, column: str) -> Mapping[str, int]:
        """Amounts; empty without a limit. Jobs, and seconds of MaxWall, have no name."""
        return self.limits.get(column, {})

    @property
    def allows_jobs(self) -> bool:
        """False: it limits the number of jobs to none."""
        return not any(0 in self.of(column).values() for column in JOBS)

    @property
    def max_time_s(self) -> int | None:
        return self.of("MaxWall").get("")


@dataclass(frozen=True, kw_only=True)
class LiveQos(LiveLimits):
    """One QOS."""

    name: str
    flags: tuple[str, ...] = ()
    """As in sacctmgr(1), in lower case."""


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
    "MaxJobsPU,MaxSubmitPU,MaxJobsPA,MaxSubmitPA,GrpJobs,GrpSubmit,Flags,"
    "GrpTRESMins,GrpTRESRunMins,MaxTRESRunMinsPU,MaxTRESRunMinsPA"
)
ASSOC_FORMAT = (
    "Account,User,Partition,ParentName,QOS,DefaultQOS,MaxWall,MaxTRES,MaxTRESPerNode,GrpTRES,"
    "MaxTRESMins,MaxJobs,MaxSubmit,GrpJobs,GrpSubmit,GrpTRESMins,GrpTRESRunMins"
)


def parse_qos(lines: Iterable[str]) -> dict[str, LiveQos]:
    """Output of `sacctmgr -nP show qos format=` QOS_FORMAT."""
    return {
        row["Name"]: LiveQos(
            name=row["Name"], flags=tuple(row["Flags"].lower().split(",")), limits=_limits(row)
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
            limits=_limits(row),
        )
        for row in _rows(lines, ASSOC_FORMAT)
    ]


def _rows(lines: Iterable[str], form: str) -> Iterator[dict[str, str]]:
    columns = form.split(",")
    for line in lines:
        cells = line.split("|")
        if len(cells) == len(columns):
            yield dict(zip(columns, cells, strict=True))


def _limits(row: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Of the columns that hold one: `cpu=4,mem=2G`, a number, a time."""
    found = {}
    for column, cell in row.items():
        if re.match("Max|Min|Grp", column):
            pairs = (one.rpartition("=")[::2] for one in cell.split(","))
            amounts = ((name, time_s(text) or _amount(text)) for name, text in pairs)
            found[column] = {name: amount for name, amount in amounts if amount is not None}
    return found


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
