"""The head node's agent looks whether the run's GPUs compute, and what to do where they do not.

It reads what each node's agent samples anyway, in a thread of its own: a file system that does not
answer holds up no training. What is not measured on every node that trains is not judged: no NVML,
no new sample, another launch. Nothing is stopped whose processes have worked meanwhile, or whose
GPUs are in use: for ranks that wait for one another there is `retry.hang_s`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from fsdpkit.bounded import NOTE_BYTES, read_end
from fsdpkit.config.retry import Retry
from fsdpkit.config.units import roughly
from fsdpkit.launching.job_log import say
from fsdpkit.runs.calls import KeptCalls
from fsdpkit.runs.idle import IdleGpus, Kind, write_idle
from fsdpkit.runs.layout import AttemptPaths, RunPaths, TaskPaths, write_new
from fsdpkit.runs.outcomes import IDLE
from fsdpkit.runs.samples import Sample, decoded

_LONGEST_LOOK_S, _LOOKS = 30.0, 20
_SILENT_S = 60.0
"""A node whose newest sample is older, and late by its own pace, is not judged."""
_MOMENTS = 5
"""Where samples tell of a moment only, so many must agree."""
_COMPUTES = 0.02
"""Mean share of multiprocessors at work; a kernel of NCCL that waits keeps less than one in 100."""
_UNSURE = 3
"""So many times longer must steps stand still where that is not measured."""
_SAVES_S = 300.0
"""How long a run may take to begin saving after it was asked to."""


class Training(NamedTuple):
    """The newest launch."""

    launch: int
    nodes: tuple[int, ...]
    began_s: float
    """By time.monotonic()."""


class NodeState(NamedTuple):
    """Of a node: for how long, in seconds. None: not measured."""

    idle_s: float | None = None
    """No GPU has computed."""
    rested_s: float | None = None
    """Processes have done nothing."""
    waits_s: float = 0.0
    """GPUs in use have only waited, without a step."""
    stands_s: float = 0.0
    """There was no step, and what GPUs in use do is not measured."""
    at_work: bool = False
    """Whether it has made a step, or computed, since the last look."""


class Judgement(NamedTuple):
    kind: Kind
    for_s: float
    works: bool | None = None


def judged(nodes: Sequence[NodeState], limit_s: float) -> Judgement | None:
    """Of all nodes that train. None: GPUs compute, or that is not known."""
    idle = [node.idle_s for node in nodes if node.idle_s is not None]
    if not nodes or len(idle) < len(nodes):
        return None
    if (for_s := min(idle)) >= limit_s:
        rested = [node.rested_s for node in nodes if node.rested_s is not None]
        works = min(rested) < limit_s if len(rested) == len(nodes) else None
        return Judgement("idle", for_s, works)
    waits = min(max(node.idle_s or 0.0, node.waits_s) for node in nodes)
    if waits >= limit_s:
        return Judgement("waiting", waits)
    stands = min(max(node.idle_s or 0.0, node.waits_s, node.stands_s) for node in nodes)
    return Judgement("standing", stands) if stands >= _UNSURE * limit_s else None


@dataclass
class IdleWatch:
    """Of one attempt. notify: called once, with a sentence."""

    retry: Retry
    run: RunPaths
    attempt: AttemptPaths
    task: TaskPaths
    training: Callable[[], Training]
    notify: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    over: str = ""
    """Why the ranks are to be ended; empty: they are not."""
    _found: IdleGpus | None = None
    _told: bool = False
    _asked_s: float | None = None
    _called_s: float = 0.0
    """When ranks that stay last had no call to make."""
    _marks: dict[int, Sample] = field(default_factory=dict)
    """By node, a sample since which there was no step and no GPU in use has computed."""
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
        now, training = self.clock(), self.training()
        if KeptCalls(self.run.calls).waiting.exists():
            self._called_s = now
        began_s = max(training.began_s, self._called_s)
        states: list[NodeState] = []
        for node in training.nodes:
            states.append(self._state(node, training.launch, now, now - began_s))
            if states[-1].at_work:  # then the others need not be read
                return self._note(None)
        self._note(judged(states, self.retry.idle_gpus_s))

    def _state(self, node: int, launch: int, now: float, trains_s: float) -> NodeState:
        lines = list(decoded(read_end(self.attempt.node_samples(node), NOTE_BYTES)))[-2:]
        if len(lines) < 2 or lines[-1].launch != launch or not (newest := lines[-1]).sums:
            return NodeState()
        pace_s = newest.time_s - lines[0].time_s
        if self._newest.get(node, (None, 0.0))[0] != newest.time_s:
            self._newest[node] = (newest.time_s, now)
        gpus = newest.sums.gpus
        idle = [gpu.idle_s for gpu in gpus if gpu.idle_s is not None]
        silent = now - self._newest[node][1] > max(_SILENT_S, 3 * pace_s)
        if silent or not gpus or len(idle) < len(gpus):
            return NodeState()
        mean = all(gpu.active_s is not None for gpu in gpus)
        idle_s = min(trains_s, *idle) if mean or min(idle) >= _MOMENTS * pace_s else 0.0
        mark = self._marks.setdefault(node, newest)
        if at_work := (_moved(mark, newest) or _computed(mark, newest)):
            self._marks[node] = mark = newest
        stands_s = min(trains_s, newest.time_s - mark.time_s)
        if mean:
            return NodeState(idle_s, newest.rested_s, waits_s=stands_s, at_work=at_work)
        made = newest.optimizer_steps is not None
        return NodeState(
            idle_s, newest.rested_s, stands_s=stands_s if made else 0.0, at_work=at_work
        )

    def _note(self, found: Judgement | None) -> None:
        before = self._found
        if found is None:
            if before is not None and before.until_s is None:
                self._write(msgspec.structs.replace(before, until_s=time.time()))
                say("its GPUs compute again, or that is no longer known")
            return
        if before is None or before.until_s is not None or before.kind != found.kind:
            before = IdleGpus(kind=found.kind, since_s=time.time() - found.for_s)
        record = msgspec.structs.replace(before, works=found.works)
        sentence = record.sentence(f"for {roughly(found.for_s)}")
        if record != self._found:
            self._write(record)
            say(f"warning: {sentence}{self._why_not(record)}")
        if not self._told:
            self._told = True
            self.notify(sentence)
        if record.kind == "idle" and record.works is False and self.retry.on_idle_gpus == "stop":
            self._stop(record, sentence)

    def _why_not(self, record: IdleGpus) -> str:
        """Why it is not stopped, where it is to be."""
        if self.retry.on_idle_gpus != "stop" or (record.kind == "idle" and record.works is False):
            return ""
        return ", so it is not stopped (retry.on_idle_gpus)"

    def _stop(self, record: IdleGpus, sentence: str) -> None:
        """Ask it to save; end it once it has had time for that and still does nothing."""
        now = self.clock()
        if self._asked_s is None:
            self._asked_s = now
            with contextlib.suppress(FileExistsError):  # somebody else asks, who may wait longer
                write_new(self.task.stop_requested, f"{IDLE}: {sentence}\n")
                self._write(msgspec.structs.replace(record, asked_s=time.time()))
                say("it is asked to save and stop (retry.on_idle_gpus)")
        elif record.asked_s and now - self._asked_s >= min(_SAVES_S, self.retry.idle_gpus_s):
            self.over = sentence

    def _write(self, record: IdleGpus) -> None:
        self._found = record
        with contextlib.suppress(OSError):  # the disk is full
            write_idle(self.attempt, record)


def _moved(mark: Sample, newest: Sample) -> bool:
    return (mark.launch, mark.optimizer_steps) != (newest.launch, newest.optimizer_steps)


def _computed(mark: Sample, newest: Sample) -> bool:
    """Whether a GPU has, as far as that is measured."""
    pairs = zip(mark.sums.gpus if mark.sums else (), newest.sums.gpus if newest.sums else ())
    return any(
        after.active_s - before.active_s > _COMPUTES * (after.observed_s - before.observed_s)
        for before, after in pairs
        if before.active_s is not None and after.active_s is not None
    )
