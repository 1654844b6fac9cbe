"""What a tracker is given and what it answers: the same for MLflow, W&B and TensorBoard."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from fsdpkit.errors import TrackerError
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.tracking.destination import Destination
from fsdpkit.tracking.points import MetricsLine

_MOST_SAID = 200


class TrackerMark(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent to one tracker."""

    id: str
    """The run's id there."""
    where: str
    """Server and project; elsewhere it is another run."""
    lines: int = 0
    """Lines of metrics.jsonl that were looked at."""


@dataclass(frozen=True)
class Sending:
    """One training as a tracker is told of it."""

    key: str
    """The same for good: run id, and task."""
    name: str
    files: TaskPaths
    """Where what is written lies: in the run, or of another's run elsewhere."""
    project: str
    destination: Destination
    offline: bool
    lines: Sequence[MetricsLine]
    created_s: float
    outcome: str
    """`running`, `succeeded`, `failed`, `stopped` or `unknown`."""
    settings: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def stable_id(self) -> str:
        """For a tracker that lets the sender choose the id."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:24]

    @property
    def end(self) -> int:
        """Of the lines: the index that the next one would have."""
        return self.lines[-1].index + 1 if self.lines else 0


@dataclass(frozen=True)
class SentLines:
    """What came of it: how many lines were sent now, and where they are to be seen."""

    mark: TrackerMark
    lines: int
    place: str


Send = Callable[[Sending, TrackerMark | None], SentLines]


def refused(who: str, error: Exception, to_do: str = "") -> TrackerError:
    """What a tracker's client raised, in one line of its own words and where it stands there."""
    said = str(error).strip().partition("\n")[0]
    said = said[:_MOST_SAID] + ("…" if len(said) > _MOST_SAID else "")
    text = f"{who}: {said or type(error).__name__}"
    return TrackerError(f"{text}; {to_do}" if to_do else text)
