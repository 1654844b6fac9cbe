"""A rank's heartbeat: how far it is, in a file of 24 bytes in the node's memory.

The rank maps the file and overwrites it after each step, which costs a microsecond; the agent on
the same node reads it. `$FSDPKIT_HEARTBEAT_DIR` has one file for each rank of the node, and files
for messages between the agent and the ranks:

    rank-<local rank>   the heartbeat; locked by the process that writes it
    stop                the run is to save a checkpoint and stop
    looks               a rank has checked for `stop`, so it would see it
    dump                something hangs: record what you were doing
    flight-<rank>.pipe  NCCL's: writing to it makes the rank dump its last collectives
    world-<local rank>  the process group that the rank made (launching/node_launch.py)
    unheard-<local rank> the rank's script has no handler for the warning
    terminated          Slurm has sent SIGTERM to all processes of this node
    anew                why the ranks of later launches must not be forked
    stacks-<local rank> where the rank's threads are, on request (runs/stacks.py)
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from fsdpkit.runs.layout import Named, Numbered
from fsdpkit.runs.reading import read_bytes

Phase = Literal["starting", "training", "evaluating", "saving", "ending", "logging"]
"""What a rank does since its last beat. `logging`: nobody knows, its script only logs its steps
(`fsdpkit.log`) and may evaluate or save between two of them."""
_PHASES: tuple[Phase, ...] = get_args(Phase)
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

    rank = Numbered("rank-{}")
    stacks = Numbered("stacks-{}")
    world = Numbered("world-{}")
    unheard = Numbered("unheard-{}")
    call = Numbered("call-{}")
    flight = Named("flight-")
    """What the pipes' names begin with."""
    terminated = Named("terminated")
    stop = Named("stop")
    looks = Named("looks")
    dump = Named("dump")
    steps = Named("steps-0")

    @classmethod
    def of_this_node(cls) -> HeartbeatDir | None:
        """The one that the agent made; None where no agent started this process."""
        found = os.environ.get("FSDPKIT_HEARTBEAT_DIR")
        return cls(Path(found)) if found else None

    def note_start_anew(self, why: str) -> None:
        """Say that forking these ranks differs from starting them; the first rank's word counts."""
        with contextlib.suppress(OSError), open(self.dir / "anew", "x") as file:
            file.write(f"{why}\n")

    def why_start_anew(self) -> str | None:
        """What a rank has noted; None if nothing, or not yet to the end."""
        with contextlib.suppress(OSError):
            text = read_bytes(self.dir / "anew", 4096).decode(errors="replace")
            return text.strip() if text.endswith("\n") else None
        return None


class HeartbeatFile:
    """Writes one rank's heartbeat. Raises OSError, BlockingIOError where another process does."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a+b")  # noqa: SIM115 - its lock lasts as long as the process
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._file.fileno(), 0)
            # Written, not only made longer: without room, the first beat would be a SIGBUS.
            os.pwrite(self._file.fileno(), bytes(_LAYOUT.size), 0)
            self._map = mmap.mmap(self._file.fileno(), _LAYOUT.size)
        except OSError:
            self._file.close()
            raise
        self._count = 0
        self._led = False

    def beat(self, step: int, phase: Phase) -> None:
        """By who knows what the rank does: from now on `log_beat` is left out."""
        self._led = True
        self._write(step, phase)

    def log_beat(self, step: int) -> None:
        """By who only hears of steps."""
        if not self._led:
            self._write(step, "logging")

    def _write(self, step: int, phase: Phase) -> None:
        self._count += 1
        _LAYOUT.pack_into(self._map, 0, self._count, step, _PHASES.index(phase))


_own: dict[tuple[int, Path], HeartbeatFile] = {}


def own_heart(local_rank: int | None = None) -> HeartbeatFile | None:
    """This process's heartbeat, the same one whoever asks; None without an agent. local_rank:
    $LOCAL_RANK's unless given. Raises OSError, BlockingIOError in another process of the rank than
    the first that asked, such as a DataLoader's worker."""
    node, number = HeartbeatDir.of_this_node(), os.environ.get("LOCAL_RANK", "")
    if local_rank is None and number.isdecimal():
        local_rank = int(number)
    if node is None or local_rank is None:
        return None
    key = (os.getpid(), node.rank(local_rank))
    if key not in _own:
        _own[key] = HeartbeatFile(key[1])
    return _own[key]


def looked_whether_to_stop(node: HeartbeatDir) -> None:
    """Leave the mark that tells the agent that a request to stop will be seen."""
    with contextlib.suppress(OSError):
        node.looks.touch(exist_ok=True)


def read_heartbeat(path: Path) -> Beat | None:
    """The last beat in the file; None if there is none yet."""
    try:
        count, step, phase = _LAYOUT.unpack(read_bytes(path, _LAYOUT.size))
    except (OSError, struct.error):
        return None
    if not count or not 0 <= phase < len(_PHASES) or step < 0:  # a beat is being written
        return None
    return Beat(count, step, _PHASES[phase])
