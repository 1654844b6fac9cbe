"""Everything that a node gets on its disk, from the shared file system or from other nodes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpkit.staging.disk import Store
from fsdpkit.staging.hub import Hub, NodeProgress
from fsdpkit.staging.listing import listed
from fsdpkit.staging.manifest import BlockSource, Entry, Manifest, StageError
from fsdpkit.staging.peers import BlockServer, Growing, HubLink, fetch
from fsdpkit.staging.relocate import relocate
from fsdpkit.staging.source import PackFile, SharedFiles
from fsdpkit.staging.wire import StageKeys

if TYPE_CHECKING:
    from argparse import Namespace

Say = Callable[[str], None]
LISTED = ".staged.json"
_TELL_S, _WRITE_S, _SAY_S = 1.0, 2.0, 30.0


@dataclass(frozen=True)
class Place:
    """A node's place in its job."""

    number: int
    name: str
    nodes: int
    ranks: int
    """Of a node."""
    training: int
    """How many of the nodes train; the others are in reserve."""
    attempt: Path
    job: str
    """Names this part of the job among all that this disk has seen."""
    hub: tuple[str, int] | None
    keys: StageKeys | None
    held: bool

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Place:
        """Raises StageError where the script has not said what it should."""
        try:
            number, nodes = int(environ["SLURM_NODEID"]), int(environ["SLURM_JOB_NUM_NODES"])
            attempt = Path(environ["FSDPKIT_ATTEMPT_DIR"])
            start = f"{environ['SLURM_JOB_ID']}_{environ.get('SLURM_RESTART_COUNT', '0')}"
            hub = keys = None
            if nodes > 1:
                hub = environ["RDZV_HOST"], int(environ["STAGE_PORT"])
                keys = StageKeys(bytes.fromhex(environ["FSDPKIT_SECRET"]), start)
            return cls(
                number,
                environ.get("SLURMD_NODENAME", f"node {number}"),
                nodes,
                int(environ["FSDPKIT_RANKS_PER_NODE"]),
                int(environ["FSDPKIT_NODES"]),
                attempt,
                f"{start}_{number}_{hashlib.sha256(os.fsencode(attempt)).hexdigest()[:12]}",
                hub,
                keys,
                "FSDPKIT_HOLD" in environ,
            )
        except (KeyError, ValueError) as error:
            raise StageError("settings", f"the script does not say: {error}") from error

    @property
    def back(self) -> Path:
        return self.attempt / "back" / f"node-{self.number}"

    @property
    def progress(self) -> Path:
        return self.attempt / "stage.json"


@dataclass
class _Here:
    """How far this node is."""

    bytes: int = 0
    state: str = "copying"
    reused: bool = True
    why: str = ""
