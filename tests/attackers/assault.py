"""Sam's attacks on a run, and what can be seen of one from outside."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from fsdpkit.launching.signing import VARIABLE as SECRET
from tests.attackers.attacker import Attacker
from tests.faults.trial import Trial
from tests.slurm_cluster import Session


def endpoint(trial: Trial, attempt: int = 0) -> tuple[str, int]:
    """Where the run's agents meet, which is in a log, and follows from the job's id."""
    name = "slurm-*.log" if trial.array_task is None else f"slurm-*_{trial.array_task}.log"

    def found() -> tuple[str, int] | None:
        said = "".join(path.read_text() for path in sorted(trial.dir.glob(name)))
        met = endpoints_in(said)
        return met[attempt] if len(met) > attempt else None

    return trial.until(found, "the head node's address")


def endpoints_in(said: str) -> list[tuple[str, int]]:
    """Of each attempt that a batch log tells of."""
    return [(host, int(port)) for host, port in re.findall(r"head \S+ at ([\d.]+):(\d+)", said)]


@dataclass
class Assault:
    """Sam's attacks on one run."""

    attacker: Attacker
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What an attack takes beside host and port."""
    tried: Counter[str] = field(default_factory=Counter)
    believed: Counter[str] = field(default_factory=Counter)
    on_their_own: Counter[str] = field(default_factory=Counter)
    """Of those that were tried, what went on in the background."""

    def attack(self, name: str, host: str, port: int) -> bool:
        """Whether it could be tried."""
        done = self.attacker.does(name, host, port, *self.words.get(name, ()))
        if done is None:
            return False
        self._add(name, done)
        return True

    def tries(self, *names: str, at: tuple[str, int]) -> None:
        for name in names:
            assert self.attack(name, *at), f"{name} was not tried"

    def _add(self, name: str, done: tuple[int, int]) -> None:
        self.tried[name] += done[0]
        self.believed[name] += done[1]

    def over(self) -> None:
        """Nothing of it goes on."""
        for name, times in self.attacker.does("let_go", "", 0).items():
            self._add(name, (times, 0))
            self.on_their_own[name] += times

    def find_stores(self, host: str, known: int = 0) -> list[int]:
        found = self.attacker.does("find_stores", host, known)
        assert found is not None, "it was not looked for stores"
        return list(found)


@dataclass(frozen=True)
class Listener:
    who: str
    host: str
    port: int
    node: str


def listeners(trial: Trial, node: str) -> list[Listener]:
    """The run's processes on this node that take connections, and where."""
    lines = trial.bed.cluster.node_exec(node, ["ss", "-Hltnp"]).stdout.splitlines()
    agent = trial.agent(node)
    found = []
    for process in (agent, *agent.children(recursive=True)):
        who = "agent" if process == agent else "rank"
        number = ""
        with contextlib.suppress(OSError):  # what the agent asked a moment ago has ended
            number = own_number(process)
        for line in lines:
            if f"pid={number}," in line:
                host, _, port = line.split()[3].rpartition(":")
                found.append(Listener(who, host.strip("[]"), int(port), node))
    return found


def own_number(process: psutil.Process) -> str:
    """The process's number in its node's namespace."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]


def knowing(secret: str) -> tuple[dict[int, str], dict[int, str]]:
    """All processes of this machine that have it in their environment, and that have it in their
    command line, with the latter."""
    environments, lines = {}, {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if secret in line:
                lines[process.pid] = line
            if secret in process.environ().values():
                environments[process.pid] = line
    return environments, lines


def secret_of(trial: Trial, before: str | None = None) -> str:
    """The one that all agents of its present attempt have. before: that of the attempt before."""

    def found() -> set[str] | None:
        secrets = [environ[SECRET] for _, environ in trial.agents() if SECRET in environ]
        new = [secret for secret in secrets if secret != before]
        return {*new} if len(new) > 1 else None

    (secret,) = trial.until(found, "agents with a secret")
    assert re.fullmatch("[0-9a-f]{64}", secret)
    return secret


@dataclass
class Seen:
    """Who has a run's secret while it goes on."""

    secret: str
    elsewhere: list[str]
    """Command lines of the processes that have it, but for the agents."""
    shown: list[str]
    """Command lines that show it."""
    by_sam: str
    """All that another user on one of the nodes can read of environments and command lines."""

    @classmethod
    def of(cls, trial: Trial, sam: Session) -> Seen:
        secret = secret_of(trial)
        agents = {process.pid for process, _ in trial.agents()}
        knows, shows = knowing(secret)
        readable = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline"
        return cls(
            secret,
            [line for pid, line in knows.items() if pid not in agents],
            [*shows.values()],
            sam.run(["sh", "-c", readable]).stdout,
        )
