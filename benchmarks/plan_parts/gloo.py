"""Our own runs on this machine's CPUs, predicted: `python benchmarks/plan.py --only gloo`.

Small T5s train on 1, 2 and 4 gloo ranks. On each number of ranks some sizes calibrate and the
others are predicted. All sizes take turns in the same processes, so that a machine that others use
slows them alike; the load is written down beside the figures. Rates of a CPU begin with guesses
that are in doubt by a factor of four, so what is put to the test is the model's shape.

It is one machine: what one rank has told of computing holds for more of them, by their share of the
cores. Without that, two sizes cannot tell slower computing from messages, and a size that has more
of the one than of the other is predicted wrongly.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.plan_parts.speed import summary
from fsdpkit.config.training import load_settings
from fsdpkit.planning.efficiency import NAMES, MachineRates, UncertainValue, machine_for
from fsdpkit.planning.speed import FOUR_OF_FIVE
from fsdpkit.planning.speed_calibration import (
    MeasuredStep,
    SpeedCalibration,
    calibrated,
    doubt_of,
    uncalibrated,
)
from fsdpkit.planning.speed_schedule import simulate
from fsdpkit.planning.speed_settings import work_of_settings
from fsdpkit.planning.work import StepWork

HERE = Path(__file__).resolve().parent
RANKS = (1, 2, 4)
ROUNDS = 25
"""Seven are too few on a machine that others use: the median is then less sure than the target."""
SIZES: tuple[tuple[str, bool, dict[str, int]], ...] = (
    # (name, whether it calibrates, what differs)
    ("narrow", True, {"d_model": 128, "d_ff": 256, "layers": 2}),
    ("narrow, deep", False, {"d_model": 128, "d_ff": 256, "layers": 6}),
    ("wide", True, {"d_model": 384, "d_ff": 1024, "layers": 2}),
    ("wide, deep", False, {"d_model": 384, "d_ff": 1024, "layers": 4}),
    ("between", False, {"d_model": 256, "d_ff": 512, "layers": 3}),
    ("wide, long", False, {"d_model": 384, "d_ff": 1024, "layers": 2, "source": 256}),
)


def sets_of(size: Mapping[str, int]) -> list[str]:
    dimensions = [f"model.{key}={size[key]}" for key in ("d_model", "d_ff")]
    dimensions += [f"model.{key}={size['layers']}" for key in ("num_layers", "num_decoder_layers")]
    return [
        *("model.preset=t5-v1.1-small", "model.vocab_size=1024", "model.dropout_rate=0"),
        *("model.num_heads=4", "model.d_kv=32", "batch_size=4", "data.target_length=32"),
        *(f"data.source_length={size.get('source', 128)}", "compile=false"),
        *("precision.param=float32", *dimensions),
    ]


_SLOWED = ("float32_flops", "peak_flops", "memory_bytes")


def guessed() -> MachineRates:
    """Guesses, each in doubt by four. Messages take the cores that compute: nothing hides them."""
    guesses = {
        "peak_flops": 60e9,
        "float32_flops": 60e9,
        "matmul_share": 0.6,
        "matmul_ramp_flops": 1e6,
        "attention_share": 0.2,
        "memory_bytes": 5e9,
        "kernel_s": 10e-6,
        "in_node_bytes": 1e9,
        "in_node_latency_s": 100e-6,
        "collective_s": 200e-6,
    }
    values = {name: UncertainValue(value, 4.0, "a guess") for name, value in guesses.items()}
    base = machine_for("h100")  # what a CPU run has no part of stays as it is
    values["launch_s"] = UncertainValue(1e-9, 1.0, "a CPU computes as it is told to")
    values["contention"] = UncertainValue(1.0, 1.0, "messages and computing share the cores")
    return MachineRates("this CPU", {name: values.get(name, base.values[name]) for name in NAMES})


def shared(alone: SpeedCalibration, ranks: int) -> SpeedCalibration:
    """What one rank alone has told, for several that share the cores."""
    share = min(1.0, (os.cpu_count() or 1) / ranks)
    known = {name: alone.machine.values[name] for name in _SLOWED}
    slowed = {
        name: msgspec.structs.replace(value, value=value.value * share)
        for name, value in known.items()
    }
    return msgspec.structs.replace(alone, machine=alone.machine.replace(**slowed))


def timed(ranks: int, rounds: int) -> list[list[float]]:
    """Seconds of each step of each size."""
    with tempfile.TemporaryDirectory() as folder:
        cases, found = Path(folder) / "cases.json", Path(folder) / "found.json"
        cases.write_text(json.dumps([sets_of(size) for _, _, size in SIZES]), "utf-8")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", str(HERE / "gloo_ranks.py")]
        command += [str(cases), str(found), str(rounds)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        answer: list[list[float]] = json.loads(found.read_text("utf-8"))
        return answer


def rows_of(
    before: SpeedCalibration, ranks: int, seconds: Sequence[Sequence[float]]
) -> tuple[list[dict[str, Any]], SpeedCalibration]:
    """A row for each size, and what is known of the machine when its calibrating sizes are in."""
    works: list[StepWork] = [
        work_of_settings(load_settings({}, sets_of(s)), 1, ranks) for _, _, s in SIZES
    ]
    medians = [statistics.median(each) for each in seconds]
    samples = [
        MeasuredStep(work=work, step_s=median, source=f"{name} on {ranks} ranks")
        for (name, calibrates, _), work, median in zip(SIZES, works, medians, strict=True)
        if calibrates
    ]
    calibration = calibrated(before, samples)
    rows = []
    for (name, calibrates, _), work, each, median in zip(
        SIZES, works, seconds, medians, strict=True
    ):
        predicted = simulate(work, calibration.machine.rates()).step_s
        rows.append({
            "size": name,
            "ranks": ranks,
            "status": "calibrates" if calibrates else "predicted",
            "samples_s": [round(one, 4) for one in each],
            "measured_s": round(median, 4),
            "predicted_s": round(predicted, 4),
            "error": round(median / predicted - 1, 4),
            "factor": round(math.exp(FOUR_OF_FIVE * doubt_of(work, calibration)), 3),
        })  # fmt: skip
    return rows, calibration


def measure(quick: bool = False) -> dict[str, Any]:
    """On every number of ranks; `quick` times one step of each size on one and on two."""
    rows: list[dict[str, Any]] = []
    loads = [os.getloadavg()[0]]
    known = uncalibrated(guessed())
    for ranks in RANKS[: 2 if quick else None]:
        seconds = timed(ranks, 1 if quick else ROUNDS)
        found, calibration = rows_of(shared(known, ranks), ranks, seconds)
        if ranks == 1:
            known = calibration
        rows += found
        loads.append(os.getloadavg()[0])
    return {
        "plan_speed": "own runs on CPUs",
        "measured": {"cpus": os.cpu_count(), "load": [round(load, 1) for load in loads]},
        "rows": rows,
        "summary": summary(rows),
    }
