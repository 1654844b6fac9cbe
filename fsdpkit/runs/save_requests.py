"""A wish for a checkpoint, left in a task's directory, and what the trainer made of it.

    save-requested   the wish's id; whoever saves next removes it
    save-answered    JSON: the id that was answered last, with the step saved or what went wrong
    save-heard       the attempt in which a trainer of another make looks for wishes

Any checkpoint that begins after the wish answers it. A person may also `touch save-requested`: such
a wish has no id, and is answered by the checkpoint alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from fsdpkit.runs.checkpoint_writing import CLAIM
from fsdpkit.runs.layout import TaskPaths, write_atomically, write_new
from fsdpkit.runs.reading import read_json, read_text

_ID = re.compile(r"[0-9a-f]{16}")
_MOST_BYTES = 1 << 16


class Answer(NamedTuple):
    """What became of a wish: the step that was saved, or why it was not."""

    step: int | None = None
    problem: str | None = None
    path: str | None = None
    """The checkpoint, seen from the task's directory; None: where our own trainer saves."""


def ask(task: TaskPaths) -> str:
    """Leave a wish, or join the one that is there; its id. Raises OSError."""
    mine = os.urandom(8).hex()
    with contextlib.suppress(FileExistsError):
        write_new(task.save_requested, mine)
        return mine
    if theirs := wish(task):
        return theirs
    write_atomically(task.save_requested, mine)  # it was touched by hand, or is gone just now
    return mine


def withdraw(task: TaskPaths, asked: str) -> None:
    """Take back the wish if nobody has answered it."""
    if wish(task) == asked:
        with contextlib.suppress(OSError):
            task.save_requested.unlink()


def wish(task: TaskPaths) -> str | None:
    """The id of the wish that waits for an answer, empty if it has none; None if there is none."""
    try:
        text = read_text(task.save_requested, _MOST_BYTES).strip()
    except FileNotFoundError:
        return None
    except OSError:
        return ""
    return text if _ID.fullmatch(text) else ""


def answer(task: TaskPaths, asked: str | None, told: Answer) -> None:
    """Say what became of the wish that was there when the checkpoint began; None: there was none.

    An answer that cannot be written is left out: training matters more.
    """
    if asked is None:
        return
    with contextlib.suppress(OSError):
        if asked:
            content = {"id": asked, **told._asdict()}
            write_atomically(task.save_answered, json.dumps(content) + "\n")
        if wish(task) == asked:
            task.save_requested.unlink()


def answer_to(task: TaskPaths, asked: str) -> Answer | None:
    """What became of the wish; None if nobody has said."""
    try:
        table = read_json(task.save_answered)
        step, problem, path = table["step"], table["problem"], table.get("path")
        if table["id"] != asked or not isinstance(step, int | None):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Answer(
        step,
        None if problem is None else str(problem)[:1000],
        None if path is None else str(path)[:1000],
    )


def hear(task: TaskPaths, attempt: str) -> None:
    """A trainer without `checkpoints/` looks for wishes from now on, in the attempt of this name.

    Raises OSError.
    """
    write_atomically(task.save_heard, json.dumps({"attempt": attempt}) + "\n")


def saves_there(task: TaskPaths, attempt: int) -> bool:
    """Whether a trainer of this attempt has claimed the checkpoints, or said that it looks for
    wishes."""
    return any(
        _attempt_in(file) == task.attempt(attempt).dir.name
        for file in (task.checkpoints / CLAIM, task.save_heard)
    )


def _attempt_in(file: Path) -> object:
    try:
        return read_json(file)["attempt"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
