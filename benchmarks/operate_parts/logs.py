"""Whether `fsdpkit logs --follow --all` keeps up with 64 ranks that all write at once.

One process writes the files of 64 ranks, 200 lines a second each, with the time of writing in each
line, as ranks do that print every micro-batch. The command runs as a person runs it, its output a
pipe, on whose other end the lines are timed again. squeue is a script that says RUNNING.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import Figure
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.record import RunRecord, save

RANKS, LINES_PER_S = 64, 200
_WRITES_PER_S = 20
_REST = "loss 2.3456  grad norm 1.23  lr 1.00e-03  tokens/s 123,456  memory 61.2 GiB"
_BACKLOG_LINES = 20_000
_SQUEUE = """#!/bin/sh
if [ -e {over} ]; then state=COMPLETED; else state=RUNNING; fi
echo "12|$state|None|node[1-8]"
"""
_SACCT = """#!/bin/sh
if [ -e {over} ]; then echo "12|COMPLETED|0:0|0:0|None|node[1-8]|"; fi
"""


def figures(quick: bool) -> list[Figure]:
    """The lag behind the writers, and how fast a backlog is printed."""
    seconds = 3 if quick else 30
    with tempfile.TemporaryDirectory(prefix="fsdpkit-logs-") as work:
        told = followed(_Following(Path(work)), seconds)
    written = RANKS * LINES_PER_S
    lags = sorted(told.lags_s)
    lag_s = lags[int(0.99 * (len(lags) - 1))]
    rates = [_backlog_lines_per_s() for _ in range(1 if quick else 5)]
    rate = statistics.median(rates)
    return [
        Figure(
            "logs-lag",
            f"from written to printed by `fsdpkit logs --follow --all`, {RANKS} ranks × "
            f"{LINES_PER_S} lines/s, the 99th percentile of {len(lags):,} lines",
            None, "seconds", "≤", 1.0, lag_s, None, lag_s,
            samples={"ours": [round(lag, 4) for lag in [*lags[:: len(lags) // 200], lags[-1]]]},
        ),
        Figure(
            "logs-lines",
            "lines printed once and in their file's order",
            "lines that the ranks wrote meanwhile",
            "ratio", "≥", 1.0, told.in_order, told.written, told.in_order / told.written,
            unit="lines", samples={"ours": [told.in_order]},
        ),
        Figure(
            "logs-backlog",
            "lines/s printed of a backlog, against those that the ranks write",
            f"{RANKS} × {LINES_PER_S} lines/s",
            "ratio", "≥", 3.0, rate, written, rate / written, unit="lines/s",
            samples={"ours": [round(rate) for rate in rates]},
        ),
    ]  # fmt: skip


@dataclass
class Told:
    """What came out of the pipe."""

    written: int = 0
    in_order: int = 0
    lags_s: list[float] = field(default_factory=list)


class _Following:
    """A run directory, and the command that follows it."""

    def __init__(self, work: Path) -> None:
        self.run = work / "synthetic-20260921-120000-0000"
        self.attempt = self.run / "attempt-0"
        self.attempt.mkdir(parents=True)
        self.over = work / "over"
        save(RunPaths(self.run), _record(self.run.name))
        bin_dir = work / "bin"
        bin_dir.mkdir()
        for name, text in {"squeue": _SQUEUE, "sacct": _SACCT}.items():
            (bin_dir / name).write_text(text.format(over=self.over))
            (bin_dir / name).chmod(0o755)
        self._path = f"{bin_dir}:{os.environ['PATH']}"

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "fsdpkit", "logs", str(self.run), "--all", "--follow"],
            stdout=subprocess.PIPE,
            env={**os.environ, "PATH": self._path},
        )

    def end(self) -> None:
        """Let squeue say that the job is over, and the batch shell that it ended."""
        self.over.touch()
        (self.attempt / "ending.json").write_text("{}")


def followed(following: _Following, seconds: float) -> Told:
    """Write for so long, and read what is printed."""
    told = Told()
    with following.start() as process:
        assert process.stdout is not None
        reader = threading.Thread(target=_read, args=(process.stdout.fileno(), told))
        reader.start()
        words = [str(Path(__file__).resolve()), "write", str(following.attempt), str(seconds)]
        done = subprocess.run(
            [sys.executable, *words], stdout=subprocess.PIPE, text=True, check=True, env=_with_us()
        )
        following.end()
        reader.join()
    if process.returncode != 0:
        raise RuntimeError(f"fsdpkit logs ended with status {process.returncode}")
    told.written = int(done.stdout)
    return told


def _read(pipe: int, told: Told) -> None:
    """Time every line as it comes out of the pipe."""
    rest, next_number = b"", [0] * RANKS
    while chunk := os.read(pipe, 1 << 20):
        now = time.time()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:  # `rank  5 │ 17 1795295000.123 loss …`
            _, rank, _, number, time_s, *_ = line.split()
            if int(number) == next_number[int(rank)]:
                told.in_order += 1
                next_number[int(rank)] += 1
            told.lags_s.append(now - float(time_s))


def write(attempt: Path, seconds: float) -> int:
    """Append to all ranks' files in small pieces, evenly; how many lines in all."""
    each = LINES_PER_S // _WRITES_PER_S
    files = [open(attempt / f"rank-{r}.out", "ab", buffering=0) for r in range(RANKS)]  # noqa: SIM115
    begun = time.monotonic()
    turns = int(seconds * _WRITES_PER_S)
    for turn in range(turns):
        for file in files:
            now = time.time()
            numbers = range(turn * each, (turn + 1) * each)
            file.write("".join(f"{n} {now:.6f} {_REST}\n" for n in numbers).encode())
        time.sleep(max(0.0, begun + (turn + 1) / _WRITES_PER_S - time.monotonic()))
    for file in files:
        file.close()
    return turns * each * RANKS


def _backlog_lines_per_s() -> float:
    """Lines a second while a long log that is there already is caught up with, start and end of
    the command included."""
    with tempfile.TemporaryDirectory(prefix="fsdpkit-logs-") as work:
        following = _Following(Path(work))
        text = "".join(f"{n} 0 {_REST}\n" for n in range(_BACKLOG_LINES))
        for rank in range(RANKS):
            (following.attempt / f"rank-{rank}.out").write_text(text)
        following.over.touch()
        begun = time.perf_counter()
        with following.start() as process:
            assert process.stdout is not None
            printed = 0
            while chunk := process.stdout.read(1 << 20):
                printed += chunk.count(b"\n")
        taken = time.perf_counter() - begun
    if printed != RANKS * _BACKLOG_LINES:
        raise RuntimeError(f"{printed} lines were printed of {RANKS * _BACKLOG_LINES}")
    return printed / taken


def _record(run_id: str) -> RunRecord:
    return RunRecord(
        id=run_id,
        state="submitted",
        created_s=time.time(),
        name="synthetic",
        site="generic",
        kind="slurm",
        job_id="12",
        nodes=8,
        ranks_per_node=RANKS // 8,
        work_dir="/",
        version="0",
        template="torchrun",
        digests={},
    )


def _with_us() -> dict[str, str]:
    """The environment of a process that can import this package."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


if __name__ == "__main__":
    print(write(Path(sys.argv[2]), float(sys.argv[3])))
