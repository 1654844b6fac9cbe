"""What came of a function as a job: what its ranks returned, or the first that raised.

The other half, how such a job is submitted, is functions.py.
"""

from __future__ import annotations

import re
from typing import Any

from fsdpkit.errors import FunctionError, NotFoundError, StorageError, UsageError
from fsdpkit.runs import calls, outcomes
from fsdpkit.runs.calls import CallFailure
from fsdpkit.runs.layout import AttemptPaths
from fsdpkit.scheduling.opened import OpenRun
from fsdpkit.scheduling.states import JobState


def returned(run: OpenRun) -> list[Any]:
    """What each rank returned, by rank; waits for the end. Raises FunctionError if one did not,
    UsageError if the run is not of a function, StorageError."""
    if not run.paths.call.exists():
        raise UsageError(f"run {run.id} was not started by fsdpkit.run: it returns nothing")
    return results_of(run, run.wait())


def results_of(run: OpenRun, state: JobState) -> list[Any]:
    """The same of a run that has ended, in this state."""
    newest = run.newer()
    ranks = newest.record.nodes * newest.record.ranks_per_node
    try:
        attempt = newest.newest_attempt()
    except NotFoundError:
        raise FunctionError(f"{run.id} did not start: {state.describe()}") from None
    if not state.succeeded:
        raise _failure(run, state, attempt, ranks)
    return [result_of(run, attempt, rank) for rank in range(ranks)]


def result_of(run: OpenRun, attempt: AttemptPaths, rank: int) -> Any:
    """What one rank left there. Raises FunctionError if it is nothing, StorageError."""
    try:
        return calls.read_result(attempt, rank)
    except FileNotFoundError:
        raise FunctionError(
            f"rank {rank} of {run.id} ended without returning, as os._exit would", rank=rank
        ) from None
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"{attempt.result(rank)} cannot be read: {error.strerror or error}"
        ) from error
    except Exception as error:
        raise FunctionError(
            f"what rank {rank} of {run.id} returned cannot be loaded here "
            f"({type(error).__name__}: {error}): return what this machine can load, such as "
            f"tensors on the CPU",
            rank=rank,
        ) from error


def _failure(run: OpenRun, state: JobState, attempt: AttemptPaths, ranks: int) -> FunctionError:
    """Of the rank that the agents found to have failed first, else of the first that says so."""
    verdict = outcomes.read(attempt.verdict, outcomes.AttemptVerdict)
    blamed = verdict.trouble.message if verdict and verdict.trouble else ""
    named = re.match(r"rank ([0-9]+) on ", blamed)
    raised = calls.read_raised(attempt, ranks)
    if named:
        raised = [one for one in raised if one.rank == int(named[1])]
    if not raised:
        rank = int(named[1]) if named else None
        words = blamed or state.describe()
        return FunctionError(f"{words}; more: fsdpkit diagnose {run.id}", rank=rank)
    return error_of(run, raised[0])


def error_of(run: OpenRun, first: CallFailure) -> FunctionError:
    """What a rank recorded, as an error of this process."""
    text = f"rank {first.rank} of {run.id} {'raised ' * (first.kind == 'raised')}{first.message}"
    if first.kind in ("raised", "function"):
        text += f"\n\n{first.traceback.rstrip()}"
    return FunctionError(text, rank=first.rank, traceback=first.traceback)
