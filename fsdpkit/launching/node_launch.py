"""One launch of torchrun's ranks on one node: what is noticed while they run, and how it ended.

launching/node.py makes one for each order to launch; launching/ranks.py starts the ranks and calls
back.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from fsdpkit.config.launch import LaunchSettings
from fsdpkit.errors import STOPPED_EARLY, NodeError
from fsdpkit.launching import flight, machine, slurm_variables
from fsdpkit.launching.heartbeats import RankHeartbeats
from fsdpkit.launching.job_log import say
from fsdpkit.launching.link import HeadLostError, Link
from fsdpkit.launching.message_log import Meeting, Order
from fsdpkit.launching.node_failure import (
    first_failure,
    hang_failure,
    judged,
    own_failure,
    record_failure,
    with_kernels_word,
)
from fsdpkit.launching.policy import Outcome, Report
from fsdpkit.launching.reach import Interfaces
from fsdpkit.launching.sampling import PrintedSoFar
from fsdpkit.launching.stacks import RankProcess
from fsdpkit.launching.stop_relay import ENDED_IN_TIME, StopRelay
from fsdpkit.launching.waiting import local_time_out, why_superseded
from fsdpkit.runs import stacks
from fsdpkit.runs.events import JsonLines
from fsdpkit.runs.failures import FailureRecord
from fsdpkit.runs.heartbeat import HeartbeatDir
from fsdpkit.runs.layout import AttemptPaths, TaskPaths
from fsdpkit.runs.printed_when import PrintedWhen
from fsdpkit.runs.rank_ends import RankEnd, event_of
from fsdpkit.runs.reading import read_text
from fsdpkit.runs.stacks import Why

if TYPE_CHECKING:
    from fsdpkit.launching.ranks import RankForks, RankVariables, Torchrun

_LOOK_FOR_LAUNCHERS_S = 5.0


@dataclass(frozen=True)
class AgentNode:
    """This agent's place in the attempt."""

    number: int
    name: str
    attempt: AttemptPaths
    task: TaskPaths
    events: JsonLines
    forks: RankForks
    printed: PrintedSoFar
    launch: LaunchSettings
    gpus: int
    own_variables: Mapping[str, str]
    """Environment variables that the job itself sets; srun has set some of them anew."""


@dataclass
class NodeLaunch:
    """The node's part of an order to launch, and the `Hooks` of its ranks."""

    order: Order
    node: AgentNode
    link: Link
    rank_heartbeats: RankHeartbeats
    relay: StopRelay
    hang: FailureRecord | None = None
    """Why the ranks were ended, if they made no progress."""
    cut_short: FailureRecord | None = None
    """Why this agent ended them otherwise."""
    _look_s: float = 0.0

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
        cgroup = machine.Cgroup()
        kills_before = cgroup.sample().get("oom_kills") or 0
        node.events.write(event="ranks-starting", launch=order.launch)
        try:
            torchrun.launch(
                order.launch,
                node.attempt,
                self.rank_heartbeats.dir,
                variables=self._variables(),
                meet=Meet(
                    order.nodes.index(node.number),
                    len(order.nodes),
                    tell=lambda host, port: self.link.tell(
                        meeting=Meeting(order.launch, host, port)
                    ),
                    ask=lambda: self.link.meeting(order.launch, meet_s),
                ),
                own_workers=torchrun.config.nproc_per_node < node.gpus,
                forks=node.forks,
                hooks=self,
            )
        except ChildFailedError as error:
            if found := wrong_world(self.rank_heartbeats.node, self.rank_heartbeats.ranks):
                return self._report("failed", self._wrong_world(*found))
            ranks = [rank.rank for rank in self.rank_heartbeats.ranks]
            when = PrintedWhen.of(node.attempt.node_samples(node.number), order.launch)
            first = first_failure(
                error, node.attempt, order.launch, self.rank_heartbeats.dir, ranks, when
            )
            killed = (cgroup.sample().get("oom_kills") or 0) - kills_before
            return self._report("failed", with_kernels_word(first, killed))
        except InterruptedLaunch as error:
            if self.hang:
                return self._report("hung", self.hang)
            if self.cut_short:
                return self._report("failed", self.cut_short)
            if self.link.lost:
                raise HeadLostError(str(error)) from error
            return self._report("interrupted")
        except Exception as error:  # rendezvous, or the ranks' start
            return self._report("failed", own_failure(error))
        if found := wrong_world(self.rank_heartbeats.node, self.rank_heartbeats.ranks):
            return self._report("failed", self._wrong_world(*found))
        if self.relay.left_by_handler:
            words = "left with status 0 after the warning, by the script's own handler"
            return self._report("failed", judged("", "", STOPPED_EARLY, words))
        return self._report("done")

    def _variables(self) -> RankVariables:
        """What ranks have in their environment beside torchrun's; what the job sets stays."""
        node = self.node
        dumps = flight.switched_on(
            os.environ, node.attempt, self.order.launch, self.rank_heartbeats.node
        )
        names = os.environ.get("FSDPKIT_NODE_NAMES", node.name).split()
        training = [names[number] for number in self.order.nodes]
        interfaces = Interfaces.of(os.environ, "") if self.order.rendezvous else None
        sockets = interfaces.variables() if interfaces else {}

        def of_rank(torchrun: Mapping[str, str]) -> dict[str, str]:
            slurm = slurm_variables.of_rank(torchrun, os.environ, training)
            slurm |= {
                name: node.own_variables[name] for name in slurm if name in node.own_variables
            }
            return {**dumps, **slurm, **sockets, "FSDPKIT_WORLD": node.launch.world}

        return of_rank

    def interrupted(self) -> str | None:
        """Why to end the ranks: another order, a silent head node, or a rank that hangs."""
        self.relay.look()
        if (next_order := self.link.superseded) is not None:
            if why := why_superseded(next_order):
                self._take_stacks(why)
            return "superseded"
        if self.link.lost:
            return self.link.lost_message()
        if self.hang is None and (found := self.rank_heartbeats.look()) is not None:
            self._take_stacks("hang")
            blamed = self.rank_heartbeats.blame(self.node.attempt, self.order.launch)
            self.hang = hang_failure(found, blamed)
        failure = self.hang or self._why_cut_short()
        return failure.words if failure else None

    def _why_cut_short(self) -> FailureRecord | None:
        """Why this agent ends ranks that do nothing wrong by themselves."""
        if self.cut_short is None and (why := self.relay.overdue()):
            self.cut_short = judged("", "", ENDED_IN_TIME, why)
        now = time.monotonic()
        if self.cut_short is None and self.node.launch.world != "any" and now > self._look_s:
            self._look_s = now + _LOOK_FOR_LAUNCHERS_S
            sizes = (self._size, len(self.order.nodes) * self.node.gpus)
            if found := _inner_world(self.rank_heartbeats.node, self.rank_heartbeats.ranks, sizes):
                self.cut_short = self._wrong_world(*found)
        return self.cut_short

    def _wrong_world(self, rank: int, why: str) -> FailureRecord:
        return judged("", "wrong-world", NodeError.exit_code, why, rank=rank)

    @property
    def _size(self) -> int:
        """How many ranks the launch has."""
        return len(self.order.nodes) * len(self.rank_heartbeats.ranks)

    def started(self, ranks: Sequence[RankProcess]) -> None:
        self.rank_heartbeats.ranks = ranks
        self.node.printed.follow(self.order.launch, ranks)
        self.relay.started(ranks)
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
        taken = self.rank_heartbeats.ask_for_stacks(self.node.attempt, self.order.launch, why)
        if taken is not None:
            self.node.events.write(**stacks.event_of(taken))
            if taken.missing:
                say(stacks.in_words(taken))

    def _report(self, outcome: Outcome, failure: FailureRecord | None = None) -> Report:
        node, step = self.node, self.rank_heartbeats.step
        told: dict[str, object] = {
            "event": f"ranks-{outcome}",
            "launch": self.order.launch,
            "step": step,
        }
        report = Report(self.order.launch, node.number, node.name, outcome)
        if failure is None:
            own_workers = len(self.rank_heartbeats.ranks) < node.gpus
            if outcome == "done" and self._size > 1 and not own_workers:
                told["process_group"] = made_a_group(
                    self.rank_heartbeats.node, self.rank_heartbeats.ranks
                )
            node.events.write(**told)
            return report
        node.events.write(**told, rank=failure.rank, status=failure.status, message=failure.words)
        failure = msgspec.structs.replace(
            failure, name=node.name, launch=self.order.launch, step=step
        )
        record_failure(failure, node.attempt, node.number, node.name)
        return replace(report, failure=failure, step=step)


def wrong_world(node: HeartbeatDir, ranks: Sequence[RankProcess]) -> tuple[int, str] | None:
    """A rank whose process group is not the job's, and what its script did; None: no rank."""
    for rank in ranks:
        kind, _, why = _noted(node.world(rank.local_rank)).partition(" ")
        if kind == "wrong":
            return rank.rank, why
    return None


def made_a_group(node: HeartbeatDir, ranks: Sequence[RankProcess]) -> bool | None:
    """Whether any rank made a process group; None where that is not known of all of them."""
    notes = [_noted(node.world(rank.local_rank)) for rank in ranks]
    if any(note and note != "none" for note in notes):
        return True
    return False if notes and all(notes) else None


def _inner_world(
    node: HeartbeatDir, ranks: Sequence[RankProcess], sizes: Sequence[int]
) -> tuple[int, str] | None:
    """A rank that has made no process group but has started ranks of another world, as `torchrun`
    inside a rank does, and a sentence about it. sizes: those of worlds that are the job's."""
    for rank in ranks:
        if _noted(node.world(rank.local_rank)) not in ("", "none"):
            continue
        for name, environ in _descendants(rank.pid):
            size = environ.get("WORLD_SIZE", "")
            if size.isdigit() and int(size) not in sizes and "RANK" in environ:
                return rank.rank, (
                    f"the script has started a launcher of its own, whose {name} has "
                    f"WORLD_SIZE={size}, in each of the job's {sizes[0]} ranks; name the training "
                    f"script itself as the job's entry, or start one process a node with "
                    f'launch.ranks_per_node = 1; to allow it: launch.world = "any".'
                )
    return None


def _noted(path: Path) -> str:
    with contextlib.suppress(OSError):
        return read_text(path).strip()
    return ""


def _descendants(pid: int) -> list[tuple[str, Mapping[str, str]]]:
    """Name and environment of each process below this one."""
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                found.append((child.name(), child.environ()))
    return found
