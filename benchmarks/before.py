"""Is the trainer as fast as it was? `python benchmarks/before.py COMMIT`, some minutes on a CPU.

The reference trainer as it stands here, and as it stood at an earlier commit, train the same T5 on
the same text on two ranks, in turns (A B B A A B …), so that a busy machine slows both. Compared
are the time of a step, from what each run recorded itself, and that from start to end of the
process. Both must count the same target tokens; losses may differ, as first weights may. Kept in
results/before-<machine>.json; `--quick` tries each once and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from benchmarks.peers.environment import version  # noqa: E402
from benchmarks.report import README, ratio, table, with_all_tables  # noqa: E402

STEPS, WARM_UP, RANKS, ROUNDS = 80, 10, 2, 8
SETTINGS = (
    *("steps={steps}", "batch_size=8", "metrics.every_steps=5", "metrics.progress=lines"),
    *("checkpoint.every_steps=0", "checkpoint.at_end=false", "evaluation.batches=0"),
    *("model.preset=tiny-byt5", "precision.param=float32"),
)
MOST_SLOWER = 1.03
"""Two runs of one checkout differ by as much."""


class Timed(NamedTuple):
    step_s: float
    """Median of the means that the run logged, warm-up left out."""
    process_s: float
    tokens: tuple[int, ...]


def timed(checkout: Path, steps: int) -> Timed:
    """Train from `checkout` in processes of its own; RuntimeError with what they said."""
    sets = (word.format(steps=steps) for word in SETTINGS)
    with tempfile.TemporaryDirectory(prefix="fsdpkit-before-") as directory:
        began = time.perf_counter()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", str(RANKS)),
                str(checkout / "examples" / "T5-fsdp" / "fsdp_t5.py"),
                *(word for each in sets for word in ("--set", each)),
            ],
            env={
                **os.environ,
                "PYTHONPATH": str(checkout),  # before the checkout that is installed
                "OMP_NUM_THREADS": "1",
                "FSDPKIT_TASK_DIR": directory,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        process_s = time.perf_counter() - began
        if done.returncode:
            raise RuntimeError(f"{checkout}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        text = (Path(directory) / "metrics.jsonl").read_text("utf-8")
    lines = [line for line in map(json.loads, text.splitlines()) if "step_time_s" in line]
    warm = [line["step_time_s"] for line in lines if line["step"] > WARM_UP] or [
        lines[-1]["step_time_s"]
    ]
    found = Timed(statistics.median(warm), process_s, tuple(line["tokens"] for line in lines))
    shown = f"{1000 * found.step_s:.1f} ms a step, {process_s:.1f} s"
    print(f"  {checkout.name}: {shown}", file=sys.stderr)
    return found


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The files of a commit of this repository, for as long as they are needed."""
    with tempfile.TemporaryDirectory(prefix="fsdpkit-before-") as directory:
        place = Path(directory) / "before"
        place.mkdir()
        archive = subprocess.run(
            ["git", "archive", "--format=tar", commit], cwd=ROOT, capture_output=True, check=False
        )
        if archive.returncode:
            raise RuntimeError(archive.stderr.decode(errors="replace").strip())
        subprocess.run(["tar", "-x", "-C", str(place)], input=archive.stdout, check=True)
        yield place


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the trainer with an earlier commit's.")
    parser.add_argument("commit")
    parser.add_argument("--quick", action="store_true", help="each once; write nothing")
    arguments = parser.parse_args()
    steps, rounds = (WARM_UP, 1) if arguments.quick else (STEPS, ROUNDS)
    now: list[Timed] = []
    then: list[Timed] = []
    load = os.getloadavg()[0]
    with checked_out(arguments.commit) as before:
        for number in range(rounds):
            turns = [(ROOT, now), (before, then)]
            for checkout, found in turns if number % 2 else reversed(turns):
                found.append(timed(checkout, steps))
    if len({run.tokens for run in (*now, *then)}) > 1:
        raise RuntimeError("the runs did not train on the same tokens: not comparable")
    figures = [
        ratio(
            name,
            f"T5 on {RANKS} ranks, {what}",
            f"commit {arguments.commit[:7]}",
            "≤",
            MOST_SLOWER,
            ([getattr(run, name) for run in now], [getattr(run, name) for run in then]),
            "s",
        )
        for name, what in (
            ("step_s", "a step"),
            ("process_s", f"start to end of {steps} steps"),
        )
    ]
    software = {name: version(sys.executable, name) for name in ("fsdpkit", "torch")}
    about = {"date": time.strftime("%Y-%m-%d"), "cpus": os.cpu_count()}
    result: dict[str, Any] = {
        "measured": {**about, "python": platform.python_version(), **software},
        "figures": [{**asdict(figure), "load_before": round(load, 2)} for figure in figures],
        "notes": [f"Median of {rounds} runs of each, alternately; all on the same tokens."],
    }
    print(table(result))
    if not arguments.quick:
        path = HERE / "results" / f"before-cpu-{os.cpu_count()}.json"
        path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
        README.write_text(with_all_tables(README.read_text("utf-8")), "utf-8")
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
