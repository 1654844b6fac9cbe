"""What a person sees of a run while it is running: a `View`, and how it is put together. Pure.

`fsdpkit.reporting.status.looking` reads what a view is made of; `fsdpkit.cli.watch` draws it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fsdpkit.config.units import roughly
from fsdpkit.errors import FsdpkitError
from fsdpkit.reporting.pending import PendingEvidence, why
from fsdpkit.reporting.series import KNOWN_NAMES
from fsdpkit.reporting.staged import StageProgress
from fsdpkit.reporting.status.job_words import phase_of
from fsdpkit.reporting.status.progress import TrainingProgress
from fsdpkit.reporting.status.status_record import Phase, Printed
from fsdpkit.reporting.timeline import TimelineSpan
from fsdpkit.reporting.usage import NodeUsage
from fsdpkit.reporting.words import duration, number, second
from fsdpkit.runs.history import Attempt, History
from fsdpkit.runs.reading import number_in, parsed
from fsdpkit.scheduling.run_states import Standing
from fsdpkit.scheduling.states import JobState

_SLOW = 1.2
"""A rank this many times slower than the median is worth a line, as in the trainer's own log."""
_MOST_POINTS = 20_000
_MOST_NAMES = 16
"""Of numbers that a script logs by names of its own."""
_FOR_EVER = "; this will not resolve by itself"
ASKING = "asking the scheduler"
"""The state before its first answer."""


class RunEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that is reported once: an attempt, a fault, a restart, a checkpoint."""

    time_s: float
    words: str


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is shown. None and empty: not known, or not there."""

    run: str
    state: str
    """As Slurm calls it, with what belongs to it: `RUNNING`, `FAILED, exit status 3`."""
    phase: Phase = "unknown"
    since_s: float | None = None
    """When it came into that state, Unix time."""
    limit_s: float | None = None
    """When the time limit of one that runs is reached, Unix time."""
    job_id: str | None = None
    task: str | None = None
    """Of an array, which task this is: `task 0 of 3`."""
    nodes: str | None = None
    why: str | None = None
    """Why it is pending, in words."""
    starts: str | None = None
    """When the scheduler expects it to start; that changes with each look."""
    action: str | None = None
    attempt: int | None = None
    start: str | None = None
    """How far the start is, before the first step: `1 of 2 nodes passed preflight`."""
    progress: TrainingProgress = TrainingProgress()
    curves: Mapping[str, tuple[float | None, ...]] = {}
    """Numbers by step, steps that were done again only once: by the name they were logged under, or
    the loss that a script which logs no steps has printed."""
    printed: Printed | None = None
    """What rank 0's output says."""
    stage: StageProgress | None = None
    """What is copied to the nodes' own disks."""
    memory_bytes: float | None = None
    """Peak of rank 0."""
    straggler: str | None = None
    used: tuple[NodeUsage, ...] = ()
    events: tuple[RunEvent, ...] = ()
    lines: tuple[str, ...] = ()
    """The newest of rank 0, or before it began of the batch shell; escape sequences but colours
    taken out."""
    unread: tuple[str, ...] = ()
    """What the scheduler did not say, and why."""
    over: bool = False
    exit_status: int | None = None
    """Exit status of a command that waited for the run, once it is over."""


class Curves:
    """Numbers by step, as metrics.jsonl grows: loss and speed, evaluations, the script's own."""

    def __init__(self) -> None:
        self._points: dict[str, list[tuple[int, float | None]]] = {"loss": [], "tokens_per_s": []}
        self.memory_bytes: float | None = None
        self.straggler: str | None = None

    def add(self, text: str) -> None:
        """One line of the file; an incomplete or malformed one is skipped."""
        try:
            fields = parsed(text)
            line = msgspec.convert(fields, _Line)
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            return
        for name, value in fields.items():
            own = name not in KNOWN_NAMES and number_in(value) is not None
            if name == "eval_loss" or own:
                self._add(name, line.step, value)
        if line.step_time_s is None:
            return  # an evaluation or a checkpoint
        self._add("loss", line.step, line.loss)
        self._add("tokens_per_s", line.step, line.tokens_per_s)
        self.memory_bytes = line.memory_bytes or self.memory_bytes
        if line.slowest_ratio is not None:
            self.straggler = _straggler(line)

    def _add(self, name: str, step: int, value: object) -> None:
        if name not in self._points and len(self._points) >= _MOST_NAMES:
            return
        points = self._points.setdefault(name, [])
        while points and points[-1][0] >= step:
            points.pop()  # lost in a crash, and being repeated
        points.append((step, number_in(value)))
        if len(points) > 2 * _MOST_POINTS:
            del points[::2]

    def curves(self) -> dict[str, tuple[float | None, ...]]:
        """By name: loss, speed, an evaluation's loss, then the others in the order they came."""
        first = ("loss", "tokens_per_s", "eval_loss")
        names = dict.fromkeys((*first, *self._points))
        return {
            name: tuple(value for _, value in self._points[name])
            for name in names
            if name in self._points
        }


class _Line(msgspec.Struct, gc=False):
    step: int
    step_time_s: float | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    memory_bytes: float | None = None
    slowest_rank: int | None = None
    slowest_host: str | None = None
    slowest_ratio: float | None = None


def _straggler(line: _Line) -> str | None:
    if line.slowest_ratio is None or line.slowest_ratio < _SLOW:
        return None
    where = f" on {line.slowest_host}" if line.slowest_host else ""
    ratio = f"{line.slowest_ratio:.2f} times as long as the median rank"
    return f"rank {line.slowest_rank}{where} computes {ratio}"


def events_of(spans: Iterable[TimelineSpan]) -> list[RunEvent]:
    """The events of a timeline that matter to a person, in order; of checkpoints only the
    newest."""
    found: list[RunEvent] = []
    saved: RunEvent | None = None
    for span in spans:
        if span.kind == "attempt":
            found.append(RunEvent(time_s=span.begin_s, words=f"attempt {span.attempt} began"))
            if span.end_s is not None and not span.guessed:
                found.append(RunEvent(time_s=span.end_s, words=f"over: {span.label}"))
        elif span.kind == "launch" and not span.label.startswith("launch 0 "):
            found.append(RunEvent(time_s=span.begin_s, words=f"ranks started again, {span.label}"))
        elif span.kind in ("fault", "stop"):
            found.append(RunEvent(time_s=span.begin_s, words=span.label))
        elif span.kind == "stage" and span.end_s is not None and not span.guessed:
            words = f"{span.label}, in {duration(span.end_s - span.begin_s)}"
            found.append(RunEvent(time_s=span.end_s, words=words))
        elif span.kind == "checkpoint":
            saved = RunEvent(time_s=span.begin_s, words=span.label)
    return sorted([*found, *([saved] if saved else [])], key=lambda one: one.time_s)


def view_of(
    run: str,
    state: JobState | None,
    history: History,
    *,
    job_id: str | None = None,
    standing: Standing | None = None,
    size: int = 0,
    **seen: Any,
) -> View:
    """A view; `seen` are those of its fields that need no thought. size: how many nodes it has."""
    attempt = history.attempts[-1] if history.attempts else None
    answer = starts = None
    if state is not None and state.phase == "pending":
        evidence = PendingEvidence(
            reason=state.reason, job_id=job_id, run=run, restarts=state.restarts
        )
        answer = why(evidence)
        start_s = state.start_s or 0.0
        if not answer.never and (in_s := start_s - time.time()) > 0:
            at = second(start_s)[11 if in_s < 43200 else 0 : 16]
            starts = f"expected to start in {roughly(in_s)}, at {at}"
    return View(
        run=run,
        state=_state(state, history, standing),
        phase=phase_of([state]),
        since_s=_since_s(state, attempt),
        limit_s=state.end_s if state is not None and state.phase == "running" else None,
        job_id=job_id,
        nodes=state.node_list if state else None,
        why=f"{answer.words}{_FOR_EVER * answer.never}" if answer else None,
        starts=starts,
        action=answer.action if answer else None,
        attempt=attempt.number if attempt else None,
        start=_start(attempt, size) if attempt else None,
        unread=standing.unread if standing else (),
        exit_status=_exit_status(state, history),
        **seen,
    )


def _since_s(state: JobState | None, attempt: Attempt | None) -> float | None:
    if state is None:
        return attempt.ended_s if attempt else None
    times = {"pending": state.submit_s, "running": state.start_s, "ended": state.end_s}
    return times.get(state.phase)


def _start(attempt: Attempt, size: int) -> str:
    """How far an attempt is that has made no step."""
    if attempt.launches:
        launch = attempt.launches[-1]
        again = " again" if len(attempt.launches) > 1 else ""
        return f"ranks started{again} {duration(max(0.0, time.time() - launch.began_s))} ago"
    ready = sum(node.ready_s is not None for node in attempt.nodes)
    return f"{ready} of {max(ready, size)} nodes passed preflight"


def _exit_status(state: JobState | None, history: History) -> int | None:
    """From the scheduler; for a job that it has forgotten, from the run's own files."""
    if state is not None:
        return state.exit_status if state.phase == "ended" else None
    if not ended_on_record(history):
        return None
    newest = history.attempts[-1]
    status = newest.ending.status if newest.ending else 0
    return status or (0 if newest.verdict else FsdpkitError.exit_code)


def _state(state: JobState | None, history: History, standing: Standing | None) -> str:
    if state is not None:
        return state.state if state.phase == "pending" else state.describe()
    if standing is None:
        return ASKING
    if standing.strange:
        return f"unknown here: {standing.strange}"
    if ended_on_record(history):
        return "ended, forgotten by the scheduler"
    return "unknown to the scheduler"


def ended_on_record(history: History) -> bool:
    """Whether the run's own files say that the newest attempt is the last."""
    ending = history.attempts[-1].ending if history.attempts else None
    return ending is not None and ending.action == "end"


def changes(before: View | None, now: View, now_s: float) -> list[RunEvent]:
    """What is new in a look compared with the previous one, by when it happened: for line output.

    now_s: Unix time of what has none of its own."""
    found = _new(before.events if before else (), now.events)

    def add(words: str, time_s: float | None = None) -> None:
        found.append(RunEvent(time_s=time_s or now_s, words=words))

    same = before is not None and (before.state, before.why) == (now.state, now.why)
    if not same and now.state != ASKING:
        job = f"job {now.job_id}" if now.job_id else None
        said = [now.state, job, now.task, now.nodes, now.why, now.action]
        first = before is None or before.state == ASKING
        add(", ".join(filter(None, said)), now.since_s if first or now.over else None)
    if _stage_mark(now) not in (None, _stage_mark(before)) and now.stage is not None:
        add(f"copying to nodes: {now.stage.so_far}")
    if now.straggler and (before is None or before.straggler != now.straggler):
        add(now.straggler, now.progress.updated_s)
    newer = before is None or before.progress.updated_s != now.progress.updated_s
    if now.progress.step is not None and newer:
        add(progress_line(now.progress), now.progress.updated_s)
    elif now.printed is not None and now.progress.step is None:
        words = printed_line(now.printed)
        if before is None or before.printed is None or printed_line(before.printed) != words:
            add(words, now.printed.printed_s)
    for one in now.unread:
        if before is None or one not in before.unread:
            add(one)
    return sorted(found, key=lambda one: one.time_s)


def _stage_mark(view: View | None) -> tuple[int, int] | None:
    """What must have changed for another line."""
    stage = view.stage if view is not None else None
    return (stage.ready, int(10 * stage.share)) if stage is not None and stage.goes_on else None


def _new(before: Iterable[RunEvent], now: Iterable[RunEvent]) -> list[RunEvent]:
    """Events that are new: a time becomes more exact while files come in, so that the
    same words at another time are the same event, as often as they were there before."""
    left = Counter(one.words for one in before)
    found = []
    for one in now:
        if left[one.words]:
            left[one.words] -= 1
        else:
            found.append(one)
    return found


def printed_line(printed: Printed) -> str:
    """What is read from the output, or its newest line."""
    if printed.words:
        return f"{printed.words} ({printed.source})"
    return f"rank {printed.rank} prints: {printed.line}"


def progress_line(progress: TrainingProgress) -> str:
    """`step 120 of 500, loss 3.21, 41,200 tokens/s, 3 min 12 s to go`."""
    of = f" of {progress.steps:,}" if progress.steps else ""
    words = [f"step {progress.step:,}{of}" if progress.step is not None else "no step yet"]
    if progress.loss is not None:
        words.append(f"loss {number(progress.loss, 4)}")
    if progress.tokens_per_s is not None:
        words.append(f"{number(progress.tokens_per_s)} tokens/s")
    if progress.eta_s is not None:
        words.append(f"{duration(progress.eta_s)} to go")
    return ", ".join(words)
