"""One node's part of a run, from the first check to the last rank's end.

launching/task.py is what submitit calls. The torchrun command comes from the script, not from the
pickle, so a requeued attempt runs what the script says. The head node's agent decides when ranks
are started and restarted (launching/conductor.py).
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from fsdpkit.config.launch import LaunchSettings
from fsdpkit.config.notify import Notify
from fsdpkit.config.retry import Retry
from fsdpkit.errors import FsdpkitError, NodeError, PortTakenError
from fsdpkit.launching import flight, warm
from fsdpkit.launching.accelerate_variables import accelerate_variables
from fsdpkit.launching.conductor import Conductor, warn
from fsdpkit.launching.connection import LocalConnection, PeerConnection
from fsdpkit.launching.head_port import HeadPort
from fsdpkit.launching.heartbeats import AskedForStacks, RankHeartbeats, heartbeats
from fsdpkit.launching.idle_gpus import IdleWatch
from fsdpkit.launching.job_log import say
from fsdpkit.launching.link import HeadLostError, Link, pace_s, patience_s
from fsdpkit.launching.listening import own_address
from fsdpkit.launching.message_log import MessageLog, Order
from fsdpkit.launching.no_collector import no_collector
from fsdpkit.launching.node_failure import TrainingEnded, keep_room, own_failure, record_failure
from fsdpkit.launching.node_launch import AgentNode, NodeLaunch
from fsdpkit.launching.preflight import compare_nodes, run_checks
from fsdpkit.launching.reach import Interfaces, Ways, try_doors
from fsdpkit.launching.sampling import PrintedSoFar, sampling
from fsdpkit.launching.signing import keys_of
from fsdpkit.launching.stall_watch import StallWatch
from fsdpkit.launching.stop_relay import StopRelay
from fsdpkit.launching.waiting import why_superseded
from fsdpkit.runs.events import JsonLines
from fsdpkit.runs.failures import CHECK, HEAD_SILENT
from fsdpkit.runs.job_file import table_of_job, unknown_keys
from fsdpkit.runs.layout import AttemptPaths, RunPaths, TaskPaths

if TYPE_CHECKING:
    from fsdpkit.launching.ranks import Torchrun

_STUCK_S = 20.0
"""How long the main thread may take to notice that the head node is gone."""


def torchrun_arguments(argv: list[str]) -> list[str]:
    """What follows `-- torchrun`. Raises NodeError if the script calls the agent otherwise."""
    if argv[:2] != ["--", "torchrun"]:
        raise NodeError(f"the agent is called as: … -- torchrun ARGUMENTS, not with {argv[:3]}")
    return argv[2:]


def run_node(arguments: list[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Check this node, run the ranks as often as the head node's agent orders, record everything.
    Returns a summary for submitit's results. Raises TrainingEnded with the status to exit with."""
    name = environ.get("SLURMD_NODENAME") or socket.gethostname()
    node = int(environ["SLURM_NODEID"])
    attempt = AttemptPaths(Path(environ["FSDPKIT_ATTEMPT_DIR"]))
    task = TaskPaths(attempt.dir.parent)
    signals = handle_warnings(task)
    try:
        with no_collector():  # imports torchelastic
            warm.prepare(environ)  # while this process checks the node
            findings = run_checks(environ)
            os.environ.update(accelerate_variables(environ))
            events = JsonLines(attempt.node_events(node))
            forks = warm.forks(environ, events.write)
        compare_nodes(attempt, node, name, findings["software"])
    except (FsdpkitError, OSError) as error:
        rule = "" if isinstance(error, PortTakenError) else CHECK
        failure = own_failure(error, rule, NodeError.exit_code)
        raise record_failure(failure, attempt, node, name) from error
    events.write(event="node-ready", node=name, pid=os.getpid(), **findings)
    say(f"{name}: ready, {_in_words(findings)}")
    started = time.monotonic()
    try:
        printed, sample_s = PrintedSoFar(), float(environ.get("FSDPKIT_SAMPLE_S", "10"))
        with (
            keep_room(attempt.node_room(node)),
            sampling(attempt.node_samples(node), sample_s, printed),
        ):
            here = AgentNode(node, name, attempt, task, events, forks, printed, *_settings(environ))
            order = _follow_orders(here, arguments, environ, signals)
    except BaseException as error:
        rule = HEAD_SILENT if isinstance(error, HeadLostError) else ""
        raise record_failure(own_failure(error, rule), attempt, node, name) from error
    finally:
        events.write(event="node-ended", node=name, seconds=round(time.monotonic() - started, 1))
    if order.status:
        raise TrainingEnded(order.message, order.status)
    return {"node": name, "seconds": round(time.monotonic() - started, 1), **findings}


_TABLES = {"launch": LaunchSettings, "retry": Retry, "notify": Notify}
"""What the nodes read of a job, with names of this release's own."""


def _settings(environ: Mapping[str, str]) -> tuple[LaunchSettings, int, dict[str, str]]:
    """`[launch]` of the job, GPUs of a node, and the variables that the job sets."""
    run = Path(environ["FSDPKIT_RUN_DIR"])
    if environ["SLURM_NODEID"] == "0" and (note := unknown_keys(run, _TABLES)):
        say(f"warning: {note}")
    environment = table_of_job(run, "environment", dict[str, Any])
    resources = table_of_job(run, "resources", dict[str, Any])
    own = dict(environment.get("variables", {}))
    return table_of_job(run, "launch", LaunchSettings), int(resources.get("gpus", 1)), own


def handle_warnings(task: TaskPaths) -> set[int]:
    """Take Slurm's warning as a request for a last checkpoint. Returns signals as they come."""
    received: set[int] = set()

    def heed(number: int, _: object) -> None:
        received.add(number)
        warn(task)

    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, heed)
    return received


def _follow_orders(
    node: AgentNode, arguments: list[str], environ: Mapping[str, str], signals: Collection[int]
) -> Order:
    """Connect to the other agents and follow the head's orders, until the order to end."""
    from fsdpkit.launching.ranks import Torchrun

    retry = table_of_job(Path(environ["FSDPKIT_RUN_DIR"]), "retry", Retry)
    task, staged = environ.get("SLURM_ARRAY_TASK_ID", ""), environ.get("FSDPKIT_STAGE", "")
    again = [
        word.replace("{array_task}", task).replace("{stage}", staged) for word in retry.args_again
    ]
    torchrun = Torchrun.parse(arguments, node.attempt, again)
    names = environ.get("FSDPKIT_NODE_NAMES", node.name).split()
    # The head's agent opens the port after checking its node, which may be minutes after ours.
    start_s = float(torchrun.config.rdzv_configs.get("join_timeout", 600))
    world_size = torchrun.config.min_nodes * torchrun.config.nproc_per_node
    sample_s = float(environ.get("FSDPKIT_SAMPLE_S", "10"))
    linked = _linked_as_head if node.number == 0 else _linked_as_peer
    with (
        contextlib.closing(flight.Analyses()) as analyses,
        linked(node, torchrun, names, retry, start_s) as link,
        heartbeats() as directory,
    ):
        relay = StopRelay(directory, node.events.write, signals)
        link.on_stop = relay.pass_on
        asked = AskedForStacks(node.number, node.name, node.attempt, directory)
        link.on_stacks = asked.answer
        link.start()
        with _guard(link, node):
            order = link.next_order()
            while order.do != "end":
                rank_heartbeats, launch = RankHeartbeats(directory, retry.hang_s), order.launch
                asked.now = rank_heartbeats, launch
                if node.number in order.nodes:
                    here = NodeLaunch(order, node, link, rank_heartbeats, relay)
                    if here.wait():
                        with StallWatch(
                            rank_heartbeats, node, launch, min(sample_s, 10.0)
                        ).watched():
                            link.tell(report=here.run(torchrun, start_s))
                order = link.next_order()
                if rank_heartbeats.asked or why_superseded(order):
                    if node.number == 0:
                        analyses.start(node.attempt, launch, world_size)
                    elif order.do == "end":
                        flight.wait_for_record(node.attempt, launch, 2 * pace_s(len(names)))
    return order


@contextlib.contextmanager
def _linked_as_head(
    node: AgentNode, torchrun: Torchrun, names: list[str], retry: Retry, start_s: float
) -> Iterator[Link]:
    """The head's link to itself, with the conductor; the others reach it by its port."""
    message_log = MessageLog(len(names))
    link = Link(LocalConnection(message_log), math.inf)
    record = JsonLines(node.attempt.orders).write
    with contextlib.ExitStack() as at_end:
        connected, ways = Conductor.connected, None
        if torchrun.endpoint is not None:
            connected = _carrier_of(torchrun.endpoint[0])
            head_port = HeadPort(message_log, keys_of(torchrun.config.run_id))
            head_port.open(*torchrun.endpoint)
            at_end.callback(_close_port, head_port, record)
            link.ticks.append(_strangers(head_port, record))
            ways = Ways(Interfaces.of(os.environ, torchrun.address))
            at_end.callback(ways.close)
        run = RunPaths(Path(os.environ["FSDPKIT_RUN_DIR"]))
        conductor = Conductor(
            message_log,
            names,
            wanted=torchrun.config.min_nodes,
            retry=retry,
            most_restarts=torchrun.config.max_restarts,
            attempt=node.attempt,
            task=node.task,
            record=record,
            start_s=start_s,
            connected=connected,
            ways=ways,
        )

        def tell_idle(why: str) -> None:
            from fsdpkit.launching import notifying

            notifying.tell_idle(run, node.attempt, why)

        idle = IdleWatch(retry, run, node.attempt, conductor.newest, tell_idle)
        conductor.idle = lambda: idle.over
        at_end.enter_context(idle.watched())
        link.ticks.append(conductor.tick)
        at_end.callback(lambda: link.broken or message_log.linger(others=conductor.others))
        at_end.callback(link.close)
        yield link


@contextlib.contextmanager
def _linked_as_peer(
    node: AgentNode, torchrun: Torchrun, names: list[str], retry: Retry, start_s: float
) -> Iterator[Link]:
    """Another node's link to the head. start_s: how long the head's port may take to open."""
    assert torchrun.endpoint is not None
    line = PeerConnection(*torchrun.endpoint, node.number, keys_of(torchrun.config.run_id), say)

    def unheard(why: str) -> None:
        node.events.write(event="head-unreached", node=node.name, why=why)
        say(f"{node.name}: nothing has reached the head node's agent as yet, at {why}")

    line.open(start_s, node.attempt.orders.exists, unheard)
    link = Link(line, patience_s(retry.lost_s, len(names)), pace_s(len(names)))
    if (interfaces := Interfaces.of(os.environ, torchrun.address)) is not None:
        mine = interfaces
        link.on_try = lambda doors: link.tell(tried=try_doors(doors, mine))
    with contextlib.closing(link):
        yield link


def _strangers(head_port: HeadPort, record: Callable[..., Any]) -> Callable[[], None]:
    """Reports the first connection that did not prove that it knows the secret."""
    told = False

    def look() -> None:
        nonlocal told
        if head_port.refused and not told:
            told = True
            record(event="stranger", address=head_port.first_refused)
            say(
                f"warning: a connection from {head_port.first_refused} did not show this run's "
                "secret and was dropped; others are only counted"
            )

    return look


def _close_port(head_port: HeadPort, record: Callable[..., Any]) -> None:
    head_port.close()
    if head_port.refused:
        record(event="strangers", connections=head_port.refused)


@contextlib.contextmanager
def _guard(link: Link, node: AgentNode) -> Iterator[None]:
    """End this process if the head node is gone and the main thread hangs on it."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            if link.broken is None and link.silent_s > link.lost_s + _STUCK_S:
                failure = own_failure(HeadLostError(link.lost_message()), HEAD_SILENT)
                record_failure(failure, node.attempt, node.number, node.name)
                end_descendants()
                os._exit(failure.status)

    thread = threading.Thread(target=watch, name="fsdpkit-guard", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def end_descendants() -> None:
    """End what ranks left behind: only processes below this one, by their ids."""
    left = psutil.Process().children(recursive=True)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=5)


def _in_words(findings: Mapping[str, Any]) -> str:
    software = findings["software"]
    gpus = findings["gpus"]
    parts = [f"torch {software['torch']}", f"{findings['run_directory_free_gb']:.0f} GB free"]
    return ", ".join(parts if gpus is None else [*parts, f"{gpus} GPUs"])


def _carrier_of(host: str) -> Callable[[], bool]:
    """Asks whether the interface with the address of `host` here has a carrier; True: unknown.
    Without, this node was cut off, not the others."""
    address = own_address(host)
    name = next(
        (
            name
            for name, entries in psutil.net_if_addrs().items()
            if any(entry.address.partition("%")[0] == address for entry in entries)
        ),
        None,
    )

    def has_carrier() -> bool:
        found = psutil.net_if_stats().get(name) if name else None
        return found is None or bool(found.isup)

    return has_carrier
