"""A training in MLflow: found by its tag, so that it stays one run even if track.json is lost.

MLflow keeps every number that it is sent, twice if it is sent twice, so it is asked what it has
before anything is sent; then a point that it has, at the same step and time, is left out.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fsdpkit.errors import TrackerError
from fsdpkit.tracking.trackers import Sending, SentLines, TrackerMark, refused

_KEY = "fsdpkit.run"
_IN_A_BATCH = 1000  # of metrics, by MLflow's REST API; of parameters 100
_PARAMETERS_IN_A_BATCH = 100
_LONGEST_VALUE = 500
_STATUS = {"running": "RUNNING", "succeeded": "FINISHED", "stopped": "KILLED"}
_QUIET = {
    # Its own would try for minutes; who calls again sends what is missing.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # A directory of files still holds many a group's runs.
    "MLFLOW_ALLOW_FILE_STORE": "true",
}


def send_to_mlflow(sending: Sending, before: TrackerMark | None) -> SentLines:
    """Raises TrackerError with MLflow's own words."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(logging.ERROR)
    uri = sending.destination.uri
    try:
        return _send(sending, before, uri)
    except TrackerError:
        raise
    except Exception as error:  # its client lets through what each of its stores raises
        raise refused(f"MLflow ({_shown(uri)})", error) from error


def _shown(uri: str) -> str:
    return re.sub(r"//[^/\s@]+@", "//", uri)


def _send(sending: Sending, before: TrackerMark | None, uri: str) -> SentLines:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    where = f"{_shown(uri)} {sending.project}"
    run = _run(client, sending, before.id if before and before.where == where else None)
    run_id = run.info.run_id
    metrics = list(_missing(client, run_id, sending))
    for part in _parts([metric for _, metric in metrics], _IN_A_BATCH):
        client.log_batch(run_id, metrics=part)
    _describe(client, run, sending)
    return SentLines(
        TrackerMark(id=run_id, where=where, lines=sending.end),
        len({index for index, _ in metrics}),
        f"{_shown(uri)}, experiment {sending.project}, run {run_id}",
    )


def _run(client: Any, sending: Sending, known: str | None) -> Any:
    """The training's run, made if there is none."""
    from mlflow.exceptions import MlflowException

    if known is not None:
        try:
            found = client.get_run(known)
            if found.info.lifecycle_stage == "active":
                return found
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
    experiment = client.get_experiment_by_name(sending.project)
    if experiment is None:
        experiment_id = client.create_experiment(sending.project)
    elif experiment.lifecycle_stage != "active":
        raise TrackerError(
            f"MLflow: the experiment {sending.project!r} was deleted there: restore it, or name "
            "another with track.project"
        )
    else:
        experiment_id = experiment.experiment_id
    quoted = sending.key.replace("'", "")
    found = client.search_runs([experiment_id], filter_string=f"tags.`{_KEY}` = '{quoted}'")
    if found:
        return found[0]
    began_ms = round(sending.created_s * 1000)
    tags = {_KEY: sending.key}
    return client.create_run(experiment_id, start_time=began_ms, tags=tags, run_name=sending.name)


def _missing(client: Any, run_id: str, sending: Sending) -> Iterator[tuple[int, Any]]:
    """(line, metric) of each point that MLflow does not have."""
    from mlflow.entities import Metric

    there: dict[str, set[tuple[int, int]]] = {}
    for line in sending.lines:
        for name, value in line.values.items():
            key = _allowed(name)
            if key not in there:
                known = client.get_metric_history(run_id, key)
                there[key] = {(metric.step, metric.timestamp) for metric in known}
            if (line.step, line.time_ms) not in there[key]:
                there[key].add((line.step, line.time_ms))
                yield line.index, Metric(key, value, line.time_ms, line.step)


def _allowed(name: str) -> str:
    """In the letters that MLflow takes."""
    return re.sub(r"[^\w.\-/ ]", "_", name, flags=re.ASCII)[:250]


def _describe(client: Any, run: Any, sending: Sending) -> None:
    """Settings, tags and state. A parameter cannot change there: one that a resume did is a tag."""
    from mlflow.entities import Param, RunTag

    told = {_allowed(key): text[:_LONGEST_VALUE] for key, text in sending.settings.items()}
    known: Mapping[str, str] = run.data.params
    new = [Param(key, text) for key, text in told.items() if key not in known and text]
    for part in _parts(new, _PARAMETERS_IN_A_BATCH):
        client.log_batch(run.info.run_id, params=part)
    changed = {
        f"fsdpkit.now.{key}": text
        for key, text in told.items()
        if key in known and known[key] != text
    }
    tags = {**sending.tags, **changed}
    fresh = [RunTag(k, v[:_LONGEST_VALUE]) for k, v in tags.items() if run.data.tags.get(k) != v]
    for part in _parts(fresh, _PARAMETERS_IN_A_BATCH):
        client.log_batch(run.info.run_id, tags=part)
    status = _STATUS.get(sending.outcome, "FAILED")
    if sending.outcome != "unknown" and run.info.status != status:
        if status == "RUNNING":
            client.update_run(run.info.run_id, status=status)
        else:
            ended_ms = sending.lines[-1].time_ms if sending.lines else None
            client.set_terminated(run.info.run_id, status=status, end_time=ended_ms)


def _parts(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    for at in range(0, len(items), most):
        yield items[at : at + most]
