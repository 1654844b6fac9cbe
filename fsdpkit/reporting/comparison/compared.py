"""Runs side by side: which settings differ, the results, and the curves.

Without output: `table.py` writes it for a terminal, `page.py` as HTML; `--json` prints the records
below, whose fields are the keys. A run of an array appears once for each task.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import msgspec
import numpy as np

from fsdpkit.errors import UsageError
from fsdpkit.reporting.predictions import Prediction
from fsdpkit.reporting.report import about
from fsdpkit.reporting.report.head import state_in_words
from fsdpkit.reporting.report.predicted import comparisons
from fsdpkit.reporting.series import Floats, read_own_numbers
from fsdpkit.reporting.training import Training, trainings_of
from fsdpkit.reporting.words import ABSENT
from fsdpkit.runs.provenance import Provenance, in_words
from fsdpkit.runs.uses import COUNTS, Uses
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.run_states import standings

SCHEMA: Final = "fsdpkit.compare/1"
MOST = 200
"""Runs and tasks in one comparison."""
_TRAINER = "training."


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One training and what came out of it. None: not known, or not measured."""

    label: str
    """`a`, `b`, …: what it is called in the comparison."""
    run: str
    task: int | None
    """Of an array."""
    dir: str
    state: str
    steps: int | None
    planned_steps: int | None
    loss: float | None
    """The last that was logged."""
    eval_loss: float | None
    best_eval_loss: float | None
    tokens_per_s: float | None
    """Median over logged steps, as the next two."""
    step_time_s: float | None
    mfu: float | None
    memory_bytes: float | None
    """The largest that was logged."""
    own: dict[str, float]
    """The last of each number that the script logged by a name of its own."""
    predictions: list[Prediction]
    """What `fsdpkit plan` had predicted of each of its jobs, beside what it measured."""
    granted_h: float | None
    """GPU-hours, or node-hours on a machine without."""
    trained_share: float | None
    """Of those, 0 to 1: spent in steps that count."""
    code: str | None
    commit: str | None


class RunDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not the same in all; `values` by label, absent ones as `–`."""

    key: str
    values: dict[str, str]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `compare --json` prints."""

    schema: Literal["fsdpkit.compare/1"] = SCHEMA
    made_s: float
    """Unix time."""
    runs: list[Compared]
    settings: list[RunDifference]
    packages: list[RunDifference]


@dataclass(frozen=True)
class Curve:
    """A quantity over steps, each step once, as it was done last."""

    label: str
    name: str
    step: Floats
    value: Floats


@dataclass(frozen=True)
class Side:
    """One training, what it is called in the comparison, and what it was made from."""

    label: str
    training: Training
    made_from: Provenance | None

    @property
    def name(self) -> str:
        one = self.training
        return one.run.id if one.task is None else f"{one.run.id}, task {one.task}"

    @cached_property
    def own(self) -> dict[str, tuple[Floats, Floats]]:
        """Steps and values that the script logged by names of its own."""
        return read_own_numbers(self.training.history.paths.metrics)

    def logged(self, name: str) -> tuple[Floats, Floats]:
        """Steps and values of a metric, as the file has them; none if it has no such metric."""
        metrics = self.training.metrics
        for columns in (metrics.evaluations, metrics.steps):
            if name in columns:
                return columns["step"], columns[name]
        return self.own.get(name, (np.empty(0), np.empty(0)))


def compare(runs: Sequence[Run], now_s: float | None = None) -> tuple[Comparison, list[Side]]:
    """The comparison and its sources. Raises UsageError for under 2 trainings, over `MOST`."""
    now_s = time.time() if now_s is None else now_s
    stand = standings([(run.paths, run.record) for run in runs])
    count = sum(len(run.record.tasks_of()) for run in runs)
    if not 2 <= count <= MOST:
        raise UsageError(
            f"compare: {count} to compare; name from 2 to {MOST} (each task of an array is one)"
        )
    sides: list[Side] = []
    for run, standing in zip(runs, stand, strict=True):
        made_from = about.provenance_of(run)
        for one in trainings_of(run, run.record.tasks_of(), standing.states):
            sides.append(Side(label(len(sides)), one, made_from))
    told = Comparison(
        made_s=now_s,
        runs=[_row(side, now_s) for side in sides],
        settings=_differences({side.label: _settings(side) for side in sides}),
        packages=_differences(
            {s.label: _packages(s.made_from) for s in sides if s.made_from is not None}
        ),
    )
    return told, sides


def label(number: int) -> str:
    """`a` to `z`, then `aa`, `ab`, …"""
    more, letter = divmod(number, 26)
    return (label(more - 1) if more else "") + chr(ord("a") + letter)


def curves(sides: Sequence[Side], name: str) -> list[Curve]:
    """Those of the metric `name`, fsdpkit's or a script's own, that were logged at all."""
    found = []
    for side in sides:
        step, value = side.logged(name)
        # A resumed run has repeated some steps: the later line counts.
        _, newest = np.unique(step[::-1], return_index=True)
        kept = len(step) - 1 - newest
        if len(kept) and not np.isnan(value[kept]).all():
            found.append(Curve(side.label, name, step[kept], value[kept]))
    return found


def _row(side: Side, now_s: float) -> Compared:
    one, made_from = side.training, side.made_from
    run, metrics, losses = one.run, one.metrics, one.eval_losses
    accounts = one.accounts(now_s)
    spent = Uses(accounts) if accounts else None
    step, planned, memory = metrics.last("step"), one.planned_steps, metrics.counted("memory_bytes")
    return Compared(
        label=side.label,
        run=run.id,
        task=one.task,
        dir=str(run.paths.task(one.task).dir),
        state=state_in_words(one)[0],
        steps=None if step is None else int(step),
        planned_steps=None if planned is None else int(planned),
        loss=metrics.last("loss"),
        eval_loss=one.eval_loss,
        best_eval_loss=float(losses.min()) if len(losses) else None,
        tokens_per_s=metrics.typical("tokens_per_s"),
        step_time_s=metrics.typical("step_time_s"),
        mfu=metrics.typical("mfu"),
        memory_bytes=float(memory.max()) if len(memory) else None,
        own={name: float(values[-1]) for name, (_, values) in side.own.items()},
        predictions=comparisons(one),
        granted_h=spent.granted_h or None if spent else None,
        trained_share=spent.share(*COUNTS) if spent else None,
        code=in_words(made_from) if made_from else None,
        commit=made_from.repository.commit if made_from and made_from.repository else None,
    )


# ---- What differs


def _settings(side: Side) -> dict[str, str]:
    """Every key of the job as a report shows it, and what fits on a line about the code."""
    found = about.all_settings(side.training.job, side.training.task)
    if any(key.startswith(_TRAINER) for key in found):
        found["[training]"] = "set"
    if (made_from := side.made_from) is not None:
        found["entry"] = made_from.script.path  # not that of each run's own copy
        found["code"] = in_words(made_from)
        digest = (made_from.script.sha256 or ABSENT)[:12]
        if digest not in found["code"]:
            found["script SHA-256"] = digest
    return found


def _packages(made_from: Provenance | None) -> dict[str, str]:
    installed = made_from.packages if made_from else None
    if installed is None:
        return {}
    found = {}
    for line in installed.pip:
        name, _, release = line.partition("==")
        found[name] = release
    for line in installed.conda:
        name, _, release = line.partition("=")
        found[f"conda {name}"] = release
    return found | ({"python": installed.python} if installed.python else {})


def _differences(by_label: Mapping[str, Mapping[str, str]]) -> list[RunDifference]:
    """Settings of a trainer that not all have are compared among those that have it."""
    having = [
        label for label, table in by_label.items() if any(key.startswith(_TRAINER) for key in table)
    ]
    found = []
    for key in dict.fromkeys(key for table in by_label.values() for key in table):
        values = {label: table.get(key) or ABSENT for label, table in by_label.items()}
        if len({values[label] for label in (having if key.startswith(_TRAINER) else values)}) > 1:
            found.append(RunDifference(key=key, values=values))
    return found
