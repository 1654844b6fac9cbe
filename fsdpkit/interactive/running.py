"""`fsdpkit.run`: a function on every rank of a job, as if it had been called here."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fsdpkit.errors import FsdpkitError
from fsdpkit.interactive.display import ProgressLine
from fsdpkit.scheduling.functions import submit_function
from fsdpkit.scheduling.returned import results_of

if TYPE_CHECKING:
    from fsdpkit.scheduling.run import Run
    from fsdpkit.scheduling.states import JobState

_TAIL_BYTES = 4096


def run(
    function: Callable[..., Any],
    /,
    *args: Any,
    nodes: int = 1,
    gpus: int = 1,
    **options: Any,
) -> list[Any]:
    """Call `function(*args)` on every rank of a job; what each returned, by rank.

    gpus: ranks per node; the other options are those of `submit_function`. Shows how far the job
    is. Raises FunctionError for the first rank that raised, with its
    traceback, and FsdpkitError. An interrupt (Ctrl-C, a notebook's stop) leaves the job going.

    >>> fsdpkit.run(lambda: os.environ["RANK"], nodes=2, gpus=4)    # doctest: +SKIP
    ['0', '1', '2', '3', '4', '5', '6', '7']
    """
    submitted = submit_function(function, *args, nodes=nodes, gpus=gpus, **options)
    try:
        return results_of(submitted, _watch(submitted))
    except KeyboardInterrupt:
        where = str(submitted.dir)
        print(
            f"fsdpkit: {submitted.id} goes on: fsdpkit.Run.open({where!r}).returned() waits for "
            "it again, .cancel() ends it",
            file=sys.stderr,
        )
        raise


def _watch(submitted: Run) -> JobState:
    """The state at the end; until then one line: the state, since when, what rank 0 last wrote."""
    began_s = time.monotonic()
    with ProgressLine() as line:
        line.show(f"{submitted.id}: submitted as job {submitted.job_id}")

        def tell(state: JobState) -> None:
            elapsed_s = int(time.monotonic() - began_s)
            minutes, seconds = divmod(elapsed_s, 60)
            last = _last_words(submitted) if state.phase != "pending" else ""
            line.show(
                f"{submitted.id}: {state.describe()}",
                f", {minutes}:{seconds:02}{f'; rank 0: {last}' if last else ''}",
            )

        state = submitted.wait(heard=tell)
        line.show(f"{submitted.id}: {state.describe()}")
        return state


def _last_words(submitted: Run) -> str:
    """The last line that rank 0 printed; nothing where there is none to read."""
    from fsdpkit.runs.reading import open_regular

    try:
        with open_regular(submitted.rank_log(0)) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode("utf-8", errors="replace").split("\n")
    except (OSError, FsdpkitError):
        return ""
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
