"""A request for a checkpoint, left in a task's directory, and the trainer's answer.

    save-requested   the request's id; the next process that saves removes it
    save-answered    JSON: the id answered last, with the step saved or what went wrong
    save-heard       the attempt in which another framework's trainer looks for requests

Any checkpoint that begins after the request answers it. A person may also `touch save-requested`:
such a request has no id, and is answered by the checkpoint alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import NamedTuple

from fsdpkit.bounded import NOTE_BYTES
from fsdpkit.runs.checkpoint_writing import CLAIM
from fsdpkit.runs.layout import TaskPaths, write_atomically, write_new
from fsdpkit.runs.reading import read_text, table_in

_ID = re.compile(r"[0-9a-f]{16}")


class SaveAnswer(NamedTuple):
    """What became of a request: the step that was saved, or why it was not."""

    step: int | None = None
    problem: str | None = None
    path: str | None = None
    """The checkpoint, seen from the task's directory; None: where our own trainer saves."""


def ask(task: TaskPaths) -> str:
    """Leave a request, or join the existing one; returns its id. Raises OSError."""
    mine = os.urandom(8).hex()
    with contextlib.suppress(FileExistsError):
        write_new(task.save_requested, mine)
        return mine
    if theirs := wish(task):
        return theirs
    write_atomically(task.save_requested, mine)  # it was touched by hand, or has just been removed
    return mine


def withdraw(task: TaskPaths, asked: str) -> None:
    """Withdraw the request if it has not been answered."""
    if wish(task) == asked:
        with contextlib.suppress(OSError):
            task.save_requested.unlink()


def wish(task: TaskPaths) -> str | None:
    """The id of the pending request, empty if it has no id; None if there is no request."""
    try:
        text = read_text(task.save_requested, NOTE_BYTES).strip()
    except FileNotFoundError:
        return None
    except OSError:
        return ""
    return text if _ID.fullmatch(text) else ""


def answer(task: TaskPaths, asked: str | None, told: SaveAnswer) -> None:
    """SaveAnswer the request that existed when the checkpoint began; None: there was none. An
    answer that cannot be written is dropped: training matters more."""
    if asked is None:
        return
    with contextlib.suppress(OSError):
        if asked:
            content = {"id": asked, **told._asdict()}
            write_atomically(task.save_answered, json.dumps(content) + "\n")
        if wish(task) == asked:
            task.save_requested.unlink()


def answer_to(task: TaskPaths, asked: str) -> SaveAnswer | None:
    """What became of the request; None if that is not recorded yet."""
    table = table_in(task.save_answered)
    step, problem, path = table.get("step"), table.get("problem"), table.get("path")
    if table.get("id") != asked or not isinstance(step, int | None):
        return None
    return SaveAnswer(
        step,
        None if problem is None else str(problem)[:1000],
        None if path is None else str(path)[:1000],
    )


def hear(task: TaskPaths, attempt: str) -> None:
    """A trainer without `checkpoints/` looks for requests from now on, in the attempt of this name.
    Raises OSError."""
    write_atomically(task.save_heard, json.dumps({"attempt": attempt}) + "\n")


def saves_there(task: TaskPaths, attempt: int) -> bool:
    """Whether a trainer of this attempt has claimed the checkpoints, or looks for requests."""
    return any(
        table_in(file).get("attempt") == task.attempt(attempt).dir.name
        for file in (task.checkpoints / CLAIM, task.save_heard)
    )
