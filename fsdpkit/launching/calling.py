"""A rank of `fsdpkit.run`: loads the function, calls it, records what it returned or raised.

The function's pickle is loaded only if it is the one that was submitted (runs/calls.py). An
exception is raised again after it has been recorded, so agents and `diagnose` see it as they see
that of any script.
"""

from __future__ import annotations

import argparse
import io
import linecache
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from fsdpkit.errors import FsdpkitError
from fsdpkit.runs.calls import Call, CallFailure, forget, read_call, write_raised
from fsdpkit.runs.layout import AttemptPaths, RunPaths, write_atomically


class _TooLarge(Exception):
    """The pickled result has more bytes than may be kept."""


class _Limited(io.BytesIO):
    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > self._most_bytes:
            raise _TooLarge
        return super().write(data)


def main() -> None:
    """Call it; leaves by the function's own exception."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--digest", required=True)
    parser.add_argument("--result-mb", type=int, required=True)
    asked = parser.parse_args()
    attempt = AttemptPaths(Path(os.environ["FSDPKIT_ATTEMPT_DIR"]))
    rank = int(os.environ["RANK"])
    path = RunPaths(Path(os.environ["FSDPKIT_RUN_DIR"])).call
    answer(attempt, rank, lambda: read_call(path, asked.digest), asked.result_mb)


def answer(
    attempt: AttemptPaths, rank: int, read: Callable[[], Call], most_mb: int, *before: Any
) -> None:
    """Make the call, with `before` before its own arguments, and record what came of it. Raises
    what the function raises, SystemExit where it cannot be loaded or its result kept."""
    forget(attempt, rank)
    try:
        function, arguments = _load(read())
    except Exception as error:
        _give_up(attempt, rank, "function", f"the function cannot be loaded: {_words(error)}")
        if isinstance(error, FsdpkitError):
            print(f"fsdpkit: {error}", file=sys.stderr)
            sys.exit(error.exit_code)
        raise
    try:
        result = function(*before, *arguments)
    except SystemExit as left:
        _give_up(attempt, rank, "exit", f"called sys.exit({left.code!r}), so it returned nothing")
        if left.code in (None, 0):
            sys.exit(1)
        raise
    except BaseException as error:
        _give_up(attempt, rank, "raised", _words(error))
        raise
    _keep(attempt, rank, result, most_mb)


def _load(call: Call) -> tuple[Any, tuple[Any, ...]]:
    sys.path[:0] = [place for place in call.path if place not in sys.path]
    if call.source is not None:
        name, lines = call.source
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    function, arguments = pickle.loads(call.function)
    return function, tuple(arguments)


def _words(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _give_up(attempt: AttemptPaths, rank: int, kind: Any, message: str) -> None:
    """Record why nothing is returned; if the disk is full, the exception itself must suffice."""
    raised = CallFailure(
        kind=kind, rank=rank, message=message, traceback=_traceback(), time_ns=time.time_ns()
    )
    try:
        write_raised(attempt, raised)
    except OSError as error:
        print(f"fsdpkit: {attempt.raised(rank)}: {error.strerror}", file=sys.stderr)


def _traceback() -> str:
    """Of the exception that is being handled, from the function on."""
    kind, error, trace = sys.exc_info()
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(kind, error, trace)) if error else ""


def _keep(attempt: AttemptPaths, rank: int, result: Any, most_mb: int) -> None:
    buffer = _Limited(most_mb * 1_000_000)
    try:
        cloudpickle.dump(result, buffer)
    except _TooLarge:
        why = (
            f"returned a {type(result).__name__} of more than {most_mb} MB: let the function write "
            "it to a file and return the path, or raise result_mb"
        )
    except Exception as error:
        why = f"returned a {type(result).__name__}, which cannot be pickled: {_words(error)}"
    else:
        write_atomically(attempt.result(rank), buffer.getvalue())
        return
    _give_up(attempt, rank, "result", why)
    print(f"fsdpkit: rank {rank} {why}", file=sys.stderr)
    sys.exit(1)
