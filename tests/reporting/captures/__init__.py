"""Captures of real failures: run directories as they were left, and what Slurm said of them.

One directory a capture, named after its cause and how it came about: the small files of the run
(ends of the logs, no checkpoints), `scheduler/` with what `squeue`, `sacct` and `scontrol` printed
(`scheduler/before/`: while all was well), and `capture.toml` with what a careful person says of it:
`cause`, `rank`, `node` (missing: there is none to name), and `undecided` with those of the two that
nobody would commit to. `how` is `produced` for what happened just so on the cluster of
tests/slurm_cluster, and `log` where a rank said the words of a public log (`source`), because the
hardware was not there. Paths were changed, and what agents and shells had said in words is now a
record as of today (runs/failures.py).
"""

from __future__ import annotations

import functools
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdpkit.config.loading import read_toml
from fsdpkit.runs.failures import FailureRecord, Level, in_a_line

if TYPE_CHECKING:
    from fsdpkit.reporting.diagnosis.diagnose import Diagnosis

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, eq=False)
class Capture:
    """One capture, wherever it lies."""

    dir: Path
    description: dict[str, Any]

    @classmethod
    def of(cls, directory: Path) -> Capture:
        return cls(directory, read_toml(directory / "capture.toml"))

    def __str__(self) -> str:
        return self.dir.name

    @property
    def cause(self) -> str:
        return str(self.description["cause"])

    @property
    def scheduler(self) -> dict[str, str]:
        """By command: what it printed."""
        return {path.stem: path.read_text() for path in (self.dir / "scheduler").glob("*.txt")}

    def differences(self, diagnosis: Diagnosis) -> list[str]:
        """What the diagnosis says otherwise than a careful person; empty: it is right."""
        said = {"cause": diagnosis.cause, "rank": diagnosis.rank, "node": diagnosis.node}
        undecided = self.description.get("undecided", [])
        return [
            f"{key}: {said[key]!r} instead of {self.description.get(key)!r}"
            for key in said
            if key not in undecided and said[key] != self.description.get(key)
        ]


@functools.cache
def all_captures() -> tuple[Capture, ...]:
    """Those of this directory, by name."""
    return tuple(Capture.of(file.parent) for file in sorted(HERE.glob("*/capture.toml")))


@functools.cache
def diagnosis_of(capture: Capture) -> Diagnosis:
    """What fsdpkit says of it."""
    from fsdpkit.reporting.diagnosis.diagnose import diagnose
    from fsdpkit.reporting.diagnosis.evidence import gather_from

    return diagnose(gather_from(capture.dir, capture.scheduler))


def share_named_right() -> tuple[int, int]:
    """How many captures have their cause, rank and node named right, and how many there are."""
    captures = all_captures()
    right = [capture for capture in captures if not capture.differences(diagnosis_of(capture))]
    return len(right), len(captures)


LOST_PEER = (
    "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
    "Connection closed by peer [10.99.7.2]:40123"
)


def with_noise(capture: Capture, place: Path) -> Capture | None:
    """A copy in which another rank, by its clock, lost its peer before the failure came.

    Clocks of nodes differ, and files appear late. None where nobody recorded a failure.
    """
    failures = sorted(capture.dir.glob("attempt-*/failures/[0-9]*"))
    if not failures:
        return None
    copy = shutil.copytree(capture.dir, place / capture.dir.name)
    newest = failures[-1].parent.relative_to(capture.dir)
    first = min(path.name for path in failures if path.parent.name == newest.name)
    earlier_ns = int(first.partition("-")[0]) - 3_000_000_000
    node, rank = (1, _ranks_per_node(copy)) if _concerns_first_rank(capture) else (0, 0)
    file = copy / newest / f"{earlier_ns:020}-node-{node}-rank-{rank}"
    lost = FailureRecord(
        by="rank",
        name=f"node{node + 1}",
        rank=rank,
        status=1,
        cause="connection-reset",
        level=Level.LOST_PEER,
        words=LOST_PEER,
        time_ns=earlier_ns,
    )
    file.write_text(in_a_line(lost))
    return Capture.of(copy)


def _concerns_first_rank(capture: Capture) -> bool:
    return capture.description.get("node") == "node1" or capture.description.get("rank") == 0


def _ranks_per_node(run: Path) -> int:
    found = re.search(r'"ranks_per_node": (\d+)', (run / "run.json").read_text())
    return int(found[1]) if found else 1
