"""For a trainer that is not ours: what is asked of it after a step, and a checkpoint that counts.

`Wishes.asked` says on all ranks after the same step whether to stop (script/stopping.py) or only to
save (`fsdpkit checkpoint save`, runs/save_requests.py). Every save, whoever wanted it, is put
between `begin` and `saved`, or into `saving`: what was written gets its mark
(script/checkpoints.py) and whoever asked for one an answer.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.save_requests import SaveAnswer, answer, hear, wish
from fsdpkit.script.checkpoints import keep_newest, mark_whole, newest_whole, unmark
from fsdpkit.script.stopping import StopVotes, from_first, stop_wish, task_dir, wait_for_all

LOOK_EVERY_S = 1.0
"""Requests to save lie on a shared file system: no look at each step."""
_KEPT = 2
"""Of the checkpoints that only a request made."""


def in_a_run() -> bool:
    """Whether fsdpkit started this process as a rank."""
    return bool(os.environ.get("FSDPKIT_TASK_DIR")) and not os.environ.get("FSDPKIT_VISIT")


def is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


class SaveOrder(NamedTuple):
    """What all ranks do after this step."""

    stop: bool = False
    save: bool = False


class Wishes:
    """What is asked of this run's trainer; of one process, to be made once. saves: whether what it
    saves can be gone on from, so that it answers requests to save."""

    def __init__(self, saves: bool = True) -> None:
        self._saves = saves
        self._votes = StopVotes()
        self._next_look_s = 0.0
        self._known: str | None = None
        if saves and is_first():
            attempt = Path(os.environ.get("FSDPKIT_ATTEMPT_DIR", "")).name
            with contextlib.suppress(OSError):
                hear(TaskPaths(task_dir()), attempt)
        stop_wish()  # from now on the agent knows that a request to stop is seen

    def asked(self) -> SaveOrder:
        """To be called after each step on every rank, as `fsdpkit.stop_requested` is."""
        stop = stop_wish()
        return SaveOrder(*self._votes.agreed(stop is not None and stop.seen(), self._new_wish()))

    def _new_wish(self) -> bool:
        """On rank 0: whether there is one that was not there at the last look."""
        if not (self._saves and is_first()) or time.monotonic() < self._next_look_s:
            return False
        self._next_look_s = time.monotonic() + LOOK_EVERY_S
        before, self._known = self._known, wish(TaskPaths(task_dir()))
        return self._known not in (None, before)


def begin(checkpoint: Path) -> str | None:
    """A save begins, on any rank: which wish it answers, for `saved`."""
    if not is_first():
        return None
    unmark(checkpoint)
    return wish(TaskPaths(task_dir()))


def saved(checkpoint: Path, step: int, asked: str | None) -> None:
    """On all ranks, once each has written: from now on `checkpoint` counts as whole."""
    wait_for_all()
    if not is_first():
        return
    task = TaskPaths(task_dir())
    try:
        mark_whole(checkpoint, step)
    except OSError as error:
        told = f"{checkpoint} does not count as whole: {error.strerror}"
        print(f"fsdpkit: {told}", file=sys.stderr, flush=True)
        answer(task, asked, SaveAnswer(problem=told))
    else:
        answer(task, asked, SaveAnswer(step=step, path=_seen_from(task.dir, checkpoint)))


@contextlib.contextmanager
def saving(checkpoint: Path, step: int) -> Iterator[None]:
    """Around what writes `checkpoint`, on all ranks; what goes wrong is told to whoever asked."""
    asked = begin(checkpoint)
    try:
        yield
    except Exception as error:
        answer(TaskPaths(task_dir()), asked, SaveAnswer(problem=f"{type(error).__name__}: {error}"))
        raise
    saved(checkpoint, step, asked)


def prune_requested(directory: Path, prefix: str) -> None:
    """Of those that requests made, keep the newest two."""
    if is_first():
        keep_newest(directory, prefix, _KEPT)


def where_to_go_on(*directories: Path) -> Path | None:
    """Where all ranks go on from: what the first of them finds, and says."""
    found: str | None = None
    if is_first():
        checkpoint, refused = newest_whole(*directories)
        found = None if checkpoint is None else str(checkpoint)
        for why in refused:
            print(f"fsdpkit: {why}; it is passed over", flush=True)
        if checkpoint is not None:
            print(f"fsdpkit: going on from {checkpoint.name}", flush=True)
    told = from_first(found)
    return None if told is None else Path(str(told))


def _seen_from(directory: Path, path: Path) -> str:
    absolute = Path(os.path.abspath(path))
    if absolute.is_relative_to(directory):
        return str(absolute.relative_to(directory))
    return str(absolute)
