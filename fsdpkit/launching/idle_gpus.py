"""Whether a run's GPUs compute, and what to do where they do not, by what every node samples.

A thread of the head node's agent looks: a file system that does not answer holds up no training.
What is not measured on each node that trains is not judged. No run is stopped whose processes have
worked meanwhile, or whose GPUs are in use: for ranks that wait there is `retry.hang_s`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.json import encode
from msgspec.structs import replace

from fsdpkit.bounded import NOTE_BYTES, read_end
from fsdpkit.config.retry import Retry
from fsdpkit.launching.job_log import say
from fsdpkit.runs.calls import KeptCalls
from fsdpkit.runs.layout import AttemptPaths, RunPaths, TaskPaths, write_atomically, write_new
from fsdpkit.runs.outcomes import IDLE, IdleGpus
from fsdpkit.runs.samples import GpuSums, Sample, Sums, decoded

_LONGEST_LOOK_S, _LOOKS = 30.0, 20
_SILENT_S = 60.0
"""A newest sample that is older, and late by its node's own pace, says nothing."""
_MOMENTS = 5
"""Where samples tell of a moment only, so many must agree."""
_IN_USE, _COMPUTES = 0.5, 0.02
"""Of the time, and of its multiprocessors: a kernel of NCCL that waits needs all of the time, and
less than one multiprocessor in 100."""
_UNSURE = 3
"""Without that share, steps must stand still so many times longer: it may be an evaluation."""
_SAVES_S = 300.0
"""How long a run may take to begin to save."""


class NodeState(NamedTuple):
    """For how long, in seconds. None: not measured."""

    idle_s: float | None = None
    """No GPU of the node has computed."""
    rested_s: float | None = None
    """Its processes have done nothing; half the limit is enough, for they begin later."""
    waits_s: float = 0.0
    """Its GPUs have computed nothing, though they are in use, and it has made no step."""
    works: bool = False
    """Whether it has, or has made a step, since the last look."""


def judgement(nodes: Sequence[NodeState], limit_s: float) -> tuple[float, IdleGpus] | None:
    """For how long that is so, of all nodes that train. None: GPUs compute, or it is not known."""
    idle = [node.idle_s for node in nodes if node.idle_s is not None]
    if not nodes or len(idle) < len(nodes):
        return None
    if (for_s := min(idle)) >= limit_s:
        rested = [node.rested_s for node in nodes if node.rested_s is not None]
        works = min(rested) < limit_s / 2 if len(rested) == len(nodes) else None
        return for_s, IdleGpus(kind="idle", since_s=time.time() - for_s, works=works)
    for_s = min(max(node.idle_s or 0.0, node.waits_s) for node in nodes)
    if for_s >= limit_s:
        return for_s, IdleGpus(kind="waiting", since_s=time.time() - for_s)
    return None


@dataclass
class IdleWatch:
    """Of an attempt. notify: called at most once, with a sentence."""

    retry: Retry
    run: RunPaths
    attempt: AttemptPaths
    training: Callable[[], tuple[int, Sequence[int], float]]
    """The newest launch: its number, its nodes, and when it began by time.monotonic()."""
    notify: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    over: str = ""
    """Why the ranks are to be ended; empty: they are not."""
    _found: IdleGpus | None = None
    _told: bool = False
    _asked_s: float = 0.0
    _uncalled_s: float = 0.0
    """When ranks that stay (launching/serving.py) last waited for a call."""
    _marks: dict[int, Sample] = field(default_factory=dict)
    """By node, a sample since which it has not worked."""
    _newest: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By node, the time of its newest sample, and when that was first seen here."""
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look within the block."""
        if self.retry.idle_gpus_s:
            threading.Thread(target=self._watch, name="fsdpkit-idle", daemon=True).start()
        try:
            yield
        finally:
            self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(min(_LONGEST_LOOK_S, self.retry.idle_gpus_s / _LOOKS)):
            with contextlib.suppress(OSError, ValueError):
                self.look()

    def look(self) -> None:
        """Judge, and act on it. Raises OSError."""
        now, (launch, nodes, began_s) = self.clock(), self.training()
        if KeptCalls(self.run.calls).waiting.exists():
            self._uncalled_s = now
        begun_s = now - max(began_s, self._uncalled_s)
        states: list[NodeState] = []
        for node in nodes:
            states.append(self._state(node, launch, now, begun_s))
            if states[-1].works and (states[-1].idle_s or 0.0) < self.retry.idle_gpus_s:
                states = []  # the others need not be read
                break
        self._note(judgement(states, self.retry.idle_gpus_s), now)

    def _state(self, node: int, launch: int, now: float, begun_s: float) -> NodeState:
        if (lines := self._lines(node, launch, now)) is None:
            return NodeState()
        newest, sums, pace_s = lines
        mark = self._marks.setdefault(node, newest)
        assert mark.sums is not None
        grown = [_grown(*pair) for pair in zip(mark.sums.gpus, sums.gpus, strict=False)]
        works = (mark.launch, mark.optimizer_steps) != (launch, newest.optimizer_steps)
        if works := works or any((active or 0.0) > _COMPUTES for _, active in grown):
            self._marks[node] = newest
        sure = all(active is not None for _, active in grown)
        idle_s = min([begun_s, *(gpu.idle_s or 0.0 for gpu in sums.gpus)])
        if not sure and idle_s < _MOMENTS * pace_s:
            idle_s = 0.0
        waits_s = min(begun_s, sums.observed_s - mark.sums.observed_s) / (1 if sure else _UNSURE)
        if works or not any(busy > _IN_USE for busy, _ in grown):
            waits_s = 0.0
        if not sure and newest.optimizer_steps is None:
            waits_s = 0.0
        return NodeState(idle_s, newest.rested_s, waits_s, works)

    def _lines(self, node: int, launch: int, now: float) -> tuple[Sample, Sums, float] | None:
        """Its newest sample, and how many seconds the one before is older; None where that is not
        of this launch, too old, or does not tell of each GPU."""
        with contextlib.suppress(OSError, ValueError):
            data = read_end(self.attempt.node_samples(node), NOTE_BYTES)
            before, newest = list(decoded(data))[-2:]
            if self._newest.get(node, (None, 0.0))[0] != newest.time_s:
                self._newest[node] = newest.time_s, now
            if newest.launch != launch or not (sums := newest.sums) or not before.sums:
                return None
            pace_s = sums.observed_s - before.sums.observed_s
            fresh = now - self._newest[node][1] <= max(_SILENT_S, 3 * pace_s)
            told = [*(gpu.idle_s for gpu in sums.gpus)]
            told += [gpu.utilization_percent for gpu in newest.gpus]
            return (newest, sums, pace_s) if fresh and told and None not in told else None
        return None

    def _note(self, found: tuple[float, IdleGpus] | None, now: float) -> None:
        before = self._found if self._found and self._found.until_s is None else None
        if found is None:
            if before is not None:
                self._write(replace(before, until_s=time.time()))
                say("its GPUs compute again, or that is no longer known")
            return
        for_s, record = found
        if before is not None and before.kind == record.kind:
            record = replace(before, works=record.works)
        sentence = record.sentence(f"for {for_s / 60:.0f} min")
        stops = record.kind == "idle" and record.works is False
        if record != before:
            self._write(record)
            wanted = self.retry.on_idle_gpus == "stop" and not stops and not record.asked_s
            say(f"warning: {sentence}{', so it is not stopped (retry.on_idle_gpus)' * wanted}")
        if not self._told:
            self._told = True
            self.notify(sentence)
        if stops and self.retry.on_idle_gpus == "stop":
            self._stop(record, sentence, now)

    def _stop(self, record: IdleGpus, sentence: str, now: float) -> None:
        """Ask it to save, and end it if it still does nothing once it has had time for that."""
        if not self._asked_s:
            self._asked_s = now
            with contextlib.suppress(FileExistsError):  # somebody else asks, who may wait longer
                write_new(
                    TaskPaths(self.attempt.dir.parent).stop_requested, f"{IDLE}: {sentence}\n"
                )
                self._write(replace(record, asked_s=time.time()))
                say("it is asked to save and stop (retry.on_idle_gpus)")
        elif record.asked_s and now - self._asked_s >= min(_SAVES_S, self.retry.idle_gpus_s):
            self.over = sentence

    def _write(self, record: IdleGpus) -> None:
        self._found = record
        with contextlib.suppress(OSError):  # the disk is full
            write_atomically(self.attempt.idle, encode(record).decode() + "\n")


def _grown(before: GpuSums, now: GpuSums) -> tuple[float, float | None]:
    """In which share of the time since then a kernel ran, and the share of multiprocessors."""
    time_s = max(now.observed_s - before.observed_s, 1e-9)
    active_s = None if now.active_s is None else now.active_s - (before.active_s or 0.0)
    busy_s = (now.busy_s or 0.0) - (before.busy_s or 0.0)
    return busy_s / time_s, None if active_s is None else active_s / time_s
