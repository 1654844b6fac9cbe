"""The process on each node that has imported torch once, and from which ranks are forked.

The agent imports torch while it is alone in its process and forks the fork server, which imports
what the script will need and then waits. For each rank it forks twice: the intermediate process
ends at once, so the rank becomes the agent's own child, as if the agent had started it; exit
status, signals and process group are the rank's own. Running ranks do not depend on the server.

If the server cannot fork safely, does not answer or is gone, the rank gets a cold start.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from fsdpkit.launching import fork_safety, kernel, python_path
from fsdpkit.launching.at_start import caught, in_rank
from fsdpkit.launching.at_start.sitecustomize import WARNINGS, pass_over_warnings
from fsdpkit.launching.destructors import skip_destructors
from fsdpkit.launching.job_log import say
from fsdpkit.launching.program import ColdStartError, Program, ServerLostError, take_over
from fsdpkit.launching.restart_in_place import RankStart
from fsdpkit.launching.set_aside import FIRST, SetAside

_LENGTH = struct.Struct("<Q")
_GO = b"g"
_SHORTEST_LIMIT_S = 30.0
_ADOPTED_S = 30.0
"""How long a rank may take to become the agent's child: the process in between only has to end."""
_GONE_S = 5.0


class ForkedRank:
    """A rank as the agent's child process: what torchelastic uses of subprocess.Popen."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.pid, self.args = pid, args
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, or minus the signal's number; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same when it has ended. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and timeout is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    """The agent's end."""

    def __init__(self, control: socket.socket, pid: int, limit_s: float) -> None:
        self.pid = pid
        self._control, self._limit_s = control, limit_s
        control.settimeout(limit_s)
        self._dead: str | None = None

    def preload(self, *modules: str) -> None:
        """Have it import what scripts may need, all of it or none; does not wait."""
        with contextlib.suppress(OSError):
            send(self._control, {"modules": modules})

    def start(
        self,
        program: Program,
        environ: Mapping[str, str],
        files: Sequence[int],
        anew: Sequence[str],
    ) -> ForkedRank:
        """Fork a rank. files: descriptors of its standard input, output and error. anew: the
        command of a cold start, with which it may replace itself. Raises ColdStartError if that is
        not safe, or the server does not answer."""
        if self._dead:
            raise ServerLostError(self._dead)
        try:
            directory = os.getcwd()
            mine, theirs = socket.socketpair()
        except OSError as error:  # it has been removed, or too many files are open
            raise ColdStartError(f"{type(error).__name__}: {error.strerror}") from error
        request = {
            "command": program.command,
            "anew": anew,
            "directory": directory,
            "environ": dict(environ),
        }
        with mine:
            with theirs:
                try:
                    send(self._control, request, [*files, theirs.fileno()])
                except OSError as error:
                    raise self._give_up("the fork server has ended") from error
            try:
                answer = self._answer(mine)
                if why := answer.get("cold"):
                    raise ColdStartError(str(why))
                mine.sendall(_GO, socket.MSG_NOSIGNAL)
            except OSError as error:  # no line of its script has run
                raise ServerLostError(f"the rank ended before its start ({error})") from error
        return ForkedRank(int(answer["pid"]), program.command)

    def _answer(self, mine: socket.socket) -> dict[str, Any]:
        deadline = time.monotonic() + self._limit_s
        while not select.select([mine], [], [], 0.2)[0]:
            if self._stopped():
                raise self._give_up("the fork server is stopped")
            if time.monotonic() > deadline:
                raise self._give_up(f"the fork server did not answer for {self._limit_s:.0f} s")
        if (answer := receive(mine)[0]) is None:
            # It died during this request; whatever is left behind it answers the next.
            raise ServerLostError("the fork server ended")
        return answer

    def _stopped(self) -> bool:
        with contextlib.suppress(OSError, IndexError):
            stat = Path(f"/proc/{self.pid}/stat").read_text(errors="replace")
            return stat.rpartition(") ")[2][0] in "tT"
        return False

    def _give_up(self, why: str) -> ServerLostError:
        self._dead = why
        self.close()
        return ServerLostError(why)

    def close(self) -> None:
        """End it. Running ranks are not its children, and continue."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            # A process blocked in the kernel on a dead file system ends when that recovers.
            deadline = time.monotonic() + _GONE_S
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
                time.sleep(0.01)


@dataclass
class LoadedTorch:
    """A process that has imported torch and little else, and may be forked."""

    aside: SetAside
    limit_s: float
    """How long a server may take to answer: a multiple of this import, as others are slow, too."""


def load(variables: Mapping[str, str], inherited: Collection[int]) -> LoadedTorch:
    """Import torch into this process, which has done little else. variables: its environment.
    inherited: files that it was started with. Raises ColdStartError if it could not be forked then,
    and what importing torch raises."""
    if why := fork_safety.reason_not_to_begin(inherited):
        raise ColdStartError(why)
    began_s = time.monotonic()
    aside = SetAside()
    reads = set[str]()
    for name in FIRST:
        if name != FIRST[-1] and PathFinder.find_spec(name.partition(".")[0]) is None:
            continue  # torch does without numpy
        reads |= aside.load(name)
    in_rank.watch_imports()  # has no effect before a rank begins
    skip_destructors(os.environ)
    if own := fork_safety.of_ranks_among(reads, variables):
        raise ColdStartError(f"importing torch reads {', '.join(own)}")
    return LoadedTorch(aside, max(_SHORTEST_LIMIT_S, 10 * (time.monotonic() - began_s)))


def start(loaded: LoadedTorch | None = None) -> ForkServer | Program:
    """Import torch, unless that is done, and fork the server, from a process that has done little
    else. Returns the server in the calling process, and in each rank forked later the program that
    it is to run. Raises ColdStartError if forking is not safe, and what importing torch raises."""
    inherited, variables = fork_safety.inherited_files(), dict(os.environ)
    loaded = loaded or load(variables, inherited)
    if why := fork_safety.reason_not_to_fork(inherited):
        raise ColdStartError(f"after torch's import {why}")
    agent = os.getpid()
    try:
        kernel.adopt_orphans()
        mine, theirs = socket.socketpair()
    except OSError as error:
        raise ColdStartError(str(error)) from error
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if pid := os.fork():
        theirs.close()
        return ForkServer(mine, pid, loaded.limit_s)
    mine.close()
    for number in inherited:
        with contextlib.suppress(OSError):
            os.close(number)
    return _Server(theirs, agent, variables, loaded.aside).serve()


@dataclass
class _Server:
    """The server's end: one request after another, until the agent is gone."""

    control: socket.socket
    agent: int
    variables: dict[str, str]
    """The environment in which torch was imported."""
    aside: SetAside

    def serve(self) -> Program:
        """Returns in ranks only."""
        try:
            kernel.die_with_parent(self.agent)
            os.setsid()  # the agent handles a terminal's Ctrl-C
            with contextlib.suppress(OSError):
                kernel.show_as((sys.executable, f"fsdpkit-fork-server of {self.agent}"), {})
            for number in WARNINGS:  # Slurm sends its warnings to all processes of a step
                signal.signal(number, signal.SIG_IGN)
            while True:
                request, files = receive(self.control)
                if request is None:
                    os._exit(0)
                if "modules" in request:
                    self._preload(request)
                elif program := self._rank(request, files):
                    return program
        except BaseException as error:  # never return into the agent's own code
            say(f"the fork server failed: {type(error).__name__}: {error}", sys.stderr)
            os._exit(1)

    def _preload(self, request: Mapping[str, Any]) -> None:
        """Continue as a copy that has imported the modules; this process waits, to take its place
        if that was unsafe or the copy is killed."""
        me = os.getpid()
        if copy := os.fork():
            os.waitpid(copy, 0)
            return
        kernel.die_with_parent(me)
        kernel.adopt_orphans()  # processes left by a library end with this one
        try:
            known = {group.name for group in self.aside.groups}
            names = [name for name in request["modules"] if name not in known]
            reads = {read for name in names for read in self.aside.load(name)}
            why = fork_safety.reason_not_to_fork([self.control.fileno()])
            if own := fork_safety.of_ranks_among(reads, self.variables):
                why = f"{', '.join(own)} is read, which each rank has of its own"
        except BaseException as error:
            why = f"{type(error).__name__}: {error}"
        if why:
            say(f"the script's libraries are not loaded ahead of it: {why}")
            fork_safety.end_children()
            os._exit(1)
        kernel.adopt_orphans(False)  # the agent handles the ranks

    def _rank(self, request: Mapping[str, Any], files: list[int]) -> Program | None:
        """Fork one, and return its program there; None in the server."""
        talk = socket.socket(fileno=files.pop())
        with talk:
            environ = dict(request["environ"])
            try:
                os.chdir(request["directory"])
                program = Program.parse(request["command"])
                self._check(program, environ, [*files, talk.fileno()])
            except (ColdStartError, OSError) as error:
                with contextlib.suppress(OSError):
                    send(talk, {"cold": str(error)})
                for number in files:
                    os.close(number)
                return None
            if between := os.fork():
                for number in files:
                    os.close(number)
                os.waitpid(between, 0)
                return None
            if os.fork():
                os._exit(0)
            self.control.close()
            self._introduce(talk)
        pass_over_warnings()
        take_over(program, environ, files)
        caught.begin()
        in_rank.begin(watch=False)
        in_rank.before_ranks_meet.append(self.aside.before_ranks_meet)
        self.aside.start = RankStart.now(request["anew"], environ, request["directory"])
        return replace(program, aside=self.aside)

    def _check(self, program: Program, environ: Mapping[str, str], files: Sequence[int]) -> None:
        changed = fork_safety.changed_variables(self.variables, environ)
        if changed := [name for name in changed if environ.get(name) != os.environ.get(name)]:
            raise ColdStartError(f"{', '.join(changed[:3])} changed since torch was imported")
        own = (each for each in python_path.entries(environ) if each not in sys.path)
        for directory in (program.directory, *own):
            if path := fork_safety.shadowed_module(directory, self.aside.missing):
                raise ColdStartError(f"{path} has the name of a module that torch has looked for")
        if why := fork_safety.reason_not_to_fork([self.control.fileno(), *files]):
            raise ColdStartError(why)

    def _introduce(self, talk: socket.socket) -> None:
        """As a rank: become the agent's child, and wait for its signal to start."""
        os.setsid()
        deadline = time.monotonic() + _ADOPTED_S
        while os.getppid() != self.agent:
            if time.monotonic() > deadline:
                os._exit(1)
            time.sleep(0.001)
        kernel.die_with_parent(self.agent)
        with contextlib.suppress(OSError):  # without Yama it is not needed
            kernel.be_traced_by(self.agent)
        send(talk, {"pid": os.getpid()})
        if talk.recv(1) != _GO:  # the agent has given it up
            os._exit(1)


def send(to: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    body = json.dumps(message).encode("ascii")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    to.sendmsg([_LENGTH.pack(len(body))], rights, socket.MSG_NOSIGNAL)
    to.sendall(body, socket.MSG_NOSIGNAL)


def receive(source: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message and its files; None at the end."""
    head, files, _, _ = socket.recv_fds(source, _LENGTH.size, 8)
    while len(head) < _LENGTH.size:
        if not (more := source.recv(_LENGTH.size - len(head))):
            return None, []
        head += more
    body = bytearray()
    (length,) = _LENGTH.unpack(head)
    while len(body) < length:
        if not (more := source.recv(min(length - len(body), 1 << 20))):
            return None, []
        body += more
    return json.loads(body), list(files)
