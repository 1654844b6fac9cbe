"""A sweep as it would lie on disk, and results of it, without a cluster."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.scheduling.states import JobState
from fsdpkit.sweeps.file import SweepFile
from fsdpkit.sweeps.record import SweepPaths, SweepRecord, TrialBatch, save
from fsdpkit.sweeps.results import Result
from fsdpkit.sweeps.space import at_random, parameters

DONE = JobState("COMPLETED", "sacct", exit_code=0, outcome="done")
SPACE = {
    "training": {
        "optimizer": {"lr": {"log_uniform": [1e-5, 1e-2]}, "warmup_steps": {"int": [0, 500]}},
        "seed": [1, 2, 3],
    },
    "args": {"activation": {"choice": ["relu", "gelu"]}},
}


def made_up_sweep(directory: Path, trials: int = 32, **keys: Any) -> tuple[SweepPaths, SweepRecord]:
    """Its record is written; of the runs it names there is none."""
    told = {"schema": "fsdpkit.sweep/1", "name": "lr", "parameters": SPACE, "trials": trials}
    file = msgspec.convert({**told, **keys}, SweepFile)
    paths = SweepPaths(directory / "runs" / "sweeps" / file.name)
    (paths.dir / "rungs").mkdir(parents=True)
    record = SweepRecord(
        name=file.name,
        created_s=1.0,
        file=file,
        work_dir=str(directory),
        sets=[],
        cluster=None,
        trials=list(at_random(parameters(file.parameters), range(trials), file.seed)),
        batches=[TrialBatch(run="lr-20260101-000000-abcd", first=0, trials=trials)],
    )
    save(paths, record)
    return paths, record


def made_up_results(record: SweepRecord) -> list[Result]:
    """The loss depends on lr (the best is 1e-3) and a little on the activation; trial 3 failed."""
    found = []
    for trial, settings in enumerate(record.trials):
        lr = float(settings["training.optimizer.lr"])
        value = 2 + (math.log10(lr) + 2) ** 2 + 0.2 * (settings["args.activation"] == "relu")
        failed = trial == 3
        found.append(
            Result(
                trial=trial,
                run=record.batches[0].run,
                job_id=None,
                state="FAILED" if failed else "COMPLETED",
                over=True,
                succeeded=not failed,
                rung=0,
                step=1000,
                value=None if failed else round(value, 4),
                problem="FAILED, exit status 1" if failed else "",
                settings=dict(settings),
            )
        )
    return found
