"""One call of `fsdpkit track` for one training: what to send, to whom, and what was sent before.

A training has one run in a tracker over all its requeues. Its id, and how far was sent, stand in
`track.json` beside metrics.jsonl; whoever sends holds a lock. Nothing of the training is changed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.config.key_changes import without_unknown
from fsdpkit.config.track import Track, Tracker
from fsdpkit.errors import ConfigError, StorageError, storage_errors
from fsdpkit.reporting.report import about
from fsdpkit.runs.layout import write_atomically
from fsdpkit.runs.lock import BusyError, locked
from fsdpkit.runs.provenance import Provenance
from fsdpkit.runs.reading import read_bytes, table_in
from fsdpkit.scheduling.run import Run
from fsdpkit.tracking.destination import destination_of
from fsdpkit.tracking.points import lines_of
from fsdpkit.tracking.trackers import Send, Sending, SentLines, TrackerMark

SCHEMA = "fsdpkit.track/1"


class _Marks(msgspec.Struct, frozen=True, kw_only=True):
    schema: str = SCHEMA
    trackers: dict[str, TrackerMark] = {}


def send(sending: Sending, tracker: Tracker) -> SentLines:
    """Send what the tracker does not have yet. Raises ConfigError without its package, BusyError
    while somebody else sends, TrackerError, StorageError."""
    function = _function(tracker)
    path = sending.files.track
    with storage_errors(path.parent, "made"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with locked(path.with_name(f"{path.name}.lock"), 0.0):
            marks = _read(path)
            with _files_of_the_owner_alone(), contextlib.redirect_stdout(sys.stderr):
                sent = function(sending, marks.trackers.get(tracker))
            trackers = {**marks.trackers, tracker: sent.mark}
            with storage_errors(path, "written"):
                new = msgspec.structs.replace(marks, trackers=trackers)
                write_atomically(path, msgspec.json.encode(new) + b"\n")
            return sent
    except BusyError as error:
        raise BusyError(f"another fsdpkit track sends {sending.name} now: {error}") from error


@contextlib.contextmanager
def _files_of_the_owner_alone() -> Iterator[None]:
    """Whatever files a tracker's client makes."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _function(tracker: Tracker) -> Send:
    if importlib.util.find_spec(tracker) is None:
        raise ConfigError(
            f'track.to: {tracker} needs the {tracker} package: pip install "fsdpkit[{tracker}]"'
        )
    if tracker == "mlflow":
        from fsdpkit.tracking.to_mlflow import send_to_mlflow

        return send_to_mlflow
    if tracker == "wandb":
        from fsdpkit.tracking.to_wandb import send_to_wandb

        return send_to_wandb
    from fsdpkit.tracking.to_tensorboard import send_to_tensorboard

    return send_to_tensorboard


def _read(path: Path) -> _Marks:
    """Nothing was sent where the file is missing or torn: the trackers are asked then."""
    try:
        return msgspec.json.decode(read_bytes(path), type=_Marks)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Marks()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error


# ---- What a run says of itself


def sending_of(run: Run, task: int | None, asked: Track) -> Sending:
    """The training `task` of the run, ready to be sent as `asked` on the command line, else as the
    job's `[track]` says. Raises StorageError, ConfigError."""
    paths, said = run.paths.task(task), track_of(run)
    destination = destination_of(run, said, asked)
    job, made_from = table_in(run.paths.job), about.provenance_of(run)
    key = run.id if task is None else f"{run.id}/task-{task}"
    if destination.files != run.paths:  # its name may be that of a run of the viewer's
        key += f" of user {os.stat(run.dir).st_uid}"
    return Sending(
        key=key,
        name=key,
        files=destination.files.task(task),
        project=asked.project or said.project or run.record.name,
        destination=destination,
        offline=asked.offline or said.offline,
        lines=lines_of(paths.metrics),
        created_s=run.record.created_s,
        outcome=_outcome(run, task),
        settings=about.all_settings(job, task),
        tags=_tags(run, task, made_from),
    )


def track_of(run: Run) -> Track:
    """The job's `[track]`; the defaults if it has none, or cannot be read."""
    table, _ = without_unknown(Track, table_in(run.paths.job).get("track", {}))
    try:
        return msgspec.convert(table, Track)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{run.paths.job}: track: {error}") from error


def _outcome(run: Run, task: int | None) -> str:
    state = run.state(task)
    if state is None:
        return "unknown"
    if state.phase in ("running", "pending"):
        return "running"
    if state.succeeded:
        return "succeeded"
    return state.outcome or "failed"


def _tags(run: Run, task: int | None, made_from: Provenance | None) -> dict[str, str]:
    record = run.record
    found: dict[str, Any] = {
        "fsdpkit.version": record.version,
        "fsdpkit.cluster": record.cluster or record.site,
        "fsdpkit.shape": f"{record.nodes} nodes x {record.ranks_per_node} ranks",
        "fsdpkit.jobs": ", ".join(job.job_id for job in record.jobs if job.job_id),
        "fsdpkit.attempts": len(run.paths.task(task).attempts()),
        "fsdpkit.directory": run.paths.task(task).dir,
    }
    if made_from is not None:
        found["fsdpkit.script_sha256"] = made_from.script.sha256
        if (repository := made_from.repository) is not None:
            found |= {"fsdpkit.commit": repository.commit, "fsdpkit.branch": repository.branch}
            found["fsdpkit.clean"] = repository.clean
    return {name: str(value) for name, value in found.items() if value not in (None, "")}
