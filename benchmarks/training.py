"""T5 trained side by side with its peers: `python benchmarks/training.py`.

Ours, Accelerate's FSDP2 and Lightning's FSDP strategy train the same T5 from the same weights on
the same token ids, in turns (A B C A B C …), so that a slow or busy machine slows all. Medians are
compared; every sample is kept in results/training-cpu-<cores>.json. They must go through the same
losses, or nothing is reported. A second part runs our strategies beside plain DDP.
contestants.py says who they are. It is of CPUs: what a GPU does is in gpu.py.
`--quick` tries every part once and writes nothing.
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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from benchmarks.contestants import (  # noqa: E402
    PAIRS,
    Contestant,
    contestants,
    strategies,
)
from benchmarks.measured import measured  # noqa: E402
from benchmarks.peers.environment import PEERS, peers_python, version  # noqa: E402
from benchmarks.peers.workload import Workload, write_workload  # noqa: E402
from benchmarks.report import Figure, finish, ratio, with_load  # noqa: E402
from benchmarks.training_task import EXAMPLE, ON_CPU, SMALL, write_task  # noqa: E402

MIB = 2**20

# Largest relative difference of a step's loss: rounding, which training amplifies step by step.
SAME_LOSS = {"float32": 5e-6, "bfloat16": 2e-2}
NEAR_LOSS = 5e-2
"""The same for contestants whose weights have fewer bits; rounding.py measures what that costs."""

# glibc then maps each block of at least so many bytes by itself, and unmaps it when it is freed. By
# default it keeps what is freed: three quarters of these processes' memory, more or less by chance.
# It costs speed, so that memory is measured in runs of its own.
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "131072"}


@dataclass(frozen=True)
class Sample:
    """What one start of a contestant found; bytes are of the rank that held the most."""

    tokens_per_s: float
    steps_per_s: float
    start_bytes: int  # peak until the warm-up's end, beyond what was held before the model
    training_bytes: int  # peak while the steps were timed, likewise
    losses: list[float]  # mean over ranks, one a step, warm-up included
    ranks: list[dict[str, Any]]


@dataclass(frozen=True)
class Bench:
    """One workload on disk and where its runs may write."""

    directory: Path
    work: Workload
    extra: Mapping[str, str] = field(default_factory=dict)  # environment variables

    def run(self, contestant: Contestant) -> Sample:
        """Start it on all ranks, wait, and read what they found; RuntimeError with its output."""
        out = Path(tempfile.mkdtemp(prefix=f"{contestant.name}-", dir=self.directory))
        argv = [
            *(contestant.python, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(self.work.ranks)),
            *(str(HERE / "peers" / contestant.script), str(self.directory), str(out)),
            *contestant.words,
        ]
        done = subprocess.run(
            argv,
            env={**environment(), **self.extra},
            cwd=out,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        found = [out / f"rank-{rank}.json" for rank in range(self.work.ranks)]
        if done.returncode != 0 or not all(path.exists() for path in found):
            said = f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout[-6000:]}"
            raise RuntimeError(said)
        sample = read_sample(self.work, [json.loads(path.read_text("utf-8")) for path in found])
        print(
            f"  {contestant.name}: {sample.tokens_per_s:,.0f} tokens/s, "
            f"{sample.training_bytes / MIB:.0f} MiB, last loss {sample.losses[-1]:.6f}",
            file=sys.stderr,
        )
        return sample

    def in_turns(self, count: int, them: Sequence[Contestant]) -> dict[str, list[Sample]]:
        """`count` samples of each; RuntimeError unless all went through the same losses."""
        samples: dict[str, list[Sample]] = {one.name: [] for one in them}
        for _ in range(count):
            for one in them:
                samples[one.name].append(self.run(one))
        exact = {one.name: samples[one.name] for one in them if not one.rounds}
        require_same_work(exact, SAME_LOSS[self.work.precision])
        require_same_work(samples, NEAR_LOSS)
        return samples

    def peaks(self, them: Sequence[Contestant]) -> Mapping[str, list[Sample]]:
        """One short run of each, whose memory means something."""
        with tempfile.TemporaryDirectory(prefix="memory-", dir=self.directory) as name:
            for file in ("config.json", "model.safetensors", "batches.safetensors"):
                (Path(name) / file).symlink_to(self.directory / file)
            work = replace(self.work, warmup_steps=2, steps=2)
            write_workload(Path(name), work)
            return Bench(Path(name), work, GIVES_BACK).in_turns(1, them)


def environment() -> dict[str, str]:
    """Nothing of the person's settings; one thread a rank on a CPU; no network."""
    dropped = (
        "PYTHON",
        "VIRTUAL_ENV",
        "OMP_",
        "MKL_",
        "ACCELERATE_",
        "FSDP",
        "TORCH",
        "PL_",
        "HF_",
    )
    outer = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped) and k not in outer}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(EXAMPLE)]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def read_sample(work: Workload, ranks: list[dict[str, Any]]) -> Sample:
    seconds = max(rank["elapsed_s"] for rank in ranks)
    by_step = zip(*(rank["losses"] for rank in ranks), strict=True)
    return Sample(
        tokens_per_s=work.steps * work.tokens_per_step / seconds,
        steps_per_s=work.steps / seconds,
        start_bytes=max(r["start_peak_bytes"] - r["before_bytes"] for r in ranks),
        training_bytes=max(r["training_peak_bytes"] - r["before_bytes"] for r in ranks),
        losses=[statistics.fmean(losses) for losses in by_step],
        ranks=[{k: v for k, v in rank.items() if k != "losses"} for rank in ranks],
    )


def loss_difference(samples: Mapping[str, Sequence[Sample]]) -> float:
    """The largest difference of one step's loss between any two runs, relative to the loss."""
    runs: list[list[float]] = [sample.losses for each in samples.values() for sample in each]
    spread: list[float] = [
        (max(losses) - min(losses)) / min(losses) for losses in zip(*runs, strict=True)
    ]
    return max(spread)


def require_same_work(samples: Mapping[str, Sequence[Sample]], allowed: float) -> None:
    """Raises RuntimeError for losses that differ by more than `allowed`, relative to the loss."""
    difference = loss_difference(samples)
    if not difference <= allowed:
        raise RuntimeError(
            f"the contestants did not do the same work: their losses differ by {difference:.1e} of "
            f"their size, {allowed:.0e} is rounding"
        )


def compare(bench: Bench, count: int, peers: str) -> tuple[list[Figure], dict[str, Any]]:
    """Rows of speed and memory against each peer, and every sample."""
    them = contestants(peers)
    samples = bench.in_turns(count, them)
    peaks = bench.peaks(them)
    shown = {one.name: one.shown for one in them}
    figures = []
    for ours, peer in PAIRS:
        mine, theirs = samples[ours], samples[peer]
        held = tuple([s.training_bytes / MIB for s in peaks[n]] for n in (ours, peer))
        what, against = f"{shown[ours]} full_shard", shown[peer]
        figures += [
            ratio(
                f"speed-{ours}-{peer}",
                f"{what}: tokens a second",
                against,
                "≥",
                1.0,
                ([s.tokens_per_s for s in mine], [s.tokens_per_s for s in theirs]),
                "tokens/s",
            ),
            ratio(
                f"memory-{ours}-{peer}",
                f"{what}: peak memory a rank",
                against,
                "≤",
                1.0,
                (held[0], held[1]),
                "MiB",
            ),
        ]
    return figures, {
        "loss_difference": loss_difference(samples),
        "last_loss": {name: each[-1].losses[-1] for name, each in samples.items()},
        "samples": {name: [asdict(s) for s in each] for name, each in samples.items()},
        "peaks": {name: [asdict(s) for s in each] for name, each in peaks.items()},
    }


def peak_of(samples: Sequence[Sample]) -> float:
    return statistics.median(s.training_bytes for s in samples)


def compare_strategies(bench: Bench, count: int) -> list[dict[str, Any]]:
    them = strategies()
    samples = bench.in_turns(count, them)
    peaks = bench.peaks(them)
    rows = []
    for one in them:
        each = samples[one.name]
        held = each[0].ranks[0]
        rows.append(
            {
                "name": one.name,
                "what": one.shown,
                "steps_per_s": statistics.median(s.steps_per_s for s in each),
                **{k: held[k] for k in ("parameter_bytes", "gradient_bytes", "optimizer_bytes")},
                "peak_bytes": peak_of(peaks[one.name]),
                "samples": [asdict(s) for s in each],
            }
        )
    return rows


def measure(
    work: Workload, dimensions: Mapping[str, int], rounds: int, turns: int
) -> dict[str, Any]:
    """Everything, as results/training-<machine>.json holds it."""
    peers = peers_python()
    with tempfile.TemporaryDirectory(prefix="fsdpkit-bench-") as name:
        write_task(Path(name), dimensions, work)
        bench = Bench(Path(name), work)
        load = [os.getloadavg()[0]]
        figures, evidence = compare(bench, rounds, peers)
        load.append(os.getloadavg()[0])
        strategy_rows = compare_strategies(bench, turns)
    return {
        "measured": about(peers),
        "figures": with_load(figures, load[0]),
        "strategies": [{**row, "load_before": round(load[1], 2)} for row in strategy_rows],
        "notes": [note(work, dimensions, evidence)],
        "workload": {**asdict(work), "dimensions": dict(dimensions)},
        "evidence": evidence,
    }


def note(work: Workload, dimensions: Mapping[str, int], evidence: Mapping[str, Any]) -> str:
    layers = f"{dimensions['num_layers']} + {dimensions['num_decoder_layers']}"
    losses = ", ".join(f"{name} {loss:.5f}" for name, loss in evidence["last_loss"].items())
    return (
        f"{work.ranks} ranks × {work.batch} rows of {work.source_length} source and "
        f"{work.target_length} target tokens, {layers} blocks of width {dimensions['d_model']}, "
        f"{work.precision}. Loss of the last step: {losses}; over all steps and runs the largest "
        f"difference is {evidence['loss_difference']:.1e} of the loss."
    )


def about(peers: str) -> dict[str, Any]:
    names = [requirement.partition("==")[0] for requirement in PEERS]
    versions = {name: version(peers, name) for name in names}
    if (mine := version(sys.executable, "torch")) != versions["torch"]:
        raise RuntimeError(f"torch {mine} here, {versions['torch']} for the peers: not comparable")
    return measured("fsdpkit", **versions)


def main() -> int:
    parser = argparse.ArgumentParser(description="Train T5 side by side with its peers.")
    parser.add_argument("--quick", action="store_true", help="each part once; write no results")
    arguments = parser.parse_args()
    work, rounds, turns = ON_CPU, 4, 2
    if arguments.quick:
        work, rounds, turns = replace(work, warmup_steps=1, steps=3), 1, 1
    path = HERE / "results" / f"training-cpu-{os.cpu_count()}.json"
    result = measure(work, SMALL, rounds, turns)
    return finish(result, None if arguments.quick else path)


if __name__ == "__main__":
    sys.exit(main())
