"""How many processes of a job a failure struck, and what they were doing: what advice depends on
besides the cause.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Scope = Literal["rank", "node", "only-node", "several", "all", "job"]
Phase = Literal["start", "setup", "steps", "saving", "loading", "unknown"]


class Circumstances(msgspec.Struct, frozen=True):
    """Whom a failure struck, and when."""

    scope: Scope = "job"
    """`rank`: one of several; `node`: one node of several, or several ranks there; `only-node`:
    so, too, where the job has but one; `several`: ranks on several nodes, and not most; `all`: most
    ranks, on each node, or the only one; `job`: nobody names a rank or a node."""
    phase: Phase = "unknown"
    """`start`: before the script ran; `setup`: before its first step; `steps`: later; `saving`,
    `loading`: within a call that writes or reads a checkpoint."""
