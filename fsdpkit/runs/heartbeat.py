"""A rank's sign of life: how far it is, in a file of 24 bytes that lies in the node's memory.

The rank maps the file and overwrites it after each step, which costs a microsecond; the agent on
the same node reads it. `$FSDPKIT_HEARTBEAT_DIR` holds one file for each rank of the node, and what
the agent tells them in return:

    rank-<local rank>   the heartbeat
    stop                the run is to save a checkpoint and stop
    dump                something hangs: write down what you were doing
    flight-<rank>.pipe  NCCL's: whoever writes to it makes the rank dump its last collectives
    stacks-<local rank> where the rank's threads are, once it was asked (runs/stacks.py)
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fsdpkit.runs.reading import read_bytes

Phase = Literal["starting", "training", "evaluating", "saving", "ending"]
_PHASES: tuple[Phase, ...] = ("starting", "training", "evaluating", "saving", "ending")
_LAYOUT = struct.Struct("<qqq")


@dataclass(frozen=True)
class Beat:
    """What one heartbeat says: the steps done so far, and what the rank does since then."""

    count: int
    step: int
    phase: Phase


@dataclass(frozen=True)
class HeartbeatDir:
    """The node's directory of heartbeats."""

    dir: Path

    @classmethod
    def of_this_node(cls) -> HeartbeatDir | None:
        """The one that the agent made; None where no agent started this process."""
        found = os.environ.get("FSDPKIT_HEARTBEAT_DIR")
        return cls(Path(found)) if found else None

    def rank(self, local_rank: int) -> Path:
        return self.dir / f"rank-{local_rank}"

    @property
    def flight(self) -> Path:
        """What the pipes' names begin with."""
        return self.dir / "flight-"

    def stacks(self, local_rank: int) -> Path:
        return self.dir / f"stacks-{local_rank}"

    @property
    def stop(self) -> Path:
        return self.dir / "stop"

    @property
    def dump(self) -> Path:
        return self.dir / "dump"


class HeartbeatFile:
    """Writes one rank's heartbeat."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_LAYOUT.size))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._count = 0

    def beat(self, step: int, phase: Phase) -> None:
        self._count += 1
        _LAYOUT.pack_into(self._map, 0, self._count, step, _PHASES.index(phase))


def read_heartbeat(path: Path) -> Beat | None:
    """The last beat in the file; None if there is none yet."""
    try:
        count, step, phase = _LAYOUT.unpack(read_bytes(path, _LAYOUT.size))
    except (OSError, struct.error):
        return None
    if not count or not 0 <= phase < len(_PHASES):  # a beat is being written
        return None
    return Beat(count, step, _PHASES[phase])
