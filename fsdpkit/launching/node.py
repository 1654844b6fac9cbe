"""One node's part of a run, from the first check to the last rank's end.

`LaunchNode` is what submitit unpickles and calls. The torchrun command stands in the script, not
in the pickle, so that a requeued attempt runs what the script says.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdpkit.errors import STOPPED_EARLY, FsdpkitError, NodeError
from fsdpkit.launching.preflight import compare_nodes, run_checks
from fsdpkit.launching.sampling import sampling
from fsdpkit.runs.events import JsonLines
from fsdpkit.runs.layout import AttemptPaths

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure


class TrainingEnded(FsdpkitError):
    """The training ended with a status other than 0, which the job ends with, too."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_code = status


@dataclass(frozen=True)
class Failure:
    """One failure on this node: `time_ns` decides which of a run's failures came first."""

    status: int
    message: str
    time_ns: int
    rank: int | None = None


@dataclass(frozen=True)
class LaunchNode:
    """Callable for submitit: runs the torchrun command on this process's command line."""

    def __call__(self) -> dict[str, Any]:
        return run_node(torchrun_arguments(sys.argv[1:]), os.environ)


def torchrun_arguments(argv: list[str]) -> list[str]:
    """What follows `-- torchrun`. Raises NodeError if the script calls the agent otherwise."""
    if argv[:2] != ["--", "torchrun"]:
        raise NodeError(f"the agent is called as: … -- torchrun ARGUMENTS, not with {argv[:3]}")
    return argv[2:]


def run_node(arguments: list[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Check this node, run torchrun, record what happened.

    Returns a summary for submitit's results. Raises TrainingEnded with the status to exit with.
    """
    name = environ.get("SLURMD_NODENAME") or socket.gethostname()
    node = int(environ["SLURM_NODEID"])
    attempt = AttemptPaths(Path(environ["FSDPKIT_ATTEMPT_DIR"]))
    try:
        findings = run_checks(environ)
        events = JsonLines(attempt.node_events(node))
        compare_nodes(attempt, node, name, findings["software"])
    except (NodeError, OSError) as error:
        message = f"check before training failed: {error}"
        failure = Failure(NodeError.exit_code, message, time.time_ns())
        raise _record_failure(failure, attempt, node, name) from error
    events.write(event="node-ready", node=name, pid=os.getpid(), **findings)
    print(f"fsdpkit: {name}: ready, {_in_words(findings)}", flush=True)
    started = time.monotonic()
    try:
        with sampling(attempt.node_samples(node), float(environ.get("FSDPKIT_SAMPLE_S", "10"))):
            failure_or_none = _train(arguments, attempt)
    except BaseException as error:
        failure_or_none = Failure(1, f"{type(error).__name__}: {error}", time.time_ns())
        raise _record_failure(failure_or_none, attempt, node, name) from error
    finally:
        events.write(event="node-ended", node=name, seconds=round(time.monotonic() - started, 1))
    if failure_or_none is not None:
        failure = failure_or_none
        events.write(
            event="failure", rank=failure.rank, status=failure.status, message=failure.message
        )
        raise _record_failure(failure, attempt, node, name)
    return {"node": name, "seconds": round(time.monotonic() - started, 1), **findings}


def _in_words(findings: Mapping[str, Any]) -> str:
    software = findings["software"]
    gpus = findings["gpus"]
    parts = [f"torch {software['torch']}", f"{findings['run_directory_free_gb']:.0f} GB free"]
    return ", ".join(parts if gpus is None else [*parts, f"{gpus} GPUs"])


def _train(arguments: list[str], attempt: AttemptPaths) -> Failure | None:
    """torchrun's end as a failure, or None if all ranks ended with status 0."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from fsdpkit.launching.ranks import run_torchrun

    try:
        run_torchrun(arguments, attempt)
    except ChildFailedError as error:
        return first_failure(error)
    except SignalException as error:
        return Failure(128 + int(error.sigval), f"ended by {error.sigval.name}", time.time_ns())
    return None


_MONITOR_NS = 100_000_000  # torchrun looks after its ranks every tenth of a second


def first_failure(error: ChildFailedError) -> Failure:
    """The failure that came first among this node's ranks.

    torchelastic keeps whole seconds; the error file's own time is finer. A rank that ended without
    a file did so at most one look before now.
    """
    now_ns = time.time_ns()

    def at_ns(failure: ProcessFailure) -> int:
        try:
            return os.stat(failure.error_file).st_mtime_ns
        except OSError:
            return now_ns - _MONITOR_NS

    rank, first = min(error.failures.items(), key=lambda item: at_ns(item[1]))
    status = 128 - first.exitcode if first.exitcode < 0 else first.exitcode
    if status == STOPPED_EARLY:
        message = "stopped early as asked, after saving a checkpoint"
    elif told := _told_by_rank(first):
        message = told
    elif first.exitcode < 0:
        message = f"ended by signal {-first.exitcode} ({first.signal_name()})"
    else:
        message = f"exit status {first.exitcode}"
    return Failure(status or 1, message, at_ns(first), rank)


def _told_by_rank(failure: ProcessFailure) -> str | None:
    """The exception in the rank's error file; None if it wrote none (torch then says <NONE>)."""
    told = failure.error_file_data.get("message")
    text = told.get("message") if isinstance(told, dict) else None
    return str(text).strip() if text else None


def _record_failure(failure: Failure, attempt: AttemptPaths, node: int, name: str) -> TrainingEnded:
    """Write the failure where the batch shell looks for the first one; the exception to raise."""
    who = name if failure.rank is None else f"rank {failure.rank} on {name}"
    line = f"{who}: {failure.message}"
    rank = "" if failure.rank is None else f"-rank-{failure.rank}"
    path = attempt.failures / f"{failure.time_ns:020}-node-{node}{rank}"
    try:
        path.write_text(f"{failure.status} {line}\n", encoding="utf-8")
    except OSError as error:
        line += f" (and {path} cannot be written: {error.strerror})"
    return TrainingEnded(line, failure.status)
