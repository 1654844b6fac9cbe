"""Whether others than the nodes of a job reach the ports of its ranks, which know no secret.

`fsdpkit check` tries, while its ranks listen: from the login node that it runs on, and from a node
outside the job where Slurm gives one at once. Nothing is concluded from silence after the ranks
have stopped to listen.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

import msgspec

from fsdpkit.errors import NotFoundError, SchedulerError
from fsdpkit.rendering.directives import resource_directives
from fsdpkit.rendering.script import Plan
from fsdpkit.runs.rank_ports import RankPort, load_ports, say_tried
from fsdpkit.scheduling.answers import call
from fsdpkit.scheduling.opened import OpenRun

_LOOK_S = 0.5
_CONNECT_S = 3.0
_MOST = 4
"""Nodes that are tried: firewalls differ by network, seldom by node."""
_NODE_S = 10
"""How long Slurm may take to give another node."""
_KNOCK = 'echo here; timeout 5 bash -p -c \'exec 3<>"/dev/tcp/$1/$2" && head -c "$3" <&3\' - "$@"'

Answer = Literal["reachable", "not reachable", "could not tell"]


@dataclass(frozen=True)
class Reach:
    """What was found from one place. why: the evidence, in words."""

    place: str
    answer: Answer
    why: str

    def __str__(self) -> str:
        if self.answer == "could not tell":
            return (
                f"could not tell whether ranks' ports are reachable from {self.place}: {self.why}"
            )
        return f"ranks' ports are {self.answer} from {self.place}: {self.why}"


LOGIN, OUTSIDE = "this login node", "a node outside the job"
MEANING = (
    "so anyone who can log in there can connect to the ranks of your running jobs and disturb "
    "them, or worse (SECURITY.md). The centre can prevent that: let compute nodes accept "
    "connections only from nodes of the same job, or give them a network of their own"
)


class Watch:
    """Tries the ports of a check's ranks as soon as they listen, beside what its owner does."""

    def __init__(self, run: OpenRun, plan: Plan) -> None:
        self._run, self._plan = run, plan
        self._found: list[Reach] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="fsdpkit-reach", daemon=True)
        self._thread.start()

    def findings(self) -> list[Reach]:
        """Once the job is over."""
        self._over.set()
        self._thread.join(_NODE_S + 2 * _MOST * _CONNECT_S)
        missed = "its ranks did not listen, or had stopped when they were looked for"
        known = {reach.place: reach for reach in self._found}
        return [known.get(p, Reach(p, "could not tell", missed)) for p in (LOGIN, OUTSIDE)]

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            try:
                attempt = self._run.newest_attempt().dir
                ports = load_ports(attempt)
            except (NotFoundError, OSError, msgspec.DecodeError):
                continue
            if ports:
                nodes = [port.node for port in ports]
                self._found.append(_judged(LOGIN, ports, attempt, knock))
                outside = partial(_from_another_node, self._plan, nodes)
                self._found.append(_judged(OUTSIDE, ports[:1], attempt, outside))
                with suppress(OSError):
                    say_tried(attempt)
                return


class UnaskedError(Exception):
    """It could not be tried."""


def knock(port: RankPort, most: int) -> str:
    """What is sent to who connects from here, of `most` bytes. Raises OSError."""
    with socket.create_connection((port.host, port.port), timeout=_CONNECT_S) as connection:
        return connection.recv(most, socket.MSG_WAITALL).decode("ascii", errors="replace")


def _from_another_node(plan: Plan, nodes: Sequence[str], port: RankPort, most: int) -> str:
    """The same from a node that is none of these. Raises OSError or UnaskedError."""
    own = plan.job.spec.resources
    exclude = ",".join([*filter(None, [own.exclude]), *nodes])
    resources = msgspec.structs.replace(
        own, nodes=1, gpus=1, spare=0, time="1", nodelist=None, exclude=exclude
    )
    little = replace(plan.placement, cpus_per_task=1, memory_mb=None)  # a busy node has it, too
    asked = resource_directives(resources, little, plan.site.profile)
    words = [f"--{d.name}" if d.value is None else f"--{d.name}={d.value}" for d in asked]
    argv = [
        "srun",
        "--mpi=none",
        *words,
        f"--immediate={_NODE_S}",
        "--ntasks=1",
        "--chdir=/",
        "--quiet",
    ]
    argv += ["bash", "-p", "-c", _KNOCK, "-", port.host, str(port.port), str(most)]
    try:
        done = call(argv, 3 * _NODE_S)
    except (SchedulerError, subprocess.TimeoutExpired) as error:
        raise UnaskedError(f"srun: {type(error).__name__}") from error
    here, _, said = done.stdout.partition("\n")
    if here != "here":
        why = done.stderr.strip().splitlines() or [f"srun: exit status {done.returncode}"]
        raise UnaskedError(f"Slurm gave no node at once ({why[0]})")
    if not said:
        raise OSError(None, (done.stderr.strip().splitlines() or ["no answer within 5 s"])[-1])
    return said


def _judged(
    place: str, ports: Sequence[RankPort], attempt: Path, knock: Callable[[RankPort, int], str]
) -> Reach:
    """From the ports that were tried; that of one node is enough to be reachable."""
    failed = ""
    for port in ports[:_MOST]:
        where = f"{port.node}, {port.host} port {port.port}"
        if ip_address(port.host).is_loopback:
            return Reach(place, "not reachable", f"{where}, which is loopback")
        try:
            said = knock(port, len(port.word))
        except UnaskedError as error:
            return Reach(place, "could not tell", str(error))
        except OSError as error:
            failed = f"{where}: {error.strerror or error}"
            continue
        if said == port.word:
            return Reach(place, "reachable", where)
        failed = f"{where}: another program answers"
    if load_ports(attempt) is None:
        return Reach(place, "could not tell", f"{failed}; its ranks may have ended before")
    return Reach(place, "not reachable", failed)
