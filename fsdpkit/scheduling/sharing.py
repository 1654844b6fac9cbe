"""Which centres and projects get a run's record (runs/shared_record.py): at its submission, and
of ends that nobody was left to write, once they are seen."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import fsdpkit
from fsdpkit.bounded import SHARED_BYTES, read_bytes, read_end
from fsdpkit.config import assets
from fsdpkit.config.private_files import make_private_dir
from fsdpkit.config.published.memory import state_dir
from fsdpkit.config.units import parse_array
from fsdpkit.listing import spans
from fsdpkit.runs.account import SeenJobs
from fsdpkit.runs.job_ids import task_of
from fsdpkit.runs.layout import AttemptPaths, RunPaths
from fsdpkit.runs.record import RunRecord, now_s
from fsdpkit.runs.shared_record import (
    FOLDER,
    AttemptEnd,
    Folder,
    KeptRecord,
    SharedRecord,
    Used,
    Word,
    add_end,
    kept,
    record_files,
    share,
)
from fsdpkit.scheduling.outcome import newest_seen, recorded

if TYPE_CHECKING:
    from fsdpkit.rendering.script import Plan
    from fsdpkit.scheduling.states import JobState

_LIST = "shared-runs"
_CAUSES = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "time-limit",
    "DEADLINE": "time-limit",
    "PREEMPTED": "preemption",
    "NODE_FAIL": "node-failure",
    "BOOT_FAIL": "node-failure",
    "OUT_OF_MEMORY": "out-of-memory",
}
"""Of a job whose batch shell wrote no end: what Slurm's state means, else `killed`."""


def tell_centre(plan: Plan, paths: RunPaths) -> None:
    """Nothing unless the job is shared and somebody has a folder for it."""
    audit = plan.site.profile.audit
    why, folders = plan.job.shared_by(plan.site.profile), list[Folder]()
    profiles = [file.resolve() for file in plan.site.files]
    for layer in assets.centre_layers() if why is not None else []:
        # What one centre's profile switches on is not another centre's to read.
        theirs = any(file.is_relative_to(layer.dir.resolve()) for file in profiles)
        if os.path.isdir(layer.dir / FOLDER) and (theirs or why != "site: audit.share"):
            folders.append(Folder(path=str(layer.dir / FOLDER), project=audit.projects and theirs))
    if plan.job.record_folder is not None:
        folders.append(Folder(path=plan.job.record_folder, project=True))
    record = _record(plan, paths.dir.name)
    share(paths, record, folders)
    if folders:
        notes = plan.job.record_notes(plan.site.profile)
        _remember(SharedRun(record=record, folders=folders, notes=notes))


class SharedRun(KeptRecord, frozen=True, kw_only=True):
    """A submission of this user's, in a line of `shared-runs` of her state directory: whoever may
    not list the folders, and has removed the run, finds her records by it."""

    notes: list[str]
    """What she was told of it."""


def _remember(run: SharedRun) -> None:
    with contextlib.suppress(OSError):
        make_private_dir(state_dir())
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(state_dir() / _LIST, flags, 0o600), "ab") as file:
            file.write(msgspec.json.encode(run) + b"\n")


def shared_runs() -> list[SharedRun]:
    """This user's, oldest first."""
    found = []
    with contextlib.suppress(OSError):
        for line in read_end(state_dir() / _LIST).splitlines():
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                found.append(msgspec.json.decode(line, type=SharedRun))
    return found


def records_of_mine() -> dict[Path, bytes]:
    """All records of this user's runs that are still there, as they were written."""
    found = {}
    for run in shared_runs():
        tasks = parse_array(run.record.tasks)[0] if run.record.tasks else []
        for folder in run.folders:
            for path in record_files(Path(folder.path), run.record, tasks):
                with contextlib.suppress(OSError):
                    found[path] = read_bytes(path, SHARED_BYTES, own=True)
    return found


def new_notes(plan: Plan) -> list[str]:
    """What the submitter should know of the run's record, and was not told before."""
    if not (notes := plan.job.record_notes(plan.site.profile)):
        return []
    told = {note for run in shared_runs() for note in run.notes}
    return [note for note in notes if note not in told]


def _record(plan: Plan, run: str) -> SharedRecord:
    resources, manifest = plan.job.spec.resources, plan.template.manifest
    tasks = plan.tasks or []
    listed = spans(tasks)
    site = next(reversed(plan.site.layered.releases), None)
    template = plan.template.release
    return SharedRecord(
        run=run,
        tasks=(listed if len(listed) <= 2000 else f"{min(tasks)}-{max(tasks)}") or None,
        submitted_s=now_s(),
        nodes=resources.nodes_asked,
        ranks_per_node=plan.job.spec.ranks_per_node,
        partition=_word(plan.placement.select.get("partition") or resources.partition),
        project=_word(resources.account),
        on=plan.hold,
        holds=plan.job.entry.file == assets.hold_script(),
        fsdpkit=fsdpkit.__version__,
        used=[
            Used(
                kind="template",
                name=manifest.name,
                version=manifest.version,
                sha256=template.sha256 if template else None,
            ),
            Used(
                kind="site",
                name=plan.site.id,
                version=site.version if site else None,
                sha256=site.sha256 if site else None,
            ),
        ],
    )


def _word(text: str | None) -> str | None:
    """What a record can name; None for a list of partitions, and the like."""
    try:
        return msgspec.convert(text, Word | None)
    except msgspec.ValidationError:
        return None


def tell_ends(paths: RunPaths, before: RunRecord, now: RunRecord) -> None:
    """How those jobs ended whose states are settled now and were not before, where their batch
    shells could not write it: cancelled, out of time, or gone with their node."""
    if kept(paths) is None:
        return
    was = {job.job_id for job in before.jobs if job.ended is not None}
    for job in now.jobs:
        for job_id, seen in (job.ended or {}).items() if job.job_id not in was else ():
            if (state := recorded(seen)) is not None:
                attempt = newest_seen(paths, now, job_id)
                _tell_end(paths, now, job_id, state, attempt)


def _tell_end(
    paths: RunPaths, record: RunRecord, job_id: str, state: JobState, newest: AttemptPaths | None
) -> None:
    """newest: attempt of the job; None: it never began."""
    task = task_of(job_id)
    found = kept(paths, task)
    known = {end.attempt: end for end in found.record.ends} if found else {}
    if newest is None and known:
        return  # chained behind one that was enough, or resumed and cancelled in the queue
    attempt = newest.number if newest else 0
    end, cause = known.get(attempt), _CAUSES.get(state.state, "killed")
    if end is None or end.action == "requeue":  # queued again, the next attempt never began
        attempt += end is not None
        cause = "done" if state.succeeded else cause
        at_s = state.end_s or now_s()
        end = AttemptEnd(attempt=attempt, action="end", cause=cause, at_s=at_s)
    elif end.cause == "unknown" and state.state in _CAUSES:
        end = msgspec.structs.replace(end, cause=cause)
    elif end.account is not None:
        return
    # `status` does without, for its speed.
    from fsdpkit.runs.accounting import read_or_make

    seen = SeenJobs(succeeded={job_id} if state.succeeded else ())
    add_end(paths, task, end, read_or_make(paths, record, task, seen, end.at_s))
