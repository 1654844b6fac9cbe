"""What fsdpkit's agents would have found and decided: the only place that asks their code.

The scene is of the case, each judgement the package's own: which failure of a node comes first,
whom a hang is blamed on, what the reports of all nodes come to, and what the batch shell makes of
that. The clock is the scene's.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from msgspec import structs

from fsdpkit.config.retry import Retry
from fsdpkit.launching import ending as batch_shell
from fsdpkit.launching.heartbeats import RankHeartbeats, RankProcess
from fsdpkit.launching.link import HeadLostError
from fsdpkit.launching.node_failure import (
    first_failure,
    hang_failure,
    own_failure,
    record_failure,
)
from fsdpkit.launching.policy import (
    EndAttempt,
    JobFacts,
    Report,
    after_attempt,
    after_launch,
    first_trouble,
)
from fsdpkit.runs import outcomes
from fsdpkit.runs.failures import HEAD_SILENT, FailureRecord
from fsdpkit.runs.layout import AttemptPaths, TaskPaths
from fsdpkit.runs.outcomes import AttemptVerdict, Ending, Trouble
from tests.reporting.unseen.case import Case, Rank

LOOK_S = 0.1
"""How often torchelastic looks after its ranks."""
SETTLE_S = 3.0
"""How long the head waits for other nodes' reports."""
LASTED_S = 900.0
"""How long the ranks ran until the first ended."""
RETRY = Retry(
    on_time_limit="stop",
    on_preemption="stop",
    on_node_failure="stop",
    on_crash="stop",
    on_hang="stop",
    on_out_of_memory="stop",
)
_NO_PROCESS = 2**22 + 1
"""Above the highest process id that Linux gives."""


@dataclass(frozen=True)
class Scene:
    """Where and when: the directory of the attempt, and Unix time of the first rank's end."""

    case: Case
    attempt: AttemptPaths
    first_end_s: float

    def ended(self, node: int) -> dict[int, Rank]:
        """The ranks of a node that failed by themselves, before their agent ended the others."""
        case = self.case
        failed = {
            rank: case.rank(rank)
            for rank in range(node * case.gpus, (node + 1) * case.gpus)
            if case.rank(rank).status
        }
        if not failed or node in case.lost:
            return {}
        first_s = min(rank.after_s for rank in failed.values())
        if first_s > self._settled_s():
            return {}
        return {r: one for r, one in failed.items() if one.after_s <= first_s + LOOK_S}

    def _settled_s(self) -> float:
        """Until when, after the first end, the head waits for a node's own failure."""
        patience_s = SETTLE_S + (RETRY.lost_s if self.case.lost else 0)
        ends = [one.after_s for r in range(self.case.size) if (one := self.case.rank(r)).status]
        return min(ends, default=0.0) + LOOK_S + patience_s


def report_of(scene: Scene, node: int) -> Report | None:
    """How the launch ended on a node, by its agent, which also puts it on record. None: the agent
    is gone or was ended."""
    case, name = scene.case, scene.case.node_name(node)
    if node in case.lost:
        return None
    if ended := scene.ended(node):
        failure, outcome = _first_failure(scene, ended), "failed"
    elif hung := [r for r in case.hung if r // case.gpus == node and not _anybody_failed(scene)]:
        failure, outcome = _hang(scene, node, hung), "hung"
    elif _all_done(case):
        return Report(0, node, name, "done", step=case.step)
    else:
        return Report(0, node, name, "interrupted")
    failure = structs.replace(failure, name=name)
    record_failure(failure, scene.attempt, node, name)
    return Report(0, node, name, cast(Any, outcome), failure, case.step)


def verdict_of(scene: Scene, reports: list[Report]) -> AttemptVerdict | None:
    """How the head node's agent ended the attempt. None: it was gone, or had nothing to judge."""
    case = scene.case
    if 0 in case.lost:
        return None
    lost = [case.node_name(node) for node in case.lost]
    heard = [report for report in reports if report.outcome != "interrupted"]
    trouble = first_trouble(heard, lost, LASTED_S)
    if trouble is None:
        return AttemptVerdict() if len(heard) == case.nodes else None
    decision = after_launch(trouble, [], RETRY, most=RETRY.restarts, spares=0)
    assert isinstance(decision, EndAttempt)
    return AttemptVerdict(trouble=trouble, why=decision.why, earlier=(trouble,))


def ending_of(scene: Scene, run: Path, job_id: str, status: int) -> Ending:
    """What the batch shell does with the job once srun is over with this status."""
    environment = {
        "FSDPKIT_RUN_DIR": str(run),
        "FSDPKIT_NODES": str(scene.case.nodes),
        "SLURM_JOB_ID": job_id,
        "SLURM_RESTART_COUNT": "0",
    }
    task = TaskPaths(run)
    with patch.dict(os.environ, environment):
        os.environ.pop("SLURM_ARRAY_JOB_ID", None)
        facts = batch_shell.gather(status, JobFacts(requeue=False), scene.attempt, task, RETRY)
    return after_attempt(facts, RETRY)


def record_lost_head(scene: Scene, node: int) -> None:
    """What another node's agent puts on record when the head node's does not answer."""
    words = f"the head node's agent does not answer any more, for {RETRY.lost_s} s"
    time_ns = int((scene.first_end_s + RETRY.lost_s) * 1e9) + node
    failure = own_failure(HeadLostError(words), HEAD_SILENT)
    failure = structs.replace(failure, time_ns=time_ns)
    record_failure(failure, scene.attempt, node, scene.case.node_name(node))


def write(path: Path, record: AttemptVerdict | Ending) -> None:
    outcomes.write(path, record)


def said(trouble: Trouble | None) -> tuple[int, str]:
    """Status and last words of each agent by this verdict."""
    return (trouble.status, trouble.message) if trouble else (0, "")


def _anybody_failed(scene: Scene) -> bool:
    return any(scene.case.rank(rank).status for rank in range(scene.case.size))


def _all_done(case: Case) -> bool:
    """Ranks of which nothing is said are done, too, in a job that Slurm calls completed."""
    statuses = {case.rank(rank).status for rank in range(case.size)}
    return statuses == {0} or (case.slurm.startswith("COMPLETED") and statuses <= {0, None})


def _first_failure(scene: Scene, ended: Mapping[int, Rank]) -> FailureRecord:
    """What the agent reports of the ranks that torchelastic found ended."""
    found = {rank: _process_failure(scene, rank, one) for rank, one in ended.items()}
    first_s = scene.first_end_s + min(one.after_s for one in ended.values())
    now_ns = int((first_s + LOOK_S) * 1e9) + min(ended)
    with patch("time.time_ns", return_value=now_ns):
        failed = cast(Any, SimpleNamespace(failures=found))
        return first_failure(failed, scene.attempt, 0, scene.attempt.dir)


def _process_failure(scene: Scene, rank: int, one: Rank) -> SimpleNamespace:
    """The same as torchelastic's ProcessFailure, without torch."""
    assert one.status
    killed = one.status - 128 if one.status > 128 else 0
    return SimpleNamespace(
        local_rank=rank % scene.case.gpus,
        exitcode=-killed or one.status,
        signal_name=lambda: signal.Signals(killed).name,
    )


def _hang(scene: Scene, node: int, hung: list[int]) -> FailureRecord:
    case = scene.case
    rank_heartbeats = RankHeartbeats.__new__(RankHeartbeats)
    rank_heartbeats._beats = dict(_beats(case, node))
    rank_heartbeats.ranks = list(rank_heartbeats._beats)
    found = f"rank {hung[0]} made no step for {RETRY.hang_s} s (after step {case.step or 0})"
    with patch("time.time_ns", return_value=int(scene.first_end_s * 1e9) + node):
        return hang_failure(found, rank_heartbeats.blame(scene.attempt, 0))


def _beats(case: Case, node: int) -> Iterator[tuple[RankProcess, Any]]:
    for local in range(case.gpus):
        yield RankProcess(local, node * case.gpus + local, _NO_PROCESS), None
