"""That an attempt's GPUs do nothing, or only wait (`idle.json`): written anew by the head node's
agent whenever that changes (launching/idle_gpus.py)."""

from __future__ import annotations

from typing import Literal

import msgspec

from fsdpkit.runs.record import Time

_AT_WORK = {
    True: "its processes use a CPU or move data",
    False: "its processes do nothing either",
    None: "whether its processes work is not known",
}


class IdleGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The newest such time of an attempt."""

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
