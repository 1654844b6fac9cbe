"""The agent's side of its ranks' heartbeats: which hang, how far they are."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fsdpkit.launching import flight, machine, stacks
from fsdpkit.launching.blame import RankPlace, place_of, standing_out
from fsdpkit.launching.job_log import say
from fsdpkit.launching.stacks import RankProcess
from fsdpkit.runs.heartbeat import Beat, HeartbeatDir, read_heartbeat
from fsdpkit.runs.layout import AttemptPaths
from fsdpkit.runs.reading import read_text
from fsdpkit.runs.stack_requests import NodeStacks, answer, shortened
from fsdpkit.runs.stacks import StacksTaken, Why

_SLOW_FACTOR = 10
"""How much more patient to be outside of training steps: loading, compiling, saving."""
_ABSENT_S = 5.0
"""A pause between two looks that says nothing about the ranks."""
_LONGER_THAN_EVER = 10
"""How many times the longest pause that a script has made between two logged steps is too long."""
_BUSY_BYTES = 1 << 20
"""Who reads or writes so much is at work: it evaluates, saves or loads."""
_LOOK_EVERY_S = 1.0
_WRITING_S = 2.0
"""For the collectives of each rank: a thread of it looks once a second whether they are wanted."""


_DOING = {"training": "made no step", "logging": "logged no step"}


class _Moved:
    """How many bytes a rank's processes have read and written, and when that last grew."""

    def __init__(self, now: float) -> None:
        self.at_s, self._looked_s = now, now - _LOOK_EVERY_S
        self._bytes: int | None = None

    def look(self, pid: int, now: float) -> None:
        if now - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now
        moved = machine.work_of(pid).moved_bytes
        if self._bytes is None or moved < self._bytes:  # one of its workers has ended
            self._bytes = moved
        elif moved - self._bytes >= _BUSY_BYTES:
            self._bytes, self.at_s = moved, now


@contextlib.contextmanager
def heartbeats() -> Iterator[HeartbeatDir]:
    """A directory in this node's memory, passed to the ranks as $FSDPKIT_HEARTBEAT_DIR; among other
    temporary files where the memory has no room."""
    where = _MEMORY if _has_room(_MEMORY) else None
    prefix = _prefix(os.getpid())
    with tempfile.TemporaryDirectory(prefix=prefix, dir=where, ignore_cleanup_errors=True) as d:
        os.environ["FSDPKIT_HEARTBEAT_DIR"] = d
        try:
            yield HeartbeatDir(Path(d))
        finally:
            del os.environ["FSDPKIT_HEARTBEAT_DIR"]


def _prefix(pid: int) -> str:
    return f"fsdpkit-{pid}-"


def remove_heartbeats_of(pid: int) -> None:
    """In this node's memory, of an agent that was killed."""
    for left in Path(_MEMORY).glob(f"{_prefix(pid)}*"):
        shutil.rmtree(left, ignore_errors=True)


_MEMORY = "/dev/shm"
_ROOM_BYTES = 1 << 20


def _has_room(memory: str) -> bool:
    """Whether ranks can write there; says so if it is full, as of what a dead job left in it."""
    try:
        with tempfile.TemporaryFile(dir=memory) as trial:
            trial.write(bytes(_ROOM_BYTES))
            trial.flush()
    except OSError as error:
        if error.errno == errno.ENOSPC:
            say(f"warning: {memory} is full on this node; NCCL and data loaders need it, too")
        return False
    return True


class RankHeartbeats:
    """The heartbeats of one launch on this node."""

    def __init__(self, directory: HeartbeatDir, hang_s: float) -> None:
        self.node, self._hang_s = directory, hang_s
        self.ranks: Sequence[RankProcess] = ()
        """Those of this launch on this node, once they run."""
        self.asked = False
        """Whether the ranks of this launch were asked what they were doing."""
        self._beats: dict[RankProcess, Beat] = {}
        self._changed_s: dict[RankProcess, float] = {}
        self._longest_s: dict[RankProcess, float] = {}
        self._moved: dict[RankProcess, _Moved] = {}
        self._looked_s = time.monotonic()
        for left in (directory.dump, directory.steps):  # by ranks of the launch before
            left.unlink(missing_ok=True)
        for kind in ("rank-*", "stacks-*", "flight-*", "world-*", "steps-*", "unheard-*", "looks"):
            for file in directory.dir.glob(kind):
                file.unlink()

    @property
    def dir(self) -> Path:
        """Where the heartbeats are: a directory of this launch in the node's memory."""
        return self.node.dir

    def look(self) -> str | None:
        """Read all heartbeats; a sentence once a rank has made no progress for too long."""
        now = time.monotonic()
        if (gap_s := now - self._looked_s) > _ABSENT_S:  # the job was suspended, with its ranks
            self._changed_s = {rank: at_s + gap_s for rank, at_s in self._changed_s.items()}
        self._looked_s = now
        for rank in self.ranks:
            beat = read_heartbeat(self.node.rank(rank.local_rank))
            if beat is not None and beat != self._beats.get(rank):
                pause_s = now - self._changed_s.get(rank, now)
                self._longest_s[rank] = max(pause_s, self._longest_s.get(rank, 0.0))
                self._beats[rank], self._changed_s[rank] = beat, now
                self._moved.pop(rank, None)
        if not self._hang_s:
            return None
        for rank, beat in self._beats.items():
            silent_s = now - self._changed_s[rank]
            if silent_s > self._patience_s(rank, beat, now):
                doing = _DOING.get(beat.phase, f"was {beat.phase}")
                return f"rank {rank.rank} {doing} for {silent_s:.0f} s (after step {beat.step})"
        return None

    def _patience_s(self, rank: RankProcess, beat: Beat, now: float) -> float:
        """How long the rank may be silent. A script that only logs its steps does not say that it
        evaluates or saves: it shows, by what it reads and writes, or by having paused before."""
        if beat.phase != "logging":
            return self._hang_s * (1 if beat.phase == "training" else _SLOW_FACTOR)
        longest_s = _LONGER_THAN_EVER * self._longest_s.get(rank, 0.0)
        if now - self._changed_s[rank] < self._hang_s / 2:
            return max(self._hang_s, longest_s)
        moved = self._moved.setdefault(rank, _Moved(now))
        moved.look(rank.pid, now)
        busy = now - moved.at_s < self._hang_s / 2
        return max(self._hang_s * (_SLOW_FACTOR if busy else 1), longest_s)

    @property
    def step(self) -> int | None:
        """Steps done by the slowest rank here; -1 while starting, None where ranks do not tell."""
        self.look()
        beats = self._beats.values()
        return min((-1 if b.phase == "starting" else b.step for b in beats), default=None)

    def ask_for_stacks(self, attempt: AttemptPaths, launch: int, why: Why) -> StacksTaken | None:
        """Take the stacks of all living ranks, and make them dump their last collectives. None if
        that has been done in this launch."""
        if self.asked:
            return None
        self.asked = True
        with contextlib.suppress(OSError):
            self.node.dump.touch()
        flight.ask(self.node, [rank.rank for rank in self.ranks])
        taken, missing = stacks.take(self.ranks, self.node, attempt, launch)
        if self._beats or flight.may_be_asked(self.node):
            time.sleep(_WRITING_S)
        return StacksTaken(launch=launch, why=why, taken=taken, missing=missing)

    def blame(self, attempt: AttemptPaths, launch: int) -> tuple[int, str] | None:
        """After `ask_for_stacks`: a rank that is not waiting in a collective as the others are. Its
        global number and what it does instead: it is stopped or in the kernel's hands, gave no
        answer, or is somewhere in its own program."""
        found: dict[int, RankPlace] = {}
        for rank in self.ranks:  # a script may log on one rank only
            if state := stacks.is_deaf(rank.pid):
                return rank.rank, f"the process is in state {state}"
            with contextlib.suppress(OSError):
                text = read_text(attempt.rank_file(rank.rank, "stacks", launch))
                found[rank.rank] = place_of(text)
        return standing_out(found)


class AskedForStacks:
    """Records where this node's ranks are, each time somebody asks: on a thread of its own, because
    ranks that do not answer take time, and failures of others must be noticed meanwhile."""

    def __init__(self, node: int, name: str, attempt: AttemptPaths, directory: HeartbeatDir):
        self._node, self._name, self._attempt, self._dir = node, name, attempt, directory
        self.now: tuple[RankHeartbeats, int] | None = None
        """The ranks, and their launch."""

    def answer(self, asked: str) -> None:
        """Answer the request of this id; returns at once."""
        thread = threading.Thread(
            target=self._answer, args=(asked,), name="fsdpkit-stacks", daemon=True
        )
        thread.start()

    def _answer(self, asked: str) -> None:
        rank_heartbeats, launch = self.now or (None, 0)
        ranks = [] if rank_heartbeats is None else list(rank_heartbeats.ranks)
        found = stacks.read(ranks, self._dir).values()
        said = NodeStacks(
            id=asked,
            node=self._node,
            name=self._name,
            launch=launch,
            time_s=round(time.time(), 3),
            ranks=tuple(map(shortened, found)),
        )
        with contextlib.suppress(OSError):  # the requester is told that this node did not answer
            answer(self._attempt, said)
