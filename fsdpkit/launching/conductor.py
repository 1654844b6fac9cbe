"""The head node's agent decides for all: which nodes train, when to restart, when to end.

It is called a few times a second on the link's thread, and immediately when an agent sends
something.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fsdpkit.config.retry import Retry
from fsdpkit.errors import NodeError, NodeLostError
from fsdpkit.launching.job_log import say
from fsdpkit.launching.link import pace_s, patience_s
from fsdpkit.launching.message_log import MessageLog, Order, Said
from fsdpkit.launching.node_failure import judged, record_failure
from fsdpkit.launching.policy import (
    EndAttempt,
    Report,
    Restart,
    after_launch,
    first_trouble,
    trouble_of,
)
from fsdpkit.launching.reach import WAIT_S, Reached, Way, Ways
from fsdpkit.launching.stop_relay import ENDED_IN_TIME
from fsdpkit.runs import outcomes, stack_requests
from fsdpkit.runs.failures import PORTS_BLOCKED, FailureRecord, Level
from fsdpkit.runs.history import failures_in
from fsdpkit.runs.layout import AttemptPaths, TaskPaths, write_new
from fsdpkit.runs.outcomes import WARNING, AttemptVerdict, Trouble
from fsdpkit.runs.reading import read_text

_SETTLE_S = 3.0
"""How long other reports of the same trouble are waited for, so that the first is known."""
_STRAGGLE_S = 120.0
"""How long ranks may differ in how long they take to leave."""
_ABSENT_S = 5.0
"""A pause between two looks that is no business of the nodes'."""
_QUIET_S = 2.0
_QUIET_WORDS = 4
"""A silence that may become a loss: so long, and so many words that did not come."""
_UNREACHED_LOOK_S = 5.0
_GATHER_S = 30.0
"""With spares: how long to wait for the last nodes when enough are there."""


@dataclass
class Conductor:
    """State of one attempt. nodes: names of all, standby nodes included; wanted: how many train."""

    message_log: MessageLog
    nodes: list[str]
    wanted: int
    retry: Retry
    most_restarts: int
    attempt: AttemptPaths
    task: TaskPaths
    record: Callable[..., Any]
    start_s: float = 600.0
    """How long nodes may take until their agents are there."""
    clock: Callable[[], float] = time.monotonic
    connected: Callable[[], bool] = lambda: True
    """Whether this node's interface has a carrier."""
    ways: Ways | None = None
    """Of the ways between the nodes; None where there is only one node."""
    idle: Callable[[], str] = str
    """Why ranks are to be ended whose GPUs do nothing; empty: they are not."""

    over: bool = False
    _launch: int = -1
    _training: tuple[int, ...] = ()
    _reports: dict[int, Report] = field(default_factory=dict)
    _troubles: list[Trouble] = field(default_factory=list)
    _counts: list[int] = field(default_factory=list)
    _heard_s: list[float] = field(default_factory=list)
    _gone: set[int] = field(default_factory=set)
    _began_s: float = 0.0
    _trouble_s: float | None = None
    _stopping: bool = False
    _timed: bool = False
    """Whether the agents know when Slurm ends the job."""
    _look_s: float = 0.0
    _stacks_look_s: float = 0.0
    _stacks_asked: str | None = None
    _ticked_s: float = 0.0
    _cut_off: bool = False
    _trying_s: float | None = None
    _tried: dict[int, Reached] = field(default_factory=dict)
    _way: Way = field(default_factory=Way)
    _quiet_s: float = _QUIET_S
    _lost_s: float = 0.0

    def __post_init__(self) -> None:
        self._began_s = self.clock()
        self._counts = [0] * len(self.nodes)
        self._heard_s = [self._began_s] * len(self.nodes)
        self._quiet_s = max(_QUIET_S, _QUIET_WORDS * pace_s(len(self.nodes)))
        self._lost_s = patience_s(self.retry.lost_s, len(self.nodes))

    def newest(self) -> tuple[int, tuple[int, ...], float]:
        """The newest launch, as `IdleWatch.training` has it; of no node, before the first."""
        return self._launch, self._training, self._began_s

    @property
    def others(self) -> int:
        """How many agents there are beside this one."""
        return len([n for n, count in enumerate(self._counts) if count and n not in self._gone]) - 1

    def tick(self) -> None:
        """Look at what came in and act on it."""
        if self.over:
            return
        now = self.clock()
        self._forgive_own_absence(now)
        self._listen(now)
        self._look_for_stack_request(now)
        if self._launch < 0:
            self._gather(now)
        else:
            self._look_for_stop(now)
            self._judge(now)
            if not self.over and (why := self.idle()):
                self._end(Trouble(cause="idle", status=ENDED_IN_TIME, message=why), "")

    def _forgive_own_absence(self, now: float) -> None:
        """Silence while we did not listen (suspended, a stalled disk) does not count."""
        gap_s = now - self._ticked_s if self._ticked_s else 0.0
        self._ticked_s = now
        if gap_s > _ABSENT_S:
            self._heard_s = [heard_s + gap_s for heard_s in self._heard_s]
            self._began_s += gap_s

    def _listen(self, now: float) -> None:
        for node, count in enumerate(self.message_log.alive()):
            if count != self._counts[node]:
                self._counts[node], self._heard_s[node] = count, now
        for node, said in self.message_log.said():
            self._take(node, said)
        for node, heard_s in enumerate(self._heard_s):
            if self._counts[node] and now - heard_s > self._lost_s and node not in self._gone:
                self._gone.add(node)
                self.record(event="node-lost", node=self.nodes[node])

    def _take(self, node: int, said: Said) -> None:
        report, meeting = said.report, said.meeting
        if report is not None and report.launch == self._launch and report.outcome != "interrupted":
            self._reports[node] = report
        if meeting is not None and meeting.launch == self._launch and node == self._training[0]:
            self.message_log.order(
                Order(do="meet", launch=meeting.launch, host=meeting.host, port=meeting.port)
            )
        if said.tried is not None:
            self._tried[node] = said.tried

    def _gather(self, now: float) -> None:
        """Start when all agents have connected, or enough of them."""
        there = [n for n, count in enumerate(self._counts) if count and n not in self._gone]
        waited_s = now - self._began_s
        if len(there) == len(self.nodes) or (len(there) >= self.wanted and waited_s > _GATHER_S):
            if self._ways_are_known(there, now):
                self._run(tuple(there[: self.wanted]), now)
        elif (failure := self._unreached(now)) is not None:
            self._end(trouble_of(failure), "")
        elif waited_s > self.start_s:
            missing = tuple(name for n, name in enumerate(self.nodes) if n not in there)
            failure = FailureRecord(
                by="agent",
                name=", ".join(missing),
                status=NodeLostError.exit_code,
                cause="rendezvous-timeout",
                level=Level.WAITED,
                words=f"no agent after {waited_s:.0f} s",
            )
            self._end(trouble_of(failure, lost=missing), "")

    def _ways_are_known(self, there: list[int], now: float) -> bool:
        """Whether ranks can start, on an interface on which these nodes reach each other."""
        if self.ways is None or not self.ways.doors:
            return True
        if self._trying_s is None:
            self._trying_s = now
            self.message_log.order(Order(do="try", doors=self.ways.doors))
        if {*there} - {0} - self._tried.keys() and now - self._trying_s < WAIT_S:
            return False
        tried = {self.nodes[n]: self._tried[n] for n in there if n in self._tried}
        self._way = self.ways.way(self.nodes[0], tried)
        self.ways.close()
        if self._way.words:
            say(self._way.words)
            self.record(event="ways", message=self._way.words)
        if self._way.blocked:
            failure = judged("", PORTS_BLOCKED, NodeError.exit_code, self._way.words)
            record_failure(failure, self.attempt, 0, self.nodes[0])
            self._end(trouble_of(msgspec.structs.replace(failure, name=self.nodes[0])), "")
        return not self._way.blocked

    def _unreached(self, now: float) -> FailureRecord | None:
        """What another agent has on record of this one's port, which it cannot reach."""
        if now < self._look_s:
            return None
        self._look_s = now + _UNREACHED_LOOK_S
        records = (failure.record for failure in failures_in(self.attempt))
        return next((each for each in records if each and each.cause == PORTS_BLOCKED), None)

    def _run(
        self, nodes: tuple[int, ...], now: float, delay_s: float = 0, after: Trouble | None = None
    ) -> None:
        self._launch += 1
        self._training, self._reports, self._trouble_s = nodes, {}, None
        self._began_s = now + delay_s
        names = [self.nodes[n] for n in nodes]
        self.record(event="launch", launch=self._launch, nodes=names, delay_s=delay_s)
        self.message_log.order(
            Order(
                do="run",
                launch=self._launch,
                nodes=nodes,
                delay_s=delay_s,
                because=after.cause if after else "",
                status=after.status if after else 0,
                message=after.message if after else "",
                rendezvous=self._way.rendezvous,
            )
        )

    def _look_for_stop(self, now: float) -> None:
        if self._timed or now < self._look_s:
            return
        self._look_s = now + 1.0
        if self._stopping:
            if (end_s := ends_at(self.task)) is not None:
                self._timed = True
                self.message_log.order(Order(do="stop", delay_s=max(0.1, end_s - time.time())))
        elif os.path.exists(self.task.stop_requested):  # no error where a file server fails to say
            self._stopping = True
            self.record(event="stop-requested")
            self.message_log.order(Order(do="stop"))

    def _look_for_stack_request(self, now: float) -> None:
        if now < self._stacks_look_s:
            return
        self._stacks_look_s = now + 1.0
        asked = stack_requests.request(self.task)
        if asked is not None and asked != self._stacks_asked:
            self._stacks_asked = asked
            self.message_log.order(Order(do="stacks", message=asked))

    def _judge(self, now: float) -> None:
        quiet = any(now - self._heard_s[n] > self._quiet_s for n in self._training)
        self._cut_off = quiet and (self._cut_off or not self.connected())
        lost = [self.nodes[n] for n in self._training if n in self._gone]
        reports = [self._reports[n] for n in self._training if n in self._reports]
        trouble = first_trouble(reports, lost, max(0.0, now - self._began_s))
        if trouble is None:
            if len(reports) == len(self._training):
                self._end(None, "")
            return
        self._trouble_s = self._trouble_s or now
        waited_s = now - self._trouble_s
        if len(reports) + len(lost) < len(self._training):
            # A rank that stopped as asked says nothing about the others, which are stopping, too.
            wait_s = _STRAGGLE_S if trouble.cause == "stopped" else _SETTLE_S
            # One that crashed may only be the first to notice that a node is gone.
            if self._silent(now) and trouble.cause != "stopped":
                wait_s = self._lost_s + _SETTLE_S
            if waited_s < wait_s:
                return
        self._answer(trouble, now)

    def _silent(self, now: float) -> bool:
        return any(
            now - self._heard_s[n] > self._quiet_s for n in self._training if n not in self._gone
        )

    def _answer(self, trouble: Trouble, now: float) -> None:
        self.record(
            event="trouble", cause=trouble.cause, message=trouble.message, step=trouble.step
        )
        if self._stopping and trouble.cause != "stopped":
            in_time = trouble.status == ENDED_IN_TIME
            self._end(trouble, "" if in_time else "the run was asked to stop meanwhile")
            return
        self._gone |= {n for n, name in enumerate(self.nodes) if name in trouble.lost}
        left = [n for n in range(len(self.nodes)) if n not in self._gone]
        spares = len([n for n in left if n not in self._training])
        decision = after_launch(
            trouble, self._troubles, self.retry, most=self.most_restarts, spares=spares
        )
        self._troubles.append(trouble)
        if isinstance(decision, EndAttempt):
            self._end(trouble, decision.why, came_back=decision.came_back)
        else:
            self._again(decision, trouble, left, now)

    def _again(self, decision: Restart, trouble: Trouble, left: list[int], now: float) -> None:
        staying = [n for n in self._training if n in left]
        joining = [n for n in left if n not in self._training][: self.wanted - len(staying)]
        say(
            f"{trouble.message}; starting the ranks again in {decision.delay_s:.0f} s"
            + "".join(f", with {self.nodes[n]}" for n in joining)
        )
        self._run(tuple(sorted(staying + joining)), now, decision.delay_s, trouble)

    def _end(self, trouble: Trouble | None, why: str, *, came_back: bool = False) -> None:
        self.over = True
        status = trouble.status if trouble else 0
        verdict = AttemptVerdict(
            trouble=trouble,
            why=why,
            warned=self._stopping,
            restarts=max(0, self._launch),
            earlier=tuple(self._troubles),
            cut_off=self._cut_off,
            came_back=came_back,
        )
        with contextlib.suppress(OSError):  # the disk is full; the recorded failures remain
            outcomes.write(self.attempt.verdict, verdict)
        self.message_log.order(
            Order(
                do="end",
                status=status,
                because=trouble.cause if trouble else "done",
                message=f"{trouble.message}" + (f"; {why}" if why else "") if trouble else "",
            )
        )


def ends_at(task: TaskPaths) -> float | None:
    """When Slurm ends the job, in seconds since the epoch, asked after the warning."""
    with contextlib.suppress(OSError, ValueError):
        return float(read_text(task.ends_at))
    return None


def warn(task: TaskPaths) -> None:
    """Ask for a checkpoint and a stop because the scheduler gave a warning; any agent may."""
    # It may exist already, and a full disk must not end a healthy run. An empty file would mean:
    # do not requeue.
    with contextlib.suppress(OSError):
        write_new(task.stop_requested, WARNING + "\n")
