"""That the GPUs of an attempt do nothing, or only wait: since when, and what is done about it.

    idle.json     in the attempt's directory

The head node's agent writes it (launching/idle_gpus.py), anew whenever that changes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from fsdpkit.runs.layout import AttemptPaths, write_atomically
from fsdpkit.runs.reading import record_in
from fsdpkit.runs.record import Time

Kind = Literal["idle", "waiting", "standing"]
_WORDS: dict[Kind, str] = {
    "idle": "no GPU of the run has computed",
    "waiting": "its ranks wait for one another: no optimizer step, and no GPU has computed,",
    "standing": "its GPUs are in use without an optimizer step, as in a long evaluation or where "
    "ranks wait for one another,",
}
_AT_WORK = {
    True: "; its processes use a CPU or move data",
    False: "; its processes do nothing either",
    None: "; whether its processes work is not known",
}


class IdleGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The newest such time of an attempt."""

    schema: Literal["fsdpkit.idle/1"] = "fsdpkit.idle/1"
    kind: Kind
    """idle: no kernel runs. waiting: kernels do nothing but wait, by NVML's GPM. standing: they may
    compute, but no step follows."""
    since_s: Time
    """Unix time by the head node's clock, as those below."""
    works: bool | None = None
    """Of `idle`: whether processes have worked meanwhile; None: not known on each node."""
    asked_s: Time | None = None
    """When it was asked to save and stop because of that."""
    until_s: Time | None = None
    """When it was over; None: it lasts, or the attempt ended with it."""

    def sentence(self, when: str) -> str:
        """when: `for 20 min`, or `since …`."""
        at_work = _AT_WORK[self.works] if self.kind == "idle" else ""
        return f"{_WORDS[self.kind]} {when}{at_work}"


def read_idle(attempt: AttemptPaths) -> IdleGpus | None:
    """None where that never was, or the file cannot be read."""
    return record_in(attempt.idle, IdleGpus)


def write_idle(attempt: AttemptPaths, found: IdleGpus) -> None:
    """Raises OSError."""
    write_atomically(attempt.idle, msgspec.json.encode(found).decode() + "\n")
