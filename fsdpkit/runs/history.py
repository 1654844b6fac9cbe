"""What a run's directory says about its attempts: what started when, what broke, how it ended.

Reads only the small files written by agents and the batch shell; metrics, samples and logs are read
by the modules that need them. Nothing here asks the scheduler. A missing, incomplete or unreadable
file is None or empty here, never an error: this is read for runs that died.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from fsdpkit.bounded import FILES_READ, NOTE_BYTES
from fsdpkit.errors import STOPPED_EARLY, StorageError
from fsdpkit.runs import outcomes
from fsdpkit.runs.checkpoints import checkpoints_in, step_of
from fsdpkit.runs.events import read_json_lines
from fsdpkit.runs.failures import FailureRecord, Level, read_record
from fsdpkit.runs.job_ids import id_of
from fsdpkit.runs.layout import AttemptPaths, RunPaths, TaskPaths
from fsdpkit.runs.outcomes import AttemptVerdict, Cause, Ending, IdleGpus, Trouble
from fsdpkit.runs.reading import read_text, record_in
from fsdpkit.runs.record import RunRecord, Time, jobs_of_attempts
from fsdpkit.runs.staging import StageRecord, read_stage

Kind = TypeVar("Kind")
_CLOCKS_S = 1.0
"""How far the clocks of nodes may be apart."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the ranks within an attempt (`rank-<r>.restart-<number>.out`; 0: no suffix)."""

    number: int
    began_s: float
    """Unix time, with the pause before it."""
    nodes: tuple[str, ...]
    trouble_s: float | None = None
    cause: Cause | None = None
    message: str = ""
    """Who and what, if trouble ended it."""
    step: int | None = None
    """Steps done when the trouble came; -1 before the first."""


class NodeStory(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent of one node wrote down."""

    number: int
    name: str
    ready_s: float | None = None
    """Unix time; None: its check before training failed, or it never came so far."""
    ended_s: float | None = None
    pid: int | None = None
    """The agent's process."""
    findings: dict[str, Any] = {}
    """What the check found: software, gpus, memory_available_gb, preflight_s, …"""
    stop_looked: bool | None = None
    """Whether a rank of it had looked for a request to stop when one came, or has since; None: no
    request was passed on to it."""
    stop_handled: bool = False
    """Whether its script has a handler of its own for that, as far as is known."""
    done_launch: int | None = None
    """The last launch whose ranks here all ended well."""
    made_group: bool | None = None
    """Whether one of its ranks, which all ended well, had made a process group; None: not known, or
    there is only one rank."""
    unreached: str = ""
    """Where the head node's agent did not answer it, and why not, if that has lasted."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One file of `failures/`: a rank's or an agent's end, as the node's agent saw it."""

    time_s: float
    node: int
    rank: int | None
    status: int
    message: str
    """With who it was in front: `rank 3 on node2: …`."""
    file: Path
    record: FailureRecord | None = None
    """None: of an older release, or cut off."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the job by Slurm."""

    number: int
    dir: Path
    job_id: str | None
    """Slurm's id of the job it belongs to, array tasks as `12_3`."""
    nodes: tuple[NodeStory, ...] = ()
    launches: tuple[Launch, ...] = ()
    failures: tuple[Failure, ...] = ()
    """Those first that came first."""
    lost_nodes: tuple[str, ...] = ()
    stop_requested_s: float | None = None
    idle: IdleGpus | None = None
    """The newest time in which its GPUs did nothing, or only waited."""
    stage: StageRecord | None = None
    """What was copied to the nodes' own disks before the first launch."""
    verdict: AttemptVerdict | None = None
    ending: Ending | None = None
    ended_s: float | None = None
    """When the batch shell wrote `ending.json`; None: it runs, or was ended without being asked."""

    def sampled(self) -> Iterator[tuple[Path, NodeStory | None]]:
        """Files of samples, each with its node, as far as that has told of itself."""
        nodes = {str(node.number): node for node in self.nodes}
        for file in sorted(self.dir.glob("node-*.samples.jsonl")):
            yield file, nodes.get(file.name.split(".")[0].removeprefix("node-"))

    @property
    def paths(self) -> AttemptPaths:
        return AttemptPaths(self.dir)

    @property
    def clock_offsets(self) -> dict[str, float]:
        """By node, how many seconds its clock is ahead, as far as that is known."""
        told = {node.name: node.findings.get("clock_offset_s") for node in self.nodes}
        return {name: float(s) for name, s in told.items() if isinstance(s, int | float)}

    @property
    def standing_failures(self) -> tuple[Failure, ...]:
        """Those since its last launch began, for a restart got over the others: first what explains
        most, and of that what came first by the clock."""
        last = len(self.launches) - 1 if self.launches else None
        standing = (each for each in self.failures if last is None or self.place_of(each) == last)
        offsets = self.clock_offsets
        return tuple(sorted(standing, key=lambda each: _order(each, offsets)))

    def place_of(self, failure: Failure) -> int | None:
        """At which place in `launches` it failed; None: before the first, as far as clocks say."""
        known = failure.record.launch if failure.record is not None else None
        numbers = [launch.number for launch in self.launches]
        if known is not None:
            return numbers.index(known) if known in numbers else None
        head = next((node.name for node in self.nodes if node.number == 0), "")
        name = next((node.name for node in self.nodes if node.number == failure.node), "")
        offsets = self.clock_offsets
        ahead_s = offsets[name] - offsets[head] if {name, head} <= offsets.keys() else 0.0
        by_s = failure.time_s - ahead_s + _CLOCKS_S
        begun = [i for i, launch in enumerate(self.launches) if launch.began_s <= by_s]
        if not begun and failure.rank is not None and numbers[:1] == [0]:
            return 0  # a rank that fails was started, whatever its node's clock says
        return begun[-1] if begun else None

    @property
    def first_failure(self) -> Trouble | Failure | None:
        """The first of those, if it explains as much as what the agents decided by."""
        trouble = self.verdict.trouble if self.verdict is not None else None
        first = next(iter(self.standing_failures), None)
        if self.verdict is None or trouble is None:
            return first if self.verdict is None else None
        known = trouble.failure
        if first is None or known is None or trouble.lost or first.status == STOPPED_EARLY:
            return trouble
        return first if _level(first) >= known.level else trouble

    @property
    def stop_ignored(self) -> bool:
        """Whether its ranks were asked to save and stop, and none has looked or has a handler."""
        told = [n for n in self.nodes if n.stop_looked is not None]
        looked = [n.stop_looked or n.stop_handled for n in told]
        return self.stop_requested_s is not None and bool(looked) and not any(looked)

    @property
    def made_group(self) -> bool | None:
        """Whether any of several ranks that ended well had made a process group."""
        made = [node.made_group for node in self.nodes]
        if any(made):
            return True
        return False if made and all(one is False for one in made) else None

    @property
    def began_s(self) -> float | None:
        """The first thing on record, Unix time."""
        known = [n.ready_s for n in self.nodes if n.ready_s is not None]
        return min([*known, *(f.time_s for f in self.failures)], default=None)

    def node_of_rank(self, rank: int, ranks_per_node: int, launch: int = -1) -> str | None:
        """The name of the node that a rank was on; torchrun numbers ranks by node, in order."""
        if not self.launches:
            return None
        nodes = self.launches[launch].nodes
        place = rank // ranks_per_node
        return nodes[place] if place < len(nodes) else None


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A whole checkpoint on disk."""

    step: int
    time_s: float
    """When its directory got its name, Unix time."""
    dir: Path


class History(msgspec.Struct, frozen=True, kw_only=True):
    """One training: the run itself, or one task of an array."""

    run: Path
    array_task: int | None
    dir: Path
    attempts: tuple[Attempt, ...]
    checkpoints: tuple[Checkpoint, ...]
    """By step."""

    @property
    def paths(self) -> TaskPaths:
        return TaskPaths(self.dir)


def history_of(run: RunPaths, record: RunRecord, array_task: int | None = None) -> History:
    """Everything that the small files say. For an array, `array_task` selects the task."""
    task = run.task(array_task)
    numbers = task.attempts()
    jobs = [job for job in record.jobs if job.job_id is not None]
    mine = jobs_of_attempts(jobs, numbers, array_task)
    attempts = [
        attempt_of(task.attempt(n), id_of(str(mine[n].job_id), array_task) if n in mine else None)
        for n in numbers
    ]
    return History(
        run=run.dir,
        array_task=array_task,
        dir=task.dir,
        attempts=tuple(attempts),
        checkpoints=tuple(checkpoints_of(task)),
    )


def attempt_of(paths: AttemptPaths, job_id: str | None = None) -> Attempt:
    orders = [order for order, _ in _events(paths.orders, _Order)]
    ending, ended_s = outcomes.read(paths.ending, Ending), None
    if ending is not None:
        with contextlib.suppress(OSError):
            ended_s = paths.ending.stat().st_mtime
    return Attempt(
        number=paths.number,
        dir=paths.dir,
        job_id=job_id,
        nodes=tuple(_nodes(paths)),
        launches=tuple(_launches(orders)),
        failures=tuple(failures_in(paths)),
        lost_nodes=tuple(order.node for order in orders if order.event == "node-lost"),
        stop_requested_s=next((o.time_s for o in orders if o.event == "stop-requested"), None),
        idle=record_in(paths.idle, IdleGpus),
        stage=read_stage(paths),
        verdict=outcomes.read(paths.verdict, AttemptVerdict),
        ending=ending,
        ended_s=ended_s,
    )


class _Order(msgspec.Struct, kw_only=True):
    """A line of `orders.jsonl`."""

    event: str
    time_s: Time
    launch: int = 0
    nodes: tuple[str, ...] = ()
    delay_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    node: str = ""
    cause: Cause | None = None
    message: str = ""
    step: int | None = None


class _NodeEvent(msgspec.Struct, kw_only=True):
    """A line of `node-<i>.events.jsonl`, as far as all of them are alike."""

    event: str
    time_s: Time
    node: str = ""


def _events(path: Path, kind: type[Kind]) -> Iterator[tuple[Kind, dict[str, Any]]]:
    """Well-formed lines, typed and as written."""
    with contextlib.suppress(OSError):
        for line in read_json_lines(path):
            with contextlib.suppress(msgspec.ValidationError):
                yield msgspec.convert(line, kind), line


def _launches(orders: Iterable[_Order]) -> list[Launch]:
    found: list[Launch] = []
    for order in orders:
        if order.event == "launch":
            began_s = order.time_s + order.delay_s
            found.append(Launch(number=order.launch, began_s=began_s, nodes=order.nodes))
        elif order.event == "trouble" and found:
            found[-1] = msgspec.structs.replace(
                found[-1],
                trouble_s=order.time_s,
                cause=order.cause,
                message=order.message,
                step=order.step,
            )
    return found


def _nodes(paths: AttemptPaths) -> list[NodeStory]:
    found = []
    for file in _matching(paths.dir, "node-*.events.jsonl"):
        number = file.name.split(".")[0].removeprefix("node-")
        if not number.isdecimal():
            continue
        events = {event.event: (event, raw) for event, raw in _events(file, _NodeEvent)}
        ready, raw = events.get("node-ready", (None, {}))
        ended, _ = events.get("node-ended", (None, {}))
        _, passed_on = events.get("stop-passed-on", (None, {}))
        looked = passed_on.get("looked")
        _, done = events.get("ranks-done", (None, {}))
        made, over = done.get("process_group"), done.get("launch")
        _, unreached = events.get("head-unreached", (None, {}))
        name = next((event.node for event in (ready, ended) if event), "")
        known = {"time_s", "event", "node", "pid"}
        found.append(
            NodeStory(
                number=int(number),
                name=name,
                ready_s=ready.time_s if ready else None,
                ended_s=ended.time_s if ended else None,
                pid=pid if isinstance(pid := raw.get("pid"), int) and pid > 1 else None,
                findings={k: v for k, v in raw.items() if k not in known},
                stop_looked=looked if isinstance(looked, bool) else None,
                stop_handled=passed_on.get("handler") is True,
                made_group=made if isinstance(made, bool) else None,
                done_launch=over if isinstance(over, int) else None,
                unreached=str(unreached.get("why", ""))[:200],
            )
        )
    return sorted(found, key=lambda node: node.number)


def failures_in(paths: AttemptPaths) -> list[Failure]:
    """Those first that came first."""
    found = []
    for file in _matching(paths.failures, "[0-9]*-node-*"):
        time_ns, _, rest = file.name.partition("-node-")
        node, _, rank = rest.partition("-rank-")
        with contextlib.suppress(OSError, ValueError):
            text = read_text(file, NOTE_BYTES).strip()
            record = read_record(text)
            status, _, message = text.partition(" ")
            found.append(
                Failure(
                    time_s=msgspec.convert(int(time_ns) / 1e9, Time),
                    node=int(node),
                    rank=int(rank) if rank else None,
                    status=record.status if record else int(status),
                    message=record.message if record else message,
                    file=file,
                    record=record,
                )
            )
    return found


def _order(failure: Failure, offsets: Mapping[str, float]) -> tuple[bool, int, float]:
    name = failure.record.name if failure.record is not None else ""
    ahead_s = offsets.get(name, 0.0)
    return failure.status == STOPPED_EARLY, -_level(failure), failure.time_s - ahead_s


def _level(failure: Failure) -> int:
    return failure.record.level if failure.record is not None else Level.OWN


def _matching(directory: Path, pattern: str) -> list[Path]:
    """Sorted, and no more than any run has; none where one may not look."""
    try:
        return sorted(directory.glob(pattern))[:FILES_READ]
    except OSError:
        return []


def checkpoints_of(task: TaskPaths) -> Iterator[Checkpoint]:
    """By step; none where one may not look."""
    with contextlib.suppress(StorageError):
        for directory in checkpoints_in(task.checkpoints):
            with contextlib.suppress(OSError):
                if (step := step_of(directory)) is not None:
                    yield Checkpoint(step=step, time_s=directory.stat().st_mtime, dir=directory)
