"""What bfloat16 weights cost in loss: `python benchmarks/rounding.py`, some minutes on a CPU.

The demo's T5 trains on Python's documentation from the same first weights with float32 weights, and
with bfloat16 ones under each rounding: at a rate whose updates bfloat16 can mostly hold, and at one
whose updates it rounds away. Everything else computes in float32, so that only the weights and the
optimizer's averages differ. Compared is the held-out loss, median of the seeds; every seed's is
kept in results/rounding-<machine>.json. `--quick` tries each once and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measured import measured  # noqa: E402
from benchmarks.report import Figure, finish, ratio  # noqa: E402

TRAINER = ROOT / "examples" / "T5-fsdp" / "fsdp_t5.py"
STEPS, SEEDS, BATCH = 100, (1, 2), 8
RATES = {
    "large updates": ("optimizer.lr=4e-3",),
    "small updates": ("optimizer.lr=1e-4", "optimizer.schedule=constant"),
}
MASTERS = {
    "stochastic": ("precision.master=bfloat16", "optimizer.rounding=stochastic"),
    "compensated": ("precision.master=bfloat16", "optimizer.rounding=compensated"),
    "nearest": ("precision.master=bfloat16", "optimizer.rounding=nearest"),
}
MOST_COST, SEEN_COST = 1.01, 1.02
"""Times float32's loss: at most, with the two remedies; at least, when small updates are rounded to
nearest, or the measurement could not see a loss."""


def held_out_loss(sets: Sequence[str], seed: int, steps: int) -> float:
    """Train in a process of its own, one rank; nats a target token."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    words = [
        *(f"steps={steps}", f"batch_size={BATCH}", f"seed={seed}", "precision.param=float32"),
        *("evaluation.batches=16", "checkpoint.every_steps=0", "checkpoint.at_end=false"),
        *("data.held_out=0.1", *sets),
    ]
    with tempfile.TemporaryDirectory(prefix="fsdpkit-rounding-") as directory:
        done = subprocess.run(
            [sys.executable, str(TRAINER), *(w for word in words for w in ("--set", word))],
            env={
                **os.environ,
                **alone,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "0",
                "OMP_NUM_THREADS": "1",
                "FSDPKIT_TASK_DIR": directory,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        lines = (Path(directory) / "metrics.jsonl").read_text("utf-8").splitlines()
    losses = [line["eval_loss"] for line in map(json.loads, lines) if "eval_loss" in line]
    print(f"  seed {seed}, {', '.join(sets)}: {losses[-1]:.4f}", file=sys.stderr)
    return float(losses[-1])


def figures(steps: int, seeds: Sequence[int]) -> list[Figure]:
    rows = []
    for size, rate in RATES.items():
        exact = [held_out_loss(rate, seed, steps) for seed in seeds]
        for rounding, words in MASTERS.items():
            if rounding == "nearest" and size == "large updates":
                continue
            lossy = [held_out_loss([*rate, *words], seed, steps) for seed in seeds]
            rows.append(
                ratio(
                    f"{size.split()[0]}-{rounding}",
                    f"bfloat16 weights, {rounding}, {size}: held-out loss",
                    "float32 weights",
                    "≥" if rounding == "nearest" else "≤",
                    SEEN_COST if rounding == "nearest" else MOST_COST,
                    (lossy, exact),
                    "nats",
                )
            )
    return rows


def spread(rows: Sequence[Figure]) -> str:
    """How far seeds are apart under float32 weights, beside which a difference is to be seen."""
    told = []
    for size in RATES:
        row = next(r for r in rows if r.name.startswith(size.split()[0]))
        losses = row.samples["theirs"]
        told.append(f"{size} {min(losses):.3f} to {max(losses):.3f}")
    rates = "; ".join(f"{size}: {', '.join(words)}" for size, words in RATES.items())
    return (
        f"The demo's T5, {STEPS} steps of {BATCH} rows, median of {len(SEEDS)} seeds ({rates}). "
        f"float32 weights alone, over the seeds: {', '.join(told)}. Instead of float32's 16 "
        "bytes per parameter for weight, gradient and optimizer, stochastic takes 8 and "
        "compensated 10."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what bfloat16 weights cost in loss.")
    parser.add_argument("--quick", action="store_true", help="each once, ten steps; write nothing")
    arguments = parser.parse_args()
    steps, seeds = (10, SEEDS[:1]) if arguments.quick else (STEPS, SEEDS)
    rows = figures(steps, seeds)
    result: dict[str, Any] = {
        "measured": measured("fsdpkit", "torch"),
        "figures": [asdict(row) for row in rows],
        "notes": [spread(rows)],
        "deviation": {r.name: statistics.pstdev(r.samples["ours"]) for r in rows},
    }
    path = HERE / "results" / f"rounding-cpu-{os.cpu_count()}.json"
    return finish(result, None if arguments.quick else path)


if __name__ == "__main__":
    sys.exit(main())
