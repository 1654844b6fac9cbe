"""How launches and attempts ended, on record: `verdict.json` and `ending.json`.

The head node's agent writes the verdict (launching/conductor.py), the batch shell the ending
(launching/ending.py); all readers use this module.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from fsdpkit.runs.failures import FailureRecord
from fsdpkit.runs.layout import write_atomically
from fsdpkit.runs.reading import record_in
from fsdpkit.runs.record import Time

Cause = Literal[
    "done",
    "stopped",
    "crash",
    "hang",
    "out-of-memory",
    "node-failure",
    "storage",
    "settings",
    "preflight",
    "idle",
]
"""As far as `[retry]` tells them apart."""

WARNING = "warning"
"""What agents and the batch shell write into `stop-requested` when the scheduler warned them."""


IDLE = "idle"
"""What the head node's agent writes there, before a sentence, when no GPU has computed for long."""


_AT_WORK = {
    True: "its processes use a CPU or move data",
    False: "its processes do nothing either",
    None: "whether its processes work is not known",
}


class IdleGpus(msgspec.Struct, frozen=True, kw_only=True):
    """That an attempt's GPUs do nothing, or only wait (`idle.json`), the newest such time: written
    anew by the head node's agent whenever that changes (launching/idle_gpus.py)."""

    kind: Literal["idle", "waiting"]
    """idle: no kernel runs. waiting: kernels run that only wait, as far as is known."""
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
        if self.kind == "idle":
            return f"no GPU has computed {when}; {_AT_WORK[self.works]}"
        return f"no step was made {when}, with GPUs in use: its ranks may wait for one another"


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Why a launch ended without being done: the first of its failures."""

    cause: Cause
    status: int
    message: str
    """Who and what: `rank 3 on node2: RuntimeError: …`."""
    step: int | None = None
    """Steps done by then, where ranks tell; -1 before the first was tried."""
    lasted_s: float = 0.0
    lost: tuple[str, ...] = ()
    """Names of nodes that fell silent, or whose GPU is broken."""
    failure: FailureRecord | None = None
    """The record that it was judged by; None in older releases' files."""


class AttemptVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """How the head node's agent ended the attempt. trouble None: all is done."""

    trouble: Trouble | None = None
    why: str = ""
    """What a person should know beyond the trouble itself."""
    warned: bool = False
    """Whether the ranks had been asked to stop before the trouble came."""
    restarts: int = 0
    earlier: tuple[Trouble, ...] = ()
    """What ended each launch, the last included if it was not done."""
    cut_off: bool = False
    """Whether this node's interface had no carrier while others were silent."""
    came_back: bool = False
    """Whether the trouble is that of the launch before, which starting again did not cure."""

    @property
    def by_itself(self) -> bool:
        """Whether a failure ended the attempt before it was asked to."""
        trouble = self.trouble
        return trouble is not None and not self.warned and trouble.cause != "stopped"


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What the batch shell did with the job."""

    action: Literal["end", "requeue"]
    status: int
    cause: str
    why: str
    avoid: tuple[str, ...] = ()
    """Nodes that failed in this attempt."""
    left_out: tuple[str, ...] = ()
    """Nodes that the requeued job leaves out, beside those that its owner excludes."""
    for_good: bool = False
    """Whether a job chained behind this one would only meet the same, and is not to start."""
    step: int | None = None
    """Of the newest whole checkpoint; set by whoever looks at the disk."""
    asked_slurm: bool | None = None
    """Whether Slurm itself told of a time limit, a preemption or an end; None: not known."""
    rule: str = ""
    """Of the failure that it was judged by (runs/failures.py)."""
    log_bytes: int = 0
    """How long the job's log was: the next attempt of the job adds to it."""


read = record_in


def write(path: Path, record: AttemptVerdict | Ending) -> None:
    """Raises OSError."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(record)).decode() + "\n")
