"""What the record of a cause holds. The causes themselves, in their order: causes.toml."""

from __future__ import annotations

import msgspec

from fsdpkit.failures.patterns import Pattern
from fsdpkit.runs.outcomes import Cause as RetryCause


class Cause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cause."""

    name: str
    sentence: str
    """With {who} (a rank and its node, a node, or `the job`) and {words} (the line shown)."""
    patterns: tuple[Pattern, ...] = ()
    types: tuple[str, ...] = ()
    """Of exceptions that show it, whatever they say."""
    errnos: frozenset[int] = frozenset()
    """Numbers of errors of the operating system that show it, in any language."""
    statuses: frozenset[int] = frozenset()
    states: frozenset[str] = frozenset()
    """Slurm's words for the job's state; they are of level OUTSIDE."""
    endings: frozenset[str] = frozenset()
    """Words of `ending.json`; of level OUTSIDE if Slurm was asked, else SUMMED_UP."""
    retry: RetryCause = "crash"
    """What the policy takes it for when it decides about another start."""
    again: str | None = None
    """Whether another start would help, and why, where that follows from the cause."""
    waited: str | None = None
    """The sentence, if nobody more than a process that waited for another tells of it."""
    of_job: bool = False
    """Whether it concerns the whole job, so that no rank and no node is named."""
