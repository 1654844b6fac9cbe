"""Reports as agents make them, from a status and the last words of a rank."""

from __future__ import annotations

from typing import Any

from fsdpkit.failures.ends import VAGUE, ProcessEnd, explain
from fsdpkit.launching.policy import Report
from fsdpkit.runs.failures import HUNG, FailureRecord


def record(status: int = 1, words: str = "", **fields: Any) -> FailureRecord:
    """What an agent puts on record of an end with these words."""
    found = explain(ProcessEnd(status=status, record="" if VAGUE.match(words) else words))
    explained: dict[str, Any] = {}
    if found is not None:
        shown = found.shown
        raised = shown.raised.type if shown.raised else ""
        explained = {"cause": shown.cause, "level": shown.level, "exception": raised}
    by = "rank" if fields.get("rank") is not None else "agent"
    return FailureRecord(**{"by": by, "status": status, "words": words, **explained, **fields})


def report(
    node: int,
    outcome: Any = "failed",
    *,
    launch: int = 0,
    name: str = "",
    step: int | None = None,
    status: int = 1,
    message: str = "",
    **fields: Any,
) -> Report:
    name = name or f"node{node + 1}"
    if outcome not in ("failed", "hung"):
        return Report(launch, node, name, outcome, step=step)
    if outcome == "hung":
        fields = {"by": "agent", "rule": HUNG, "cause": "hang", **fields}
    failure = record(status, message, **{"name": name, **fields})
    return Report(launch, node, name, outcome, failure, step)
