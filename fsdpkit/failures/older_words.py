"""What agents and shells said before they put causes on record (runs/failures.py): releases up to
0.1, and templates made for them. Their run directories are read by this table; nothing is added.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fsdpkit.runs.failures import CHECK, HEAD_SILENT, HUNG, FailureRecord, Level
from fsdpkit.runs.outcomes import AttemptVerdict, Ending

_HUNG_STATUS, _CHECKED = 124, "check before training failed: "
_WRONG_WORLD = "wrong world: "
_TOLD = re.compile(r"(?:rank (?P<rank>\d+) on )?(?P<name>[A-Za-z0-9][\w.-]*): (?P<words>(?s:.*))")


class _Said(NamedTuple):
    cause: str
    words: tuple[str, ...]
    level: Level = Level.OWN


_TABLE = (
    _Said("own-step", ("steps.before ended with status ", "steps.each_node ended with status ")),
    _Said("version-mismatch", ("all nodes must see the same environment",)),
    _Said("port-taken", ("is taken on the head node", "no free port outside ")),
    _Said("port-taken", ("does not know this run's secret",)),
    _Said(
        "head-address",
        (
            *("the head node's name '", "the head node '", "no IPv4 address from "),
            *("is not an IPv4 address", "name one interface in the site profile"),
            *("is a loopback, link-local or empty address", "no network interface carries "),
            *("no route to the head node's address", "there is no route to the head node's"),
        ),
    ),
    _Said("rendezvous-timeout", ("socket has timed out",), Level.WAITED),
    _Said("head-address", ("cannot reach the head node's port",), Level.WAITED),
    _Said("rendezvous-timeout", ("no agent after ", "where the ranks are to meet"), Level.WAITED),
    _Said("connection-reset", ("the head node's agent does not answer any more",), Level.LOST_PEER),
    _Said("node-failure", ("no sign of life",), Level.OUTSIDE),
    _Said(
        "environment-missing",
        (
            *("cannot load the module ", "there is no 'module' command"),
            *("there is no 'conda' here", "info --base' failed", "there is no Python in "),
            *("there is no etc/profile.d/conda.sh in ", "there is no torchrun on PATH"),
            "cannot activate the conda environment ",
        ),
    ),
    _Said(
        "script-not-visible",
        ("though the head node made it", "cannot write to the run directory "),
    ),
    _Said("import-error", ("torch cannot be imported by ",)),
    _Said("disk-full", (" GB are free in ", "the file system or your quota is full")),
    _Said("host-out-of-memory", ("MB of memory are free, ",)),
    _Said(
        "bad-gpu",
        (
            *("has a damaged row of memory and none to replace it", "another process holds GPU"),
            "GPUs were asked for on each node, ",
        ),
    ),
    _Said("hang", ("waiting for other ranks",), Level.WAITED),
    _Said("settings", ("asked for ",)),
)


def older_record(status: int | None, rank: int | None, name: str, words: str) -> FailureRecord:
    """What an agent or a shell meant; without a cause where it only quotes a rank or a program.

    rank: whom it is about; None: itself. status: None where only a log has it.
    """
    checked, told = words.startswith(_CHECKED), words.removeprefix(_CHECKED)
    cause, level = ("", Level.OWN) if rank is not None and not checked else _meant(told)
    rule = CHECK if checked else HEAD_SILENT if level == Level.LOST_PEER else ""
    if status == _HUNG_STATUS:
        cause, rule = "hang", HUNG
        level = Level.WAITED if rank is None or "waiting for other ranks" in told else Level.OWN
    elif words.startswith(_WRONG_WORLD):
        cause, told = "wrong-world", words.removeprefix(_WRONG_WORLD)
    return FailureRecord(
        by="agent" if cause or rank is None else "rank",
        rule=rule,
        name=name,
        rank=rank,
        status=1 if status is None else status,
        cause=cause,
        level=level,
        words=told,
    )


def _meant(words: str) -> tuple[str, Level]:
    said = (one for one in _TABLE if any(phrase in words for phrase in one.words))
    return next(((one.cause, one.level) for one in said), ("", Level.OWN))


def older_line(status: int | None, line: str) -> FailureRecord | None:
    """The record of `rank 3 on node2: words`; None if the line is none about a failure."""
    who = _TOLD.fullmatch(line)
    if who is None:
        return None
    rank = int(who["rank"]) if who["rank"] else None
    return older_record(status, rank, who["name"], who["words"])


def slurm_said(ending: Ending) -> bool:
    """Whether Slurm itself told how the job ended."""
    if ending.asked_slurm is None:
        return "Slurm warned of the end" not in ending.why
    return ending.asked_slurm


def came_back(verdict: AttemptVerdict) -> bool:
    """Whether starting again had not cured the trouble."""
    return verdict.came_back or "it came back " in verdict.why
