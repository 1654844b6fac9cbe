"""torchrun's elastic agent, run in this process with our paths for the ranks' output.

The arguments are torchrun's own, parsed by torchrun's own parser. We add: where logs and error
files go (launching/rank_files.py); forking ranks where that is safe (launching/fork_server.py); a
rank dies when this process does, and the scheduler's signals do not reach it; a launch can be ended
from outside. No other file uses torchelastic's private interfaces.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import psutil
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, get_args_parser

from fsdpkit.errors import NodeError
from fsdpkit.launching.program import ColdStartError, Program
from fsdpkit.launching.rank_files import RankVariables as RankVariables
from fsdpkit.launching.rank_files import RunDirectoryLogs
from fsdpkit.launching.rendezvous import LOOPBACK, KnownNodes, RankStore
from fsdpkit.launching.stacks import RankProcess
from fsdpkit.runs.heartbeat import HeartbeatDir
from fsdpkit.runs.layout import AttemptPaths
from fsdpkit.runs.rank_ends import RankEnd

if TYPE_CHECKING:
    from fsdpkit.launching.fork_server import ForkedRank, ForkServer

# Asks the kernel to end this process with its parent, then replaces itself with the rank: torchrun
# gives each rank its own session, so without this a rank would outlive an agent that was killed.
# Slurm sends its warnings to every process of a step; the agent passes them on to ranks, where
# at_start/sitecustomize.py handles them. py-spy, a child of the agent, may inspect the rank
# (PR_SET_PTRACER; see kernel.be_traced_by).
_AT_START = os.path.join(os.path.dirname(os.path.abspath(__file__)), "at_start")
_SHIELD = (
    "import ctypes, os, signal, sys; c = ctypes.CDLL(None).prctl; c(1, 9, 0, 0, 0); "
    "c(0x59616D61, os.getppid(), 0, 0, 0); "
    "[signal.signal(s, signal.SIG_IGN) for s in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)]; "
    f"path = [{_AT_START!r}, os.environ.get('PYTHONPATH')]; "
    "os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, path)); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
_SHIELDED = (sys.executable, "-I", "-S", "-c", _SHIELD)
"""What a rank's command begins with when it is started anew."""


class InterruptedLaunch(Exception):
    """The launch was ended from outside: an order of the head's agent, or a rank that hangs."""


class Hooks(Protocol):
    """What the node's agent is asked and told while the ranks of one launch run."""

    def interrupted(self) -> str | None:
        """Why to end them; asked a few times a second."""

    def started(self, ranks: Sequence[RankProcess]) -> None:
        """Their processes have been started."""

    def failing(self, ends: Mapping[int, RankEnd]) -> None:
        """Those that failed by themselves, by global rank, before the others here are ended."""

    def ended(self, ends: Mapping[int, RankEnd]) -> None:
        """How each ended, by global rank; not called if all is well."""


class _Agent(LocalElasticAgent):
    """torchrun's agent, which also asks its hooks whether to continue, and ends ranks at once."""

    hooks: Hooks
    forks: RankForks
    ends: _Ends | None = None
    """How the processes of the launch ended; None until they have been started."""

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self.ends is not None:
            self.ends.look()
        self.forks.look()
        if why := self.hooks.interrupted():
            raise InterruptedLaunch(why)
        result: RunResult = super()._monitor_workers(worker_group)
        return result

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Also interruptible: it waits for a node that may be gone."""
        with _raising_on_alarm(self.hooks.interrupted), _every_node_alike():
            super()._rendezvous(worker_group)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with self.forks.in_use():
            pids: dict[int, Any] = super()._start_workers(worker_group)
        context: Any = self._pcontext
        assert context is not None
        close = context.close
        numbers = {worker.local_rank: worker.global_rank for worker in worker_group.workers}
        ends = self.ends = _Ends(context, numbers)

        def kill(*_: object, **__: object) -> None:
            """SIGTERM does not end ranks: Slurm sends it to all processes as a warning."""
            ends.look()
            if failed := ends.failed_alone():
                self.hooks.failing(failed)
            close(signal.SIGKILL)
            ends.look(killed=True)
            for pid in context.pids().values():  # processes left by a rank that died by itself
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)

        setattr(context, "close", kill)  # noqa: B010
        self.hooks.started(
            [
                RankProcess(local, numbers[local], one.proc.pid, (one._stdout, one._stderr))
                for local, one in context.subprocess_handlers.items()
            ]
        )
        return pids

    def _exit_barrier(self) -> None:
        """The head's agent knows when all nodes are done."""


class _Ends:
    """Sees the processes of one launch end, each at the first look after its end."""

    def __init__(self, context: Any, ranks: dict[int, int]) -> None:
        """context: torchelastic's, with a process for each local rank; ranks: their numbers."""
        self._context, self._ranks = context, ranks
        self._seen: dict[int, RankEnd] = {}

    def look(self, *, killed: bool = False) -> None:
        """Note who has ended since the last look; killed: by this agent."""
        now_s = round(time.time(), 3)
        for local, handler in self._context.subprocess_handlers.items():
            if local not in self._seen and (code := handler.proc.poll()) is not None:
                status = 128 - code if code < 0 else code
                self._seen[local] = RankEnd(status=status, time_s=now_s, killed=killed)

    def failed_alone(self) -> dict[int, RankEnd]:
        """By global rank, those that failed by themselves."""
        return {
            self._ranks[local]: end
            for local, end in self._seen.items()
            if end.status and not end.killed
        }

    def by_rank(self) -> dict[int, RankEnd]:
        """Of all ranks; without a status where the kernel still holds the process."""
        left = RankEnd(status=None, time_s=round(time.time(), 3), killed=True)
        return {rank: self._seen.get(local, left) for local, rank in self._ranks.items()}


@dataclass
class RankForks:
    """Forks ranks instead of cold starts, as far as the node's fork server can.

    refused: gets the reason each time that a rank needs a cold start; may raise.
    """

    server: ForkServer | None
    refused: Callable[[ColdStartError], None]
    forked: int = 0
    """Ranks forked so far."""

    def look(self) -> None:
        """Fork no more ranks if one has found that it had to start anew, or should have."""
        node = HeartbeatDir.of_this_node()
        if self.server is not None and node and (why := node.why_start_anew()):
            self.server.close()
            self.server = None
            self.refused(ColdStartError(why))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within the block torchelastic starts its processes here."""
        if self.server is None:
            yield
            return
        start_anew = SubprocessHandler._popen

        def popen(handler: Any, args: tuple[str, ...], env: dict[str, str]) -> Any:
            try:
                return self._fork(args, env, (handler._stdout, handler._stderr))
            except ColdStartError as error:
                self.refused(error)
                return start_anew(handler, args, env)

        setattr(SubprocessHandler, "_popen", popen)  # noqa: B010
        try:
            yield
        finally:
            setattr(SubprocessHandler, "_popen", start_anew)  # noqa: B010

    def _fork(
        self, args: tuple[str, ...], env: dict[str, str], outputs: tuple[Any, Any]
    ) -> ForkedRank:
        assert self.server is not None
        if args[: len(_SHIELDED)] != _SHIELDED:
            raise ColdStartError(f"torchrun starts it by {args[0]}")  # such as numactl
        program = Program.parse(args[len(_SHIELDED) :])
        numbers = [file.fileno() if file else 1 + i for i, file in enumerate(outputs)]
        rank = self.server.start(program, env, (0, *numbers), anew=args)
        self.forked += 1
        return rank


def _reap_orphans(own: Sequence[int]) -> None:
    """Processes left by ranks and adopted by this one, if they have ended."""
    for process in psutil.Process().children():
        if process.pid not in own:
            with suppress(psutil.NoSuchProcess, ChildProcessError):
                if process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)


@contextmanager
def _raising_on_alarm(interrupted: Callable[[], str | None]) -> Iterator[None]:
    over = False

    def look(*_: object) -> None:
        nonlocal over
        if not over and (why := interrupted()):
            over = True
            raise InterruptedLaunch(why)

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
    try:
        yield
        over = True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _every_node_alike() -> Iterator[None]:
    """Tells torchelastic to number the ranks itself: as many on each node, in their order."""
    name = "TORCH_ELASTIC_WORKER_IDENTICAL"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@dataclass(frozen=True)
class Meet:
    """How the ranks of one launch find each other. place: this node's among its `nodes`.

    tell: on the first of them, gets the host and port of their store. ask: on the others, waits
    for it.
    """

    place: int
    nodes: int
    tell: Callable[[str, int], None]
    ask: Callable[[], tuple[str, int]]


def _parsed(arguments: Sequence[str]) -> Any:
    """By torchrun's parser, which takes a word of the program for an abbreviation of its own option
    (`--run`, `--log`), and a `--` behind the program for its own. Raises NodeError."""
    parser = get_args_parser()
    parser.allow_abbrev = False

    def refuse(message: str) -> NoReturn:
        raise NodeError(f"the template calls torchrun with options that it refuses: {message}")

    setattr(parser, "error", refuse)  # noqa: B010
    args = parser.parse_args(list(arguments))
    at = len(arguments) - len(args.training_script_args) - 1
    if arguments[at] == "--" != args.training_script:
        args.training_script_args.insert(0, "--")
    if args.no_python:  # found by the job's PATH, as a shell finds it
        if (found := shutil.which(args.training_script)) is None:
            raise NodeError(
                f"there is no command {args.training_script} on this node; is it installed in the "
                "job's environment? PATH is " + os.environ.get("PATH", "not set"),
                "environment-missing",
            )
        args.training_script = found
    return args


@dataclass(frozen=True)
class Torchrun:
    """A torchrun command, parsed by torchrun's own parser; it can be launched again and again."""

    config: LaunchConfig
    command: tuple[str, ...]
    endpoint: tuple[str, int] | None
    """Where agents and ranks meet; None on one node."""
    again: tuple[str, ...] = ()
    """Further arguments of the program from its second start on."""

    @classmethod
    def parse(
        cls, arguments: Sequence[str], attempt: AttemptPaths, again: Sequence[str] = ()
    ) -> Torchrun:
        args = _parsed(arguments)
        if args.standalone:
            args.rdzv_backend, args.rdzv_endpoint = "c10d", "localhost:0"
            args.rdzv_id = os.environ["SLURM_JOB_ID"]
        args.log_dir = str(attempt.dir)  # or torchrun makes its own directory and leaves it behind
        config, command, command_args = config_from_args(args)
        host, _, port = str(args.rdzv_endpoint).rpartition(":")
        endpoint = None if args.standalone else (host, int(port))
        return cls(config, (str(command), *map(str, command_args)), endpoint, tuple(again))

    @property
    def address(self) -> str:
        """This node's, at which others reach it: a name or a number."""
        return self.config.local_addr or socket.getfqdn()

    def launch(
        self,
        number: int,
        attempt: AttemptPaths,
        memory: Path,
        *,
        variables: RankVariables,
        meet: Meet,
        own_workers: bool,
        forks: RankForks,
        hooks: Hooks,
    ) -> None:
        """Run the ranks until they have ended; returns if all ended with status 0.

        number: index of the launch within the attempt. memory: a directory of this node for what
        must not depend on the run's. variables: more for a rank's environment. meet: how they find
        each other. own_workers: ranks start further ones, which need a free port to meet at, so
        that no agent opens the store there. forks: how ranks are started. Raises torch's
        ChildFailedError if ranks failed, InterruptedLaunch, or NodeError if they cannot meet.
        """
        config = self.config
        # This process handles signals itself: torchrun would end the ranks.
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"
        store = None
        ask = meet.ask
        if meet.place == 0:
            store = RankStore.open(self.address if self.endpoint else LOOPBACK)
            meet.tell(*store.address())
            ask = store.address
            if own_workers:
                store.close()
        name = f"{config.run_id}_{number}"
        handler = KnownNodes(name, meet.place, meet.nodes, ask, agent_store=not own_workers)
        logs = RunDirectoryLogs(attempt, number, memory, variables)
        agent = _Agent(
            self._spec(handler, self.again if number or attempt.number else ()),
            logs,
            start_method=config.start_method,
            log_line_prefix_template="rank ${rank}: ",
        )
        agent.hooks, agent.forks = hooks, forks
        try:
            result = agent.run()
            forks.look()
        finally:
            logs.keep_raised()
            if store is not None:
                store.close()
            _reap_orphans([forks.server.pid] if forks.server else [])
            logs.drop_empty()
            ends = agent.ends.by_rank() if agent.ends else {}
            if any(end.status != 0 for end in ends.values()):
                hooks.ended(ends)
        if result.is_failed():
            failures = result.failures
            alone = agent.ends.failed_alone() if agent.ends else {}
            own = {rank: failure for rank, failure in failures.items() if rank in alone}
            raise ChildFailedError(self.command[0], own or failures)

    def _spec(self, handler: KnownNodes, further: Sequence[str]) -> WorkerSpec:
        config = self.config
        return WorkerSpec(
            role=config.role,
            local_world_size=config.nproc_per_node,
            entrypoint=_SHIELDED[0],
            args=(*_SHIELDED[1:], *self.command, *further),
            rdzv_handler=handler,
            max_restarts=0,
            monitor_interval=config.monitor_interval,
            local_addr=config.local_addr,
            numa_options=config.numa_options,
        )
