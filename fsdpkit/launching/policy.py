"""What to do when the ranks of an attempt have ended: pure decisions from facts and `[retry]`.

There are two decisions. `after_launch`, by the head node's agent inside the job: whether to restart
the ranks in the same allocation. `after_attempt`, by the batch shell once the agents are gone:
whether to requeue the job.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from fsdpkit.config.retry import Retry
from fsdpkit.errors import (
    STOPPED_EARLY,
    ConfigError,
    FsdpkitError,
    NodeError,
    NodeLostError,
    NotFoundError,
    StorageError,
    UsageError,
)
from fsdpkit.runs.failures import HUNG, FailureRecord, Level
from fsdpkit.runs.outcomes import IDLE, WARNING, Cause, Ending, Trouble

_IN_THE_PROGRAM = ("crash", "hang", "out-of-memory")
_LONGEST_BACKOFF_S = 300.0
_YOUNG_S = 300.0
"""A launch that lasted no longer has hardly begun: the same words again are the same trouble."""


def came_back(trouble: Trouble, before: Trouble) -> bool:
    """Whether the same thing happened as in the launch before, which restarting did not cure.

    Killed ranks and dying nodes can happen at any step; a failure that recurs at the same step is
    in the program or its data. Which rank, on which node, was first to say it, and what addresses
    and numbers it names, differs from launch to launch.
    """
    if trouble.cause not in _IN_THE_PROGRAM or trouble.cause != before.cause:
        return False
    if trouble.step is not None:
        return trouble.step == before.step
    return _alike(trouble) == _alike(before) and trouble.lasted_s < _YOUNG_S


def _alike(trouble: Trouble) -> tuple[str, str, str, list[str]]:
    """What is the same if it happens again: cause, type, place, and the words without a digit."""
    told = trouble.failure
    if told is None:
        return "", "", "", trouble.message.split()
    words = [word for word in told.words.split() if not re.search(r"\d", word)]
    return told.cause, told.exception, told.place, words


def cause_of(failure: FailureRecord) -> Cause:
    """The cause of a failure, as far as `[retry]` distinguishes causes."""
    status, ours = failure.status, failure.by != "rank"
    if status == STOPPED_EARLY:
        return "stopped"
    if failure.rule == HUNG:
        return "hang"
    if ours and status == NodeLostError.exit_code:
        return "node-failure"
    # A checkpoint also fails when another rank is gone: not the fault of the storage.
    if status == StorageError.exit_code and failure.level > Level.WAITED:
        return "storage"
    if status in _SETTINGS and (ours or status != UsageError.exit_code or _is_own(failure)):
        return "settings"
    if not failure.cause:
        return "crash"
    from fsdpkit.failures.causes import CAUSES  # many regular expressions: only on failure

    found = CAUSES.get(failure.cause)
    return found.retry if found else "crash"


_OWN_SETTINGS = (UsageError, ConfigError, NotFoundError, NodeError)
_SETTINGS = {error.exit_code for error in _OWN_SETTINGS}
_OWN_ERRORS = {error.__name__ for error in _OWN_SETTINGS}


def _is_own(failure: FailureRecord) -> bool:
    return failure.exception.rpartition(".")[2] in _OWN_ERRORS


class Restart(msgspec.Struct, frozen=True):
    """Restart the ranks after `delay_s`, on the remaining nodes and standby nodes."""

    delay_s: float


class EndAttempt(msgspec.Struct, frozen=True):
    """The attempt is over; `why` says what a person should know beyond the trouble itself."""

    why: str
    came_back: bool = False
    """Whether the trouble is that of the launch before."""


def after_launch(
    trouble: Trouble, earlier: Sequence[Trouble], retry: Retry, *, most: int, spares: int
) -> Restart | EndAttempt:
    """In the job: restart the ranks, or end the attempt. earlier: what ended the previous launches,
    in order. most: restarts in this attempt. spares: standby nodes."""
    if trouble.cause in ("stopped", "storage", "settings", "preflight"):
        return EndAttempt("")
    if trouble.cause == "node-failure":
        if retry.on_node_failure != "restart":
            return EndAttempt("")
        if spares < len(trouble.lost) or not trouble.lost:
            return EndAttempt("no spare node is left (resources.spare)" if trouble.lost else "")
    else:
        if _action_on(trouble.cause, retry) != "restart":
            return EndAttempt("")
        if earlier and came_back(trouble, earlier[-1]):
            why = f"it came back {_where(trouble.step)}, so starting again does not help"
            return EndAttempt(why, came_back=True)
    if len(earlier) >= most:
        return EndAttempt(f"{most} restarts are used up (retry.restarts)" if most else "")
    return Restart(min(retry.backoff_s * 2 ** len(earlier), _LONGEST_BACKOFF_S))


def _where(step: int | None) -> str:
    if step is None:
        return "with the same words"
    return "before the first step" if step < 0 else f"after step {step} again"


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What Slurm says about the job at its end. None: unknown."""

    ending: bool = False
    """Slurm ends it already: time limit, scancel, preemption."""
    reason: str | None = None
    preempted: bool = False
    requeue: bool | None = None
    """Whether it may be queued again."""
    exclude: str | None = None
    """The nodes that it excludes as yet, in Slurm's notation."""
    features: bool = False
    """Whether it asks for features."""
    chosen: bool = False
    """Whether it names nodes that it must have, or a reservation."""
    requeued: bool = False
    """Slurm has queued it again itself: a lost node, or a preemption at the end of its grace."""


class AttemptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of an attempt that is over."""

    status: int
    """srun's."""
    job: JobFacts
    trouble: Trouble | None = None
    """The agents' verdict, or else the first failure on record."""
    nodes: int = 2
    head: str = ""
    losses: tuple[tuple[str, ...], ...] = ()
    """Nodes lost on the way, though the attempt may have gone on: those of one launch together."""
    accusers: tuple[str, ...] = ()
    """Nodes on record with the word that the head node does not answer."""
    cut_off: bool = False
    """Whether the head node's interface had no carrier while others were silent."""
    decided: bool = False
    """Whether the agents came to a verdict, or were ended before."""
    warned: bool = False
    """Whether they had been asked to stop before the trouble came."""
    why: str = ""
    """What the agents had to say about why they did not go on."""
    came_back: bool = False
    """Whether the trouble is that of the launch before, which starting again did not cure."""
    hold_gone: str = ""
    """That the hold has ended that it ran on."""
    request: str | None = None
    """Content of `stop-requested`; None: nobody asked."""
    fruitless: int = 0
    """Attempts in a row, this one included, that left no newer checkpoint."""

    @property
    def silences(self) -> Losses:
        """Who fell silent on the way, and at the end."""
        lost = dict.fromkeys([*self.losses, *([self.trouble.lost] if self.trouble else [])])
        return Losses(lost, self.nodes, self.head, self.accusers, self.cut_off)


def after_attempt(attempt: AttemptFacts, retry: Retry) -> Ending:
    """After srun: end the job with which status, or requeue it without which nodes."""
    trouble, job = attempt.trouble, attempt.job
    avoid = attempt.silences.to_blame
    if trouble is None and attempt.status == 0 and not attempt.decided:
        why = "srun ended with status 0, but the agents left no verdict: nobody knows what was done"
        return Ending(action="end", status=FsdpkitError.exit_code, cause="unknown", why=why)
    if trouble is None and attempt.status == 0:
        why = "all ranks are done" + (f", without {', '.join(avoid)}" if avoid else "")
        return Ending(action="end", status=0, cause="done", why=why, avoid=avoid)
    if attempt.hold_gone:
        avoid = ()
    cause, wanted, why = _judge(attempt, retry)
    ending = Ending(
        action="end",
        status=trouble.status if trouble and trouble.status else attempt.status or 1,
        cause=cause,
        why=why,
        avoid=avoid,
        asked_slurm=cause != "time-limit" or job.reason == "TimeLimit",
        rule=trouble.failure.rule if trouble and trouble.failure else "",
    )
    if not wanted:
        for_good = _is_for_good(cause, attempt, retry)
        return msgspec.structs.replace(ending, for_good=for_good)
    if job.requeue is False or (job.requeue is None and not job.ending):
        why += "; the cluster does not queue a job again"
    elif attempt.fruitless > retry.requeues:
        why += (
            f"; {attempt.fruitless} attempts in a row left no new checkpoint (retry.requeues is "
            f"{retry.requeues})"
        )
    else:
        return msgspec.structs.replace(ending, action="requeue")
    return msgspec.structs.replace(ending, why=why)


def _judge(attempt: AttemptFacts, retry: Retry) -> tuple[str, bool, str]:
    """Cause, whether the policy requeues the job, and the sentence that says so."""
    trouble, job = attempt.trouble, attempt.job
    told = trouble.message if trouble else f"srun ended with status {attempt.status}"
    if attempt.why:
        told = f"{told}; {attempt.why}"
    asked, _, because = (attempt.request or "").partition(": ")
    if asked == IDLE:
        return IDLE, False, because
    if attempt.request is not None and attempt.request != WARNING:
        return "cancelled", False, "asked to stop and not to come back"
    if attempt.hold_gone:
        return "cancelled", False, attempt.hold_gone
    timed_out = job.reason == "TimeLimit"
    if job.requeued:
        cause = trouble.cause if trouble and trouble.cause == "node-failure" else "preemption"
        node = f"{trouble.message}; " if trouble and cause == "node-failure" else ""
        return cause, False, f"{node}Slurm took the nodes away and queues the job again"
    if job.ending and not timed_out and not job.preempted:
        return "cancelled", False, "cancelled"
    # The signal alone says little: srun also sends SIGTERM when one of its tasks has failed.
    stopped = attempt.warned or (trouble is not None and trouble.cause == "stopped")
    if not attempt.decided and not stopped and not (trouble and trouble.lost):
        first = "first on record: " if trouble else ""
        told = f"the agents were ended before they could decide; {first}{told}"
    if job.preempted and not timed_out and (stopped or job.ending):
        if job.ending:  # Slurm itself decides about a job that it has preempted
            return "preemption", False, "preempted"
        return "preemption", retry.on_preemption == "requeue", f"preempted; {told}"
    if timed_out or stopped:
        why = "the time is over" if timed_out else "Slurm warned of the end"
        return "time-limit", retry.on_time_limit == "requeue", f"{why}; {told}"
    if trouble is None:  # the agents recorded no more: they may have been killed
        return "unknown", attempt.status > 128 and retry.on_crash != "stop", told
    action = _action_on(trouble.cause, retry)
    # What the agents cannot restart themselves, a requeue can.
    cannot = trouble.cause == "node-failure" or not attempt.decided
    wanted = action == "requeue" or (action == "restart" and cannot)
    return trouble.cause, wanted, told


def _is_for_good(cause: str, attempt: AttemptFacts, retry: Retry) -> bool:
    if cause in _IN_THE_PROGRAM:
        return attempt.came_back or _action_on(cause, retry) == "stop"
    return cause in ("settings", "storage", "preflight", IDLE)


def _action_on(cause: str, retry: Retry) -> str:
    return {
        "node-failure": retry.on_node_failure,
        "crash": retry.on_crash,
        "hang": retry.on_hang,
        "out-of-memory": retry.on_out_of_memory,
    }.get(cause, "stop")


Outcome = Literal["done", "failed", "hung", "interrupted"]


@dataclass(frozen=True)
class Report:
    """How a launch ended on one node, as its agent tells the head's."""

    launch: int
    node: int
    name: str
    outcome: Outcome
    failure: FailureRecord | None = None
    step: int | None = None


def first_trouble(
    reports: Sequence[Report], lost: Sequence[str], lasted_s: float
) -> Trouble | None:
    """The first failure among a launch's reports; that nodes fell silent explains all others."""
    step = min((r.step for r in reports if r.step is not None), default=None)
    if lost:
        return trouble_of(_silent(lost), step=step, lasted_s=lasted_s, lost=tuple(lost))
    bad = [(r, r.failure) for r in reports if r.failure is not None]
    bad = [one for one in bad if cause_of(one[1]) != "stopped"] or bad
    if not bad:
        return None
    report, first = min(bad, key=lambda one: (-one[1].level, one[1].time_ns))
    broken = first.rank is not None and first.cause == "bad-gpu"
    lost = (report.name,) if broken else ()
    return trouble_of(first, step=report.step, lasted_s=lasted_s, lost=lost)


def _silent(nodes: Sequence[str]) -> FailureRecord:
    return FailureRecord(
        by="agent",
        name=", ".join(nodes),
        status=NodeLostError.exit_code,
        cause="node-failure",
        level=Level.OUTSIDE,
        words="no sign of life",
    )


def trouble_of(failure: FailureRecord, *, lost: Sequence[str] = (), **more: Any) -> Trouble:
    """The failure that ended a launch. lost: nodes that fell silent, or whose GPU is broken."""
    cause = "node-failure" if lost else cause_of(failure)
    return Trouble(
        cause=cause,
        status=StorageError.exit_code if cause == "storage" else failure.status,
        message=failure.message,
        failure=failure,
        lost=tuple(lost),
        **more,
    )


@dataclass(frozen=True)
class Losses:
    """What the head node saw of the others, and they of it."""

    lost: Iterable[tuple[str, ...]]
    """The names that it lost, those at once together."""
    nodes: int
    """How many trained."""
    head: str = ""
    accusers: Collection[str] = ()
    """Nodes that say on record that the head does not answer, so they are not gone themselves."""
    cut_off: bool = False
    """Whether the head's own interface had no carrier meanwhile."""

    @property
    def to_blame(self) -> tuple[str, ...]:
        """The nodes that explain what the head node saw; none if several could."""
        found: list[str] = []
        for lost in self.lost:
            if self._head_was_cut_off(lost):
                found.append(self.head)
            # More nodes than that do not fail at once: the network did.
            elif len(lost) <= max(1, self.nodes // 10):
                found += lost
        return tuple(dict.fromkeys(found))

    @property
    def maybe_gone(self) -> set[str]:
        """The lost nodes, but for those that only a head node lost which was cut off itself."""
        return {node for lost in self.lost if not self._head_was_cut_off(lost) for node in lost}

    @property
    def depend_on_their_word(self) -> bool:
        """Whether the head node lost all others, and more than one of them could still say that it
        was the head that fell silent."""
        return any(
            self._everybody_else(lost) and len(lost) > 1 and not self._head_was_cut_off(lost)
            for lost in self.lost
        )

    def _head_was_cut_off(self, lost: tuple[str, ...]) -> bool:
        accused = len({*self.accusers} & {*lost}) > 1
        return self._everybody_else(lost) and (self.cut_off or accused)

    def _everybody_else(self, lost: tuple[str, ...]) -> bool:
        return 0 < len(lost) >= self.nodes - 1
