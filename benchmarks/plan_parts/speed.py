"""Published runs predicted from one of each system: `python benchmarks/plan.py --only speed`.

published.json holds the facts: models, systems, and each row's settings and rate as its source has
them. One row of a system calibrates it, all others that our model covers are predicted; a row it
does not cover, such as one with tensor parallelism, stays in the table and says why. Nothing else
is fitted to any row: rates begin with data sheets and assumptions (`planning/efficiency.py`).
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fsdpkit.config.training.presets import PRESETS
from fsdpkit.planning.efficiency import UncertainValue, machine_for
from fsdpkit.planning.speed import FOUR_OF_FIVE
from fsdpkit.planning.speed_calibration import (
    MeasuredStep,
    SpeedCalibration,
    calibrated,
    doubt_of,
    uncalibrated,
)
from fsdpkit.planning.speed_layers import Sharded
from fsdpkit.planning.speed_models import Decoder, decoder_work, t5_work
from fsdpkit.planning.speed_schedule import simulate
from fsdpkit.planning.work import StepWork

PUBLISHED = Path(__file__).with_name("published.json")

Facts = Mapping[str, Any]


def work_of_row(row: Facts, system: Facts, models: Facts) -> StepWork:
    facts = {**system["defaults"], **row}
    sharded = Sharded(
        ranks=facts["gpus"],
        ranks_per_node=min(facts["gpus"], system["gpus_per_node"]),
        strategy=facts.get("strategy", "full_shard"),
        recompute=facts.get("recompute", "none"),
        accumulation=facts.get("accumulation", 1),
        reduces_each=facts.get("reduces_each", False),
        reduce_bytes=facts.get("reduce_bytes", 4),
    )
    rows, length, compiled = facts["rows"], facts["length"], facts.get("compiled", False)
    if "target" in facts:
        return t5_work(
            PRESETS[facts["model"]],
            sharded,
            rows=rows,
            source=length,
            target=facts["target"],
            compiled=compiled,
        )
    model = Decoder(**models[facts["model"]])
    return decoder_work(model, sharded, rows=rows, length=length, compiled=compiled)


def measured_step_s(row: Facts, work: StepWork) -> float:
    if "samples_per_s_per_gpu" in row:
        return float(work.samples / row["samples_per_s_per_gpu"])
    return float(work.tokens / row["tokens_per_s_per_gpu"])


def calibration_of(system: Facts, models: Facts) -> SpeedCalibration:
    machine = machine_for(system["gpu"], system["network_gb_s"])
    if "memory_tb_s" in system:
        memory = UncertainValue(0.8e12 * system["memory_tb_s"], 1.15, "80 % of what was published")
        machine = machine.replace(memory_bytes=memory)
    if "attention_share" in system:
        machine = machine.replace(attention_share=UncertainValue(**system["attention_share"]))
    row = next(row for row in system["rows"] if row.get("calibrates"))
    work = work_of_row(row, system, models)
    sample = MeasuredStep(work=work, step_s=measured_step_s(row, work), source=system["source"])
    return calibrated(uncalibrated(machine), [sample])


def rows_of(system: Facts, models: Facts) -> Iterator[dict[str, Any]]:
    calibration = calibration_of(system, models)
    rates = calibration.machine.rates()
    for row in system["rows"]:
        shown = {k: v for k, v in row.items() if k != "calibrates"}
        if "not_modelled" in row:
            yield {**shown, "status": "not modelled"}
            continue
        work = work_of_row(row, system, models)
        step = simulate(work, rates)
        measured_s = measured_step_s(row, work)
        doubt = doubt_of(work, calibration)
        yield {
            **shown,
            "status": "calibrates" if row.get("calibrates") else "predicted",
            "measured_s": round(measured_s, 5),
            "predicted_s": round(step.step_s, 5),
            "error": round(measured_s / step.step_s - 1, 4),  # of the rate: work over time
            "factor": round(math.exp(FOUR_OF_FIVE * doubt), 3),
            "bound": max(step.by_cause, key=lambda cause: step.by_cause[cause]),
        }


def summary(rows: Sequence[Facts]) -> dict[str, Any]:
    """Of predicted rows: their number, errors of the rate, and how many ranges held the truth."""
    predicted = [row for row in rows if row["status"] == "predicted"]
    errors = sorted(abs(row["error"]) for row in predicted)
    if not errors:
        return {"predicted": 0}
    inside = [abs(math.log(1 + r["error"])) <= math.log(r["factor"]) for r in predicted]
    return {
        "predicted": len(errors),
        "median_error": round(statistics.median(errors), 4),
        "within_10_percent": sum(error <= 0.1 for error in errors),
        "worst_error": round(errors[-1], 4),
        "in_range": sum(inside),
    }


def measure(quick: bool = False) -> dict[str, Any]:
    """All systems, or the first alone; about a minute and a half."""
    facts = json.loads(PUBLISHED.read_text("utf-8"))
    systems: list[dict[str, Any]] = []
    for system in facts["systems"][: 1 if quick else None]:
        rows = list(rows_of(system, facts["models"]))
        kept = {k: system[k] for k in ("name", "source", "network_source")}
        systems.append({**kept, "rows": rows, "summary": summary(rows)})
    every = [row for system in systems for row in system["rows"]]
    return {
        "plan_speed": "published runs",
        "systems": systems,
        "summary": summary(every),
        "median_of_systems": round(
            statistics.median(
                system["summary"]["median_error"]
                for system in systems
                if system["summary"]["predicted"]
            ),
            4,
        ),
        "left_out": facts["left_out"],
    }
