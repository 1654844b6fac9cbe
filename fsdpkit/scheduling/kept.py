"""Ranks that stay between calls of functions: the submitter's side of launching/serving.py."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from fsdpkit.errors import FsdpkitError, FunctionError, StorageError
from fsdpkit.launching.serving import serve
from fsdpkit.runs.calls import CallFailure, KeptCalls, read_raised
from fsdpkit.runs.layout import make_directory
from fsdpkit.runs.reading import build_types
from fsdpkit.scheduling.functions import pickled, submit_function
from fsdpkit.scheduling.holding import idle_s_of
from fsdpkit.scheduling.returned import error_of, result_of, results_of
from fsdpkit.scheduling.run import Run
from fsdpkit.scheduling.states import JobState

_OPTIONS = (
    *("retry.on_time_limit=stop", "retry.on_preemption=stop", "retry.on_node_failure=stop"),
    *("retry.on_crash=stop", "retry.on_hang=stop", "retry.restarts=0", "retry.requeues=0"),
    "retry.hang_s=0",
)
"""Ranks that were started again would have kept nothing."""
_SECRET_BYTES = 32
_OF_IDLE = 0.9
"""Ranks that nobody calls end before the hold does."""
_GRACE_S = 10.0
"""How long the others have, once a rank has raised: most wait for it in vain."""
_ENDING_S = 120.0
_TELL_S = 2.0
_FIRST_S, _LONGEST_S, _LONGER = 0.02, 0.5, 1.1


Watching = Callable[[Run], AbstractContextManager[Callable[[JobState | None], object]]]
"""What shows how far a run is while its answer is awaited."""


def start_kept(
    hold: Run, watching: Watching, result_mb: int = 1000, sets: Sequence[str] = (), **options: Any
) -> KeptRanks:
    """Start ranks on a hold, which stay. Raises what `submit_function` raises."""
    secret, idle_s = os.urandom(_SECRET_BYTES), _OF_IDLE * idle_s_of(hold)
    run = submit_function(
        serve, secret, result_mb, idle_s, sets=["name=keep", *sets, *_OPTIONS], **options
    )
    found = KeptRanks(run, KeptCalls(run.paths.calls, secret), watching)
    build_types()
    Thread(target=found._await_end, name="fsdpkit-kept", daemon=True).start()
    return found


@dataclass
class KeptRanks:
    """Ranks that stay between calls, with what functions keep in a dict.

    Attributes:
        started: The run whose ranks they are.
    """

    started: Run
    _calls: KeptCalls
    _watching: Watching
    _next: int = 0
    _gone: str | None = None
    """Why there are no ranks any more."""
    _state: JobState | None = None
    _ended: Future[JobState] = field(default_factory=Future)

    def run(self, function: Callable[..., Any], /, *args: Any) -> list[Any]:
        """Call `function(kept, *args)` on each rank; `kept` is the rank's own dict.

        Where all ranks raise at the same line they stay. Else they are ended, since some would wait
        for others for ever; so they are by an interrupt, and by the end of one of them.

        Args:
            function: Called in the same process as the one before: `torch.distributed` stays
                initialised. It is pickled with the variables it uses.
            *args: Its further arguments.

        Returns:
            What each rank returned, in rank order.

        Raises:
            FunctionError: A rank raised or ended, in this call or an earlier one.
            FsdpkitError: The function cannot be pickled, or nobody knows how the ranks stand.
        """
        number = self._send(b"" if self._gone else pickled(function, args))
        try:
            raised = self._wait(number)
            if not raised:
                answers = self._calls.answers(number)
                return [result_of(self.started, answers, rank) for rank in range(self._ranks)]
            first = error_of(self.started, raised[0])
            if len(raised) < self._ranks or len({_frames(one) for one in raised}) > 1:
                self._cancel(_line_of(first))
            raise first
        except KeyboardInterrupt:
            self._cancel("the last call was interrupted")
            raise
        except OSError as error:
            raise StorageError(f"{self._calls.dir} cannot be read: {error.strerror}") from error
        finally:
            with contextlib.suppress(OSError):
                self._calls.remove(number)

    def end(self) -> None:
        """End the ranks, and wait until they have ended."""
        if self._gone is None:
            with contextlib.suppress(FsdpkitError, TimeoutError):
                self._send(b"")
                self._ended.result(_ENDING_S)
            self._gone = "they were told to end"

    @property
    def _ranks(self) -> int:
        return self.started.record.nodes * self.started.record.ranks_per_node

    def _await_end(self) -> None:
        def hear(state: JobState) -> None:
            self._state = state

        try:
            self._ended.set_result(self.started.wait(heard=hear))
        except Exception as error:
            self._ended.set_exception(error)

    def _send(self, content: bytes) -> int:
        """The call's number. Raises FunctionError if nobody is there to make it."""
        number = self._next
        try:
            if self._gone is None:
                make_directory(self._calls.dir)  # the ranks may not have begun
                make_directory(self._calls.answers(number).dir)
                self._calls.write(number, content)
                self._next += 1
                return number
        except FileExistsError:
            self._gone = "no call had come for too long, or before they were to stop"
        except OSError as error:
            raise StorageError(f"{self._calls.dir} cannot be written: {error.strerror}") from error
        raise FunctionError(
            f"the ranks of {self.started.id} have ended, and what they kept is gone: {self._gone}; "
            "keep() starts new ones"
        )

    def _wait(self, number: int) -> list[CallFailure]:
        """What ranks raised, by time; empty once all have returned. Raises what ended the run."""
        answers, pause_s, raised_s, told_s = self._calls.answers(number), _FIRST_S, None, 0.0
        with self._watching(self.started) as tell:
            while (answered := self._calls.answered(number)) < self._ranks:
                if self._ended.done():
                    raise self._end_of_run()
                if (now_s := time.monotonic()) - told_s > _TELL_S:
                    told_s = now_s
                    tell(self._state)
                if answered and (raised := read_raised(answers, self._ranks)):
                    raised_s = raised_s or now_s
                    # Where a rank has died, the end of the run says so; others raise after it.
                    if now_s - raised_s > _GRACE_S and self.started.first_failure() is None:
                        return raised
                time.sleep(pause_s)
                pause_s = min(pause_s * _LONGER, _LONGEST_S)
        return read_raised(answers, self._ranks)

    def _end_of_run(self) -> Exception:
        try:
            results_of(self.started, self._ended.result())
            error: Exception = FunctionError(f"the ranks of {self.started.id} ended in the call")
        except FsdpkitError as found:
            error = found
        self._gone = _line_of(error)
        return error

    def _cancel(self, why: str) -> None:
        self._gone = why
        with contextlib.suppress(FsdpkitError, TimeoutError):
            self.started.cancel()
            self._ended.result(_ENDING_S)


def _frames(raised: CallFailure) -> tuple[str, ...]:
    """Where it stopped: if all stopped at the same line, none is ahead by a collective."""
    return tuple(line for line in raised.traceback.splitlines() if line.startswith("  File "))


def _line_of(error: Exception) -> str:
    return str(error).partition("\n")[0]
