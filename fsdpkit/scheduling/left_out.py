"""The nodes that a run's jobs leave out because they failed a run: said, and used again."""

from __future__ import annotations

import re
import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fsdpkit.errors import FsdpkitError, SchedulerError
from fsdpkit.runs import avoided_nodes, outcomes
from fsdpkit.runs.exclusions import expand
from fsdpkit.runs.job_ids import job_of, task_of
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.outcomes import Ending
from fsdpkit.runs.reading import read_json
from fsdpkit.runs.record import RunRecord, jobs_of_attempts, load, now_s
from fsdpkit.scheduling.job_mark import JobMark, MarkedJob

_COMMENT = re.compile(r"fsdpkit:([A-Za-z0-9][A-Za-z0-9._+-]*)")


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A node that a job does not use. None: its time is over, but the job is still queued so."""

    node: str
    until_s: float | None = None
    """Unix time."""
    why: str | None = None


def left_out(paths: RunPaths, record: RunRecord, job_id: str, excluded: str) -> list[LeftOut]:
    """Of what Slurm has the job exclude, what fsdpkit asked for, and the job itself did not."""
    ours = _asked_for(paths, record, job_id) - _own(paths)
    notes = {note.node: note for note in avoided_nodes.avoided(paths.dir.parent, now_s())}
    return [
        LeftOut(node=node, until_s=note.until_s, why=note.why)
        if (note := notes.get(node))
        else LeftOut(node=node)
        for node in expand(excluded) or ()
        if node in ours
    ]


def in_words(found: Sequence[LeftOut], runs: Path) -> str | None:
    """Which nodes, until when, why, and how to lift it; None if there are none."""
    if not found:
        return None
    nodes = "; ".join(_node_in_words(one) for one in found)
    names = found[0].node if len(found) == 1 else "NODE"
    return f"{nodes}. Use it again: fsdpkit nodes --forgive {names} --runs {shlex.quote(str(runs))}"


def _node_in_words(one: LeftOut) -> str:
    if one.until_s is None or one.why is None:
        return f"{one.node}, although its time has expired"
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.until_s))
    return f"{one.node} until {until}: {one.why[:120]}"


def use_again(node: str, runs: Path, cluster: str | None) -> tuple[list[str], list[str]]:
    """Let this user's queued jobs of these runs use the node. Ids of those that now may, and why
    others could not be changed. Where there is no Slurm nothing waits."""
    if shutil.which("squeue") is None:
        return [], []
    from fsdpkit.scheduling.slurm import Round, SlurmClient

    asked, client = Round(), SlurmClient(cluster)
    freed, problems = [], []
    for job_id, comment, excluded in client.pending(asked):
        names, run = expand(excluded) or (), _COMMENT.fullmatch(comment)
        if node not in names or run is None:
            continue
        directory = runs / run[1]
        try:
            record = load(directory)
            found = left_out(RunPaths(directory), record, job_id, excluded)
            if node in {one.node for one in found}:
                job = MarkedJob(job_id, JobMark.of(directory, comment))
                client.exclude(job, [name for name in names if name != node])
                freed.append(job_id)
        except SchedulerError as error:
            problems.append(f"job {job_id} still leaves {node} out: {error}")
        except FsdpkitError:  # no run of these
            continue
    return freed, problems + asked.unread


def _asked_for(paths: RunPaths, record: RunRecord, job_id: str) -> set[str]:
    parent, task = job_of(job_id), task_of(job_id)
    tasks = [task] if task is not None else [None, *paths.array_tasks()]
    names = {node for job in record.jobs if job.job_id == parent for node in job.left_out}
    for task in tasks:
        one = paths.task(task)
        for number, job in jobs_of_attempts(record.jobs, one.attempts(), task).items():
            if job.job_id != parent:  # a run that was resumed often has read enough
                continue
            if ending := outcomes.read(one.attempt(number).ending, Ending):
                names.update(ending.left_out)
    return names


def _own(paths: RunPaths) -> set[str]:
    """What the job itself excludes."""
    try:
        text = read_json(paths.job)["resources"]["exclude"] or ""
    except (OSError, ValueError, LookupError, TypeError):
        return set()
    return {*(expand(text) or ())} if isinstance(text, str) else set()
