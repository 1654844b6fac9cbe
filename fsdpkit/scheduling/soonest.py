"""In which partition a job would start first, and end first, by Slurm's own estimate.

`sbatch --test-only` is asked once for each way of the profile that the job fits. Its estimate goes
by the time limits of all jobs that run and wait now: jobs that end early, or come with a higher
priority, change it.
"""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.units import roughly
from fsdpkit.errors import FsdpkitError, SchedulerError, UsageError
from fsdpkit.rendering.script import Plan
from fsdpkit.runs.predicted import Span
from fsdpkit.scheduling import submission
from fsdpkit.scheduling.slurm_answers import SlurmAnswers, answers_for

MOST_ASKED = 16
COLUMNS = 80
_START = re.compile(r"to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


class PartitionStart(msgspec.Struct, frozen=True, kw_only=True):
    """When the job would start in one partition."""

    partition: str
    """As `--partition` names it."""
    start_s: float | None = None
    """Unix time; None: Slurm refused, or did not say."""
    runs_s: float | None = None
    """How long it would run: as predicted for these GPUs, at most its time limit; else that."""
    predicted: bool = False
    automatic: bool = True
    """Whether --soonest may choose it: the profile does, or it was named."""
    end_s: float | None = None
    refused: str = ""


Lasts = Callable[[Plan], Span | None]
"""How long the training of a plan is predicted to take; None: not known."""


def starts(request: submission.SubmitRequest, lasts: Lasts) -> list[PartitionStart]:
    """The job in each partition, the one that ends first at the top, those without an answer last.
    Raises UsageError where there is nothing to ask, SchedulerError where Slurm does not answer."""
    site, _, job = submission.asked_for(request)
    if (answers := answers_for(site.profile)) is None:
        raise UsageError(f"--soonest asks Slurm, and this is no login node of {site.profile.title}")
    # It raises once and at once, in place of a long wait for each partition.
    shut = {one.name: one.state for one in answers.partitions() if not one.up}
    named = job.spec.resources.partition
    names = named.split(",") if named else _partitions_of(site.profile, answers)
    found = [
        _asked(replace(request, partition=name), shut, lasts, named is not None)
        for name in names[:MOST_ASKED]
    ]
    found += [
        PartitionStart(partition=name, refused="not asked: name it with --partition")
        for name in names[MOST_ASKED:]
    ]
    return sorted(found, key=lambda one: (one.end_s is None, one.end_s or 0.0))


def soonest(found: Sequence[PartitionStart]) -> PartitionStart:
    """The one that ends first. Raises UsageError where none would start."""
    may = [one for one in found if one.automatic and one.end_s is not None]
    if not may:
        raise UsageError("\n".join(["--soonest: no partition would start this job", *lines(found)]))
    return may[0]


def _partitions_of(profile: SiteProfile, answers: SlurmAnswers) -> list[str]:
    """Those that the profile offers; of a profile without any, those that Slurm has up."""
    if profile.partitions:
        return [name for name, one in profile.partitions.items() if one.offered]
    return [one.name for one in answers.partitions() if one.up]


def _asked(
    request: submission.SubmitRequest, shut: Mapping[str, str], lasts: Lasts, named: bool
) -> PartitionStart:
    """shut: partitions that start no job now, and their state: --test-only does not say so."""
    name = str(request.partition)
    try:
        plan, _ = submission.plan(request)
        if (state := shut.get(plan.placement.select.get("partition", ""))) is not None:
            return PartitionStart(partition=name, refused=f"the partition is {state}")
        said = submission.check(plan, request.runs)
    except (UsageError, SchedulerError) as error:
        return PartitionStart(partition=name, refused=_why(error))
    way = plan.site.profile.partitions.get(name)
    limit_s: float = plan.job.spec.resources.time_s
    span, start_s = lasts(plan), _start_s(said)
    runs_s = limit_s if span is None else min(span.middle, limit_s)
    return PartitionStart(
        partition=name,
        start_s=start_s,
        runs_s=runs_s,
        end_s=None if start_s is None else start_s + runs_s,
        predicted=runs_s < limit_s,
        automatic=named or way is None or way.automatic,
        refused="" if start_s is not None else said,
    )


def _start_s(said: str) -> float | None:
    match = _START.search(said)
    if match is None:
        return None
    return time.mktime(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S"))


def _why(error: FsdpkitError) -> str:
    """The first line; of a heading, the first reason below it."""
    told = [line.strip() for line in str(error).splitlines() if line.strip()]
    return told[1] if told[0].endswith(":") and len(told) > 1 else told[0]


def lines(found: Sequence[PartitionStart]) -> Iterator[str]:
    """A table for people: start + run time = end."""
    width = max([9, *(len(one.partition) for one in found)])
    yield f"{'partition':{width}}  {'starts':>16}  {'runs':>12}  {'ends':>16}"
    for one in found:
        name = f"{one.partition:{width}}"
        if one.start_s is None or one.end_s is None or one.runs_s is None:
            indent = " " * (width + 2)
            yield from textwrap.wrap(f"{name}  {one.refused}", COLUMNS, subsequent_indent=indent)
            continue
        runs = f"{'' if one.predicted else '<= '}{roughly(one.runs_s)}"
        only = "" if one.automatic else "  only if named"
        yield f"{name}  {_minute(one.start_s)}  {runs:>12}  {_minute(one.end_s)}{only}"


def _minute(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))
