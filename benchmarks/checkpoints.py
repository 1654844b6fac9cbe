"""What a checkpoint costs a training run: `python benchmarks/checkpoints.py`.

T5 v1.1-small trains on two ranks and is saved in turns, in the background and not, by fsdpkit's
Checkpointer and by `torch.distributed.checkpoint` used plainly: the same state and the same copy,
but no checksums, no draft that is renamed when it is whole, no claim on the directory. How long
training waits, how long until it is on disk, and how fast steps are meanwhile come from one
process, each save after undisturbed steps of its own. Then it is verified and resumed.

Writes results/checkpoints-<machine>.json and the table in README.md; `--quick` tries everything
once with a tiny model and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from benchmarks.markdown import markdown, mib, seconds  # noqa: E402
from benchmarks.measured import measured  # noqa: E402
from benchmarks.report import Figure, finish, ratio, with_load  # noqa: E402

RANKS = 2
SMALL = ("model.preset=t5-v1.1-small",)
TINY = (
    "model.d_model=32",
    "model.d_ff=64",
    "model.d_kv=8",
    "model.num_heads=4",
    "model.vocab_size=64",
)
COMMON = ("precision.param=float32", "model.dropout_rate=0", "optimizer.lr=1e-4")

WAYS = {
    "background": "fsdpkit, `background = true`",
    "plain_background": "`torch.distributed.checkpoint.async_save`",
    "waiting": "fsdpkit, `background = false`",
    "plain_waiting": "`torch.distributed.checkpoint.save`",
}
COMPARED = (
    # what is measured, of ours, beside the plain way, in words, at most so many times as long
    ("blocked_s", "background", "plain_background", "a save in the background: time that training "
     "is blocked", 1.25),
    ("written_s", "background", "plain_background", "a save in the background: time until it is "
     "on disk", 1.2),
    ("blocked_s", "waiting", "plain_waiting", "a save while training waits: time that training is "
     "blocked", 1.1),
)  # fmt: skip

Samples = Sequence[Mapping[str, Any]]


def start(
    what: str, ranks: int, directory: Path, rounds: int, steps: int, words: Sequence[str]
) -> list[dict[str, Any]]:
    """Run checkpoint_ranks.py; what each rank found. Raises RuntimeError with its output."""
    argv = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(ranks), str(HERE / "checkpoint_ranks.py")),
        *(what, str(directory), str(rounds), str(steps), *words),
    ]
    outer = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    environ = {k: v for k, v in os.environ.items() if k not in outer and k != "FSDPKIT_TASK_DIR"}
    done = subprocess.run(
        argv,
        env={**environ, "OMP_NUM_THREADS": "1"},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3600,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout[-6000:]}")
    print(f"  {what} on {ranks} rank{'s' if ranks > 1 else ''}: done", file=sys.stderr)
    found = [directory / f"{what}-{ranks}-rank-{rank}.json" for rank in range(ranks)]
    return [json.loads(path.read_text("utf-8")) for path in found]


def slowdown(sample: Mapping[str, Any]) -> float | None:
    """Mean time of a step while the save was written over the median of those before it."""
    if not sample["steps_s"]:
        return None
    undisturbed_s: float = statistics.median(sample["before"]["steps_s"])
    return statistics.fmean(sample["steps_s"]) / undisturbed_s


def median_slowdown(samples: Samples) -> float | None:
    found = [s for s in map(slowdown, samples) if s is not None]
    return statistics.median(found) if found else None


def figures(saved: Mapping[str, Samples]) -> list[Figure]:
    """What the guarantees cost: ours beside the plain way to save, of the same process."""
    rows = []
    for key, ours, plain, what, target in COMPARED:
        samples = tuple([sample[key] for sample in saved[way]] for way in (ours, plain))
        name = f"{key.removesuffix('_s')}-{ours}"
        rows.append(ratio(name, what, WAYS[plain], "≤", target, (samples[0], samples[1]), "s"))
    return rows


def costs(ranks: Sequence[Mapping[str, Any]]) -> str:
    """The table of all ways to save; memory is that of the fullest rank."""
    rows = []
    for way, shown in WAYS.items():
        samples: Samples = ranks[0][way]
        slow = median_slowdown(samples)
        rows.append(
            (
                shown,
                seconds(statistics.median(s["blocked_s"] for s in samples)),
                seconds(statistics.median(s["written_s"] for s in samples)),
                "" if slow is None else f"{slow:.2f} ×",
                mib(peak(ranks, way)),
            )
        )
    undisturbed = [
        s for way in WAYS for sample in ranks[0][way] for s in sample["before"]["steps_s"]
    ]
    step = f"1 × ({seconds(statistics.median(undisturbed))})"
    rows.append(("no save", "", "", step, mib(peak(ranks, "background", "before"))))
    columns = ("Save", "Blocked", "On disk after", "Steps meanwhile", "Peak host memory a rank")
    return markdown(columns, rows)


def peak(ranks: Sequence[Mapping[str, Any]], way: str, *inside: str) -> float:
    """Of the fullest rank, the median over rounds, in bytes."""
    each: list[float] = []
    for rank in ranks:
        samples = rank[way]
        for key in inside:
            samples = [sample[key] for sample in samples]
        each.append(statistics.median(sample["host_peak_bytes"] for sample in samples))
    return max(each)


def sizes(
    ranks: Sequence[Mapping[str, Any]], resumed: Mapping[int, Sequence[Mapping[str, Any]]]
) -> str:
    size, parameters = ranks[0]["background"][-1]["bytes"], ranks[0]["parameters"]
    verify = statistics.median(resumed[1][0]["verify_s"])
    slowest = {n: [max(s) for s in zip(*(r["resume_s"] for r in each), strict=True)]
               for n, each in resumed.items()}  # fmt: skip
    again = {n: seconds(statistics.median(each)) for n, each in slowest.items()}
    return (
        f"A checkpoint of {parameters:,} parameters and AdamW's two moments is "
        f"{size / 1e6:,.1f} MB: {size / parameters:.2f} bytes per parameter. Verified by one "
        f"process in {seconds(verify)}; resumed, every byte verified, on {RANKS} ranks in "
        f"{again[RANKS]} and on 1 rank from the files of {RANKS} in {again[1]}."
    )


def measure(words: Sequence[str], rounds: int, steps: int) -> dict[str, Any]:
    """Everything that the result file holds."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="fsdpkit-bench-") as name:
        directory = Path(name)
        saved = start("save", RANKS, directory, rounds, steps, words)
        resumed = {n: start("resume", n, directory, rounds, steps, words) for n in (RANKS, 1)}
    return {
        "measured": measured("torch"),
        "figures": with_load(figures(saved[0]), load),
        "notes": [costs(saved), sizes(saved, resumed)],
        "samples": {"saved": saved, "resumed": resumed},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what a checkpoint costs.")
    parser.add_argument("--quick", action="store_true", help="once, tiny; write no results")
    parser.add_argument(
        "--machine", default=f"cpu-{os.cpu_count()}", help="name in the result's file name"
    )
    parser.add_argument("--rounds", type=int, default=5, help="saves of each way")
    arguments = parser.parse_args()
    if arguments.quick:
        result = measure((*TINY, *COMMON), 1, 2)
    else:
        result = measure((*SMALL, *COMMON), arguments.rounds, 5)
    path = HERE / "results" / f"checkpoints-{arguments.machine}.json"
    return finish(result, None if arguments.quick else path)


if __name__ == "__main__":
    sys.exit(main())
