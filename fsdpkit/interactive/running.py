"""`fsdpkit.run`: a function on every rank of a job, as if it had been called here."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fsdpkit.errors import FsdpkitError
from fsdpkit.reporting.printable import printable
from fsdpkit.scheduling.functions import submit_function
from fsdpkit.scheduling.returned import results_of

if TYPE_CHECKING:
    from fsdpkit.scheduling.run import Run
    from fsdpkit.scheduling.states import JobState

_TAIL_BYTES = 4096


def run(
    function: Callable[..., Any], /, *args: Any, nodes: int = 1, gpus: int = 1, **options: Any
) -> list[Any]:
    """Call `function(*args)` on every rank of a job, and wait for what they return.

    One line says how far the job is: in a notebook, on a terminal, or in a log. An interrupt
    (Ctrl-C, a notebook's stop) leaves the job running.

    Args:
        function: Called on each rank, with torchrun's variables (`RANK`, `WORLD_SIZE`, …) set. It
            is pickled (cloudpickle) with the variables it uses.
        *args: Its arguments. For keyword arguments use `functools.partial`.
        nodes: Nodes, standby nodes not counted.
        gpus: GPUs per node; each gets one rank.
        **options: Further options of `submit_function`.

    Returns:
        What each rank returned, in rank order: `nodes` × `gpus` values.

    Raises:
        FunctionError: The job did not start, or a rank raised or ended without returning; has
            the traceback of the first one that raised.
        FsdpkitError: The job could not be submitted (see `submit`), or nobody knows how it ended.

    Examples:
        >>> import os, fsdpkit
        >>> fsdpkit.run(lambda: int(os.environ["RANK"]) ** 2, gpus=4)    # doctest: +SKIP
        [0, 1, 4, 9]
    """
    submitted = submit_function(function, *args, nodes=nodes, gpus=gpus, **options)
    try:
        return outcome(submitted)
    except KeyboardInterrupt:
        where = str(submitted.dir)
        print(
            f"fsdpkit: {submitted.id} goes on: fsdpkit.Run.open({where!r}).returned() waits for "
            "it again, .cancel() ends it",
            file=sys.stderr,
        )
        raise


def outcome(submitted: Run) -> list[Any]:
    """What its ranks return. Raises what `run` raises."""
    with watching(submitted) as tell:
        tell(None)
        state = submitted.wait(heard=tell)
        tell(state)
    return results_of(submitted, state)


@contextlib.contextmanager
def watching(submitted: Run) -> Iterator[Callable[[JobState | None], None]]:
    """One line: the newest state, for how long it was awaited, what rank 0 last wrote."""
    began_s = time.monotonic()
    with _ProgressLine() as line:

        def tell(state: JobState | None) -> None:
            minutes, seconds = divmod(int(time.monotonic() - began_s), 60)
            has_ranks = state is not None and state.phase != "pending"
            last = _last_words(submitted) if has_ranks else ""
            line.show(
                f"{submitted.id}: {state.describe() if state else f'job {submitted.job_id}'}",
                f", {minutes}:{seconds:02}{f'; rank 0: {last}' if last else ''}",
            )

        yield tell


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


class _ProgressLine:
    """One line that says how far something is: in a notebook by IPython's display, on a terminal
    over itself, elsewhere a line whenever it has changed. Use it with `with`: a terminal's line
    stays when it is left."""

    def __init__(self) -> None:
        self._notebook = _has_notebook()
        self._handle: Any = None
        self._terminal = not self._notebook and sys.stderr.isatty()
        self._shown = ""

    def show(self, what: str, since: str = "") -> None:
        """`what` is printed when it changes, `since` only where the line can be drawn anew."""
        what, since = (printable(text).replace("\n", " ") for text in (what, since))
        if self._notebook:
            self._display(what + since)
        elif self._terminal:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r{(what + since)[:width]}\x1b[K")
            sys.stderr.flush()
        elif what != self._shown:
            sys.stderr.write(f"{what}\n")
        self._shown = what

    def _display(self, text: str) -> None:
        display: Any = import_module("IPython.display").display
        data = {"text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def __enter__(self) -> _ProgressLine:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._terminal and self._shown:
            sys.stderr.write("\n")


def _has_notebook() -> bool:
    """Whether this is a kernel, which shows what it is handed; IPython in a terminal is none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
