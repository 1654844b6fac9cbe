"""Up to which step a job's work is saved: by fsdpkit's trainer, or by one of another make.

What a script saves by itself is its own: nothing is known of it here, so whether one that was
started again began at its beginning is said with care (`began_again`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from fsdpkit.runs.history import History, checkpoints_of
from fsdpkit.runs.layout import ACCELERATE, HUGGINGFACE, LIGHTNING, RunPaths, TaskPaths
from fsdpkit.runs.reading import read_json

MARK = "fsdpkit.json"
"""Left in, or beside, a checkpoint of an attached trainer when all ranks have written it."""


def newest_saved(task: TaskPaths) -> tuple[int, float] | None:
    """The step of the newest checkpoint, and when it was written (Unix time). Never raises for
    what lies there; whether every byte is as it was written is not looked at."""
    own = ((one.step, one.time_s) for one in checkpoints_of(task))
    return max([*own, *_of_attached(task)], default=None)


def _of_attached(task: TaskPaths) -> Iterator[tuple[int, float]]:
    for name in (HUGGINGFACE, LIGHTNING, ACCELERATE):
        for pattern in (f"*/{MARK}", f"*.{MARK}"):
            for mark in (task.dir / name).glob(pattern):
                with suppress(OSError, ValueError, KeyError, TypeError):
                    step = read_json(mark)["step"]
                    if isinstance(step, int) and not isinstance(step, bool):
                        yield step, mark.stat().st_mtime


SENTENCE = (
    "it was started again with the same arguments: unless its script finds a checkpoint by itself, "
    "it began at its beginning (retry.args_again adds arguments from the second start on)"
)


def began_again(history: History, job: Mapping[str, Any]) -> str | None:
    """The sentence, for a script that nothing of fsdpkit's tells where to go on; None otherwise,
    or where it is not known. job: what is in `job.json`; empty if that cannot be read."""
    starts = sum(len(attempt.launches) for attempt in history.attempts)
    retry = job.get("retry")
    if starts < 2 or not isinstance(retry, dict) or "training" in job or retry.get("args_again"):
        return None
    looked = any(node.stop_looked for attempt in history.attempts for node in attempt.nodes)
    logs = any(one.step is not None for a in history.attempts for one in a.launches)
    troubles = [a.verdict.trouble for a in history.attempts if a.verdict]
    stopped = any(trouble and trouble.cause == "stopped" for trouble in troubles)
    if looked or logs or stopped or RunPaths(history.run).call.exists():
        return None
    return None if newest_saved(history.paths) is not None else SENTENCE
