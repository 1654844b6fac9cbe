"""A run's measured speed and memory, next to what was predicted when its jobs were submitted.

A resumed run may have had several jobs on different numbers of nodes; the steps of each are
compared with its own prediction (runs/predicted.py). Jobs with the same prediction, such as a chain
of jobs, are one comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fsdpkit.reporting.predictions import PredictedFigure, Prediction, What
from fsdpkit.reporting.series import Flags, Floats, MetricsTable
from fsdpkit.reporting.training import Training
from fsdpkit.runs.history import History
from fsdpkit.runs.predicted import Predicted, Span, predicted_of
from fsdpkit.runs.record import RunRecord, jobs_of_attempts

FEWEST_LINES = 3


def predictions(trainings: Sequence[Training]) -> dict[str, list[Prediction]]:
    """By array task, of a run that is none by ""; what has none is left out."""
    found = {"" if one.task is None else str(one.task): comparisons(one) for one in trainings}
    return {task: each for task, each in found.items() if each}


def comparisons(one: Training) -> list[Prediction]:
    """Of one training, the oldest job's first."""
    found: dict[str, tuple[Predicted, Flags]] = {}
    record, metrics = one.run.record, one.metrics
    for job_id, mine in _lines_of_jobs(record, one.history, metrics):
        predicted = predicted_of(one.run.paths, None if job_id == record.job_id else job_id)
        if predicted is None:
            continue
        known = found.get(predicted.name)
        found[predicted.name] = (predicted, mine if known is None else known[1] | mine)
    return [_compared(predicted, metrics, mine) for predicted, mine in found.values()]


def _lines_of_jobs(
    record: RunRecord, history: History, metrics: MetricsTable
) -> list[tuple[str | None, Flags]]:
    """Each job's id, and [steps] whether it logged the line: since its first attempt began, until
    the next job's did."""
    time_s = metrics.steps["time_s"]
    if not record.earlier:
        return [(record.job_id, np.ones(len(time_s), dtype=bool))]
    numbers = [attempt.number for attempt in history.attempts]
    jobs = jobs_of_attempts(record.jobs, numbers, history.array_task)
    starts: list[tuple[float, str | None]] = []
    for attempt in history.attempts:
        job = jobs.get(attempt.number)
        if job is not None and attempt.began_s is not None:
            starts.append((attempt.began_s, job.job_id))
    starts.sort(key=lambda start: start[0])
    flags: dict[str | None, Flags] = {}
    for place, (began_s, job_id) in enumerate(starts):
        until_s = starts[place + 1][0] if place + 1 < len(starts) else np.inf
        mine = (time_s >= began_s) & (time_s < until_s)
        flags[job_id] = flags.get(job_id, np.zeros(len(time_s), dtype=bool)) | mine
    for job in record.jobs:
        if history.array_task is None or history.array_task in (job.array or []):
            flags.setdefault(job.job_id, np.zeros(len(time_s), dtype=bool))
    return list(flags.items())


def _compared(predicted: Predicted, metrics: MetricsTable, mine: Flags) -> Prediction:
    columns, settled = metrics.steps, metrics.settled(mine)

    def median(name: str) -> float | None:
        return metrics.typical(name, mine, FEWEST_LINES)

    # Without torch's reserved GPU memory, `memory_bytes` is the process's, which is not predicted.
    on_gpu = mine & np.isfinite(columns["memory_reserved_bytes"])
    figures = [
        *_of_span("tokens_per_s", predicted.tokens_per_s, median("tokens_per_s")),
        *_of_span("step_time_s", predicted.step_s, median("step_time_s")),
        *_of_span("mfu", predicted.mfu, median("mfu")),
        _figure("memory_bytes", predicted.allocated_bytes, _most(columns["memory_bytes"][on_gpu])),
        _figure(
            "memory_reserved_bytes",
            predicted.reserved_bytes,
            _most(columns["memory_reserved_bytes"][on_gpu]),
        ),
    ]
    return Prediction(
        nodes=predicted.nodes,
        gpus=predicted.gpus,
        card=predicted.card,
        made_s=predicted.made_s,
        source=predicted.source,
        rests_on=predicted.rests_on,
        lines=len(settled) if len(settled) >= FEWEST_LINES else 0,
        figures=figures,
    )


def _of_span(what: What, span: Span | None, measured: float | None) -> list[PredictedFigure]:
    return [] if span is None else [_figure(what, span.middle, measured, span.low, span.high)]


def _figure(
    what: What,
    predicted: float,
    measured: float | None,
    low: float | None = None,
    high: float | None = None,
) -> PredictedFigure:
    return PredictedFigure(
        what=what,
        predicted=predicted,
        low=low,
        high=high,
        measured=measured,
        error=measured / predicted - 1 if measured is not None and predicted > 0 else None,
        in_range=low <= measured <= high
        if measured is not None and low is not None and high is not None
        else None,
    )


def _most(values: Floats) -> float | None:
    known = values[np.isfinite(values) & (values > 0)]
    return float(known.max()) if len(known) else None
