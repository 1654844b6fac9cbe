"""Whether a script that was started again had nothing to go on from, as far as that is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsdpkit.runs.history import History
from fsdpkit.runs.layout import RunPaths
from fsdpkit.runs.saved_steps import newest_saved

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
