"""One launch of torchrun's ranks on one node: what is noticed while they run, and how it ended.

launching/node.py makes one for each order to launch; launching/ranks.py starts the ranks and calls
back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fsdpkit.launching import flight
from fsdpkit.launching.board import Meeting, Order
from fsdpkit.launching.link import HeadLostError, Link
from fsdpkit.launching.node_failure import (
    NodeFailure,
    first_failure,
    hang_failure,
    record_failure,
)
from fsdpkit.launching.policy import Outcome, Report
from fsdpkit.launching.pulse import Pulse, StopRelay
from fsdpkit.launching.saying import say
from fsdpkit.launching.stacks import RankProcess
from fsdpkit.launching.waiting import local_time_out, why_superseded
from fsdpkit.runs import stacks
from fsdpkit.runs.events import JsonLines
from fsdpkit.runs.layout import AttemptPaths, TaskPaths
from fsdpkit.runs.rank_ends import RankEnd, event_of
from fsdpkit.runs.stacks import Why

if TYPE_CHECKING:
    from fsdpkit.launching.ranks import RankForks, Torchrun


@dataclass(frozen=True)
class AgentNode:
    """This agent's place in the attempt."""

    number: int
    name: str
    attempt: AttemptPaths
    task: TaskPaths
    events: JsonLines
    forks: RankForks


@dataclass
class NodeLaunch:
    """The node's part of an order to launch, and the `Hooks` of its ranks."""

    order: Order
    node: AgentNode
    link: Link
    pulse: Pulse
    relay: StopRelay
    hang: NodeFailure | None = None
    """Why the ranks were ended, if they made no progress."""

    def wait(self) -> bool:
        """Let the order's delay pass; False if another order came meanwhile."""
        deadline = time.monotonic() + self.order.delay_s
        while time.monotonic() < deadline:
            if self.link.superseded:
                return False
            time.sleep(0.1)
        return True

    def run(self, torchrun: Torchrun, meet_s: float) -> Report:
        """Start the ranks and wait for their end. meet_s: how long the ranks' store may take to be
        announced. Raises HeadLostError."""
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

        from fsdpkit.launching.ranks import InterruptedLaunch, Meet

        order, node = self.order, self.node
        node.forks.forked = 0
        node.events.write(event="ranks-starting", launch=order.launch)
        try:
            torchrun.launch(
                order.launch,
                node.attempt,
                self.pulse.dir,
                variables=flight.switched_on(
                    os.environ, node.attempt, order.launch, self.pulse.node
                ),
                meet=Meet(
                    order.nodes.index(node.number),
                    len(order.nodes),
                    tell=lambda host, port: self.link.meet(Meeting(order.launch, host, port)),
                    ask=lambda: self.link.meeting(order.launch, meet_s),
                ),
                forks=node.forks,
                hooks=self,
            )
        except ChildFailedError as error:
            return self._report("failed", first_failure(error, node.attempt, order.launch))
        except InterruptedLaunch as error:
            if self.hang:
                return self._report("hung", self.hang)
            if self.link.lost:
                raise HeadLostError(str(error)) from error
            return self._report("interrupted")
        except Exception as error:  # rendezvous, or the ranks' start
            return self._report("failed", NodeFailure.of(error))
        return self._report("done")

    def interrupted(self) -> str | None:
        """Why to end the ranks: another order, a silent head node, or a rank that hangs."""
        self.relay.look()
        if (next_order := self.link.superseded) is not None:
            if why := why_superseded(next_order):
                self._take_stacks(why)
            return "superseded"
        if self.link.lost:
            return self.link.lost_message()
        if self.hang is None and (found := self.pulse.look()) is not None:
            self._take_stacks("hang")
            blamed = self.pulse.blame(self.node.attempt, self.order.launch)
            self.hang = hang_failure(found, blamed)
        return self.hang.message if self.hang else None

    def started(self, ranks: Sequence[RankProcess]) -> None:
        self.pulse.started(ranks)
        self.node.events.write(
            event="ranks-started",
            launch=self.order.launch,
            pids={str(rank.rank): rank.pid for rank in ranks},
            forked=self.node.forks.forked,
        )

    def failing(self, ends: Mapping[int, RankEnd]) -> None:
        """Ask the other ranks where they are if these waited for them in vain."""
        attempt, launch = self.node.attempt, self.order.launch
        if local_time_out({attempt.rank_file(r, "err", launch): end for r, end in ends.items()}):
            self._take_stacks("time-out")

    def ended(self, ends: Mapping[int, RankEnd]) -> None:
        self.node.events.write(**event_of(self.order.launch, ends))

    def _take_stacks(self, why: Why) -> None:
        taken = self.pulse.ask_for_stacks(self.node.attempt, self.order.launch, why)
        if taken is not None:
            self.node.events.write(**stacks.event_of(taken))
            if taken.missing:
                say(stacks.in_words(taken))

    def _report(self, outcome: Outcome, failure: NodeFailure | None = None) -> Report:
        node, step = self.node, self.pulse.step
        told = {"event": f"ranks-{outcome}", "launch": self.order.launch, "step": step}
        report = Report(self.order.launch, node.number, node.name, outcome)
        if failure is None:
            node.events.write(**told)
            return report
        node.events.write(**told, rank=failure.rank, status=failure.status, message=failure.message)
        record_failure(failure, node.attempt, node.number, node.name)
        return replace(
            report,
            status=failure.status,
            message=failure.message,
            time_ns=failure.time_ns,
            rank=failure.rank,
            step=step,
        )
