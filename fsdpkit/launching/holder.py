"""The process of a hold on each node: it has imported torch, and agents of runs are forked from it.

A run on a hold starts as any other does, by srun, which Slurm lets nobody else do in this job. Its
agent, before it imports anything, connects here by a socket of the node that has no file
(`held.py`), and hands over its files, its environment and its command line. What is forked is that
agent with torch loaded; the process that asked waits for its end. Whoever is connected, forked or
not, keeps the hold from being idle, except ranks that wait for calls (`serving.py`).

Only processes of the same user are answered: the kernel says whose they are. What a run does cannot
end this process, and a run whose connection is gone is ended. What an agent leaves behind that was
killed is ended with it. When the hold ends, SIGTERM asks this process to, and it passes that on to
the agents, which stop as before a time limit.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import psutil

from fsdpkit.launching import agent, fork_safety, kernel
from fsdpkit.launching.allocator import set_allocator
from fsdpkit.launching.fork_server import LoadedTorch, load, receive, send
from fsdpkit.launching.heartbeats import remove_heartbeats_of
from fsdpkit.launching.held import LIMITS, SIGNALS, VARIABLE, address_of, is_own, process_of
from fsdpkit.launching.import_surroundings import is_read_late
from fsdpkit.launching.job_log import say
from fsdpkit.launching.program import ColdStartError, Program, same_interpreter, take_over
from fsdpkit.launching.python_path import restore
from fsdpkit.launching.set_aside import WITH_TORCH
from fsdpkit.runs.calls import KeptCalls
from fsdpkit.runs.layout import RunPaths

_LOOK_S = 0.1
"""How often a holder with agents looks whether one has ended."""
_ANSWER_S = 5.0
"""How long who connects may take to say what it wants."""
_NATIVE = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NUMEXPR_", "NPY_", "ATEN_"),
    *("TORCH", "PYTORCH_", "C10_", "CUDA", "CUBLAS", "CUDNN", "NVIDIA_", "NVRTC", "HIP", "HSA_"),
    *("ROC", "MIOPEN", "AMD_", "LD_", "PYTHON", "MALLOC_", "GLIBC_", "LC_", "LANG", "DNNL_"),
    *("ONEDNN_", "TRITON_", "INTEL_", "OPENSSL_"),
)
"""Beginnings of variables that libraries of C and C++ read by themselves when they are loaded."""


@dataclass
class _Guest:
    """Who is connected: an agent that was forked here, or one that only says that it runs."""

    connection: socket.socket
    calls: KeptCalls
    pid: int | None = None
    process: int = 0
    """The one that has connected."""


@dataclass
class Holder:
    """The server of one node."""

    listener: socket.socket
    busy: Path
    """Touched while somebody is connected, for the hold's head node."""
    every_s: float
    """How often: it lies on a shared file system."""
    environ: dict[str, str]
    """In which torch was imported."""
    path: list[str]
    loaded: LoadedTorch | None
    why_not: str = ""
    """Why it has not loaded torch."""
    guests: list[_Guest] = field(default_factory=list)
    ends: bool = False
    """Whether the hold ends."""

    def serve(self) -> None:
        """Returns in agents only."""
        me, due_s = os.getppid(), 0.0
        signal.signal(signal.SIGTERM, self._end)
        while os.getppid() == me and (self.guests or not self.ends):
            if self.guests and time.monotonic() >= due_s:
                with contextlib.suppress(OSError):  # a full or absent file system ends no run
                    if not all(guest.calls.waiting.exists() for guest in self.guests):
                        self.busy.touch()
                due_s = time.monotonic() + self.every_s
            sockets = [guest.connection for guest in self.guests]
            sockets += [] if self.ends else [self.listener]
            working = any(guest.pid for guest in self.guests)
            for ready in select.select(sockets, [], [], _LOOK_S if working else 1.0)[0]:
                if ready is self.listener:
                    if self._welcome():
                        return
                elif guest := next((g for g in self.guests if g.connection is ready), None):
                    self._left(guest)
            for guest in [guest for guest in self.guests if guest.pid]:
                self._ended(guest)
        os._exit(0)

    def _end(self, number: int, _: object) -> None:
        self.ends = True
        for guest in self.guests:
            with contextlib.suppress(ProcessLookupError):
                os.kill(guest.pid or guest.process, signal.SIGTERM)

    def _welcome(self) -> bool:
        """Whether this is now the agent that somebody has asked for."""
        connection, _ = self.listener.accept()
        if not is_own(connection):
            connection.close()
            return False
        connection.settimeout(_ANSWER_S)
        files: list[int] = []
        try:
            request, files = receive(connection)
            if request is None or len(files) != 3:
                raise OSError("no request")
            run = RunPaths(Path(request["environ"]["FSDPKIT_RUN_DIR"]))
            guest = _Guest(connection, KeptCalls(run.calls), process=process_of(connection))
            try:
                self._check(request)
            except ColdStartError as error:
                send(connection, {"cold": str(error)})
            else:
                parent = os.getpid()
                if not (pid := os.fork()):
                    self._become(request, files, parent)
                    return True
                guest.pid = pid
                send(connection, {"pid": pid})
            self.guests.append(guest)
        except (OSError, ValueError, KeyError, TypeError) as error:
            say(f"a request was not understood: {error}", sys.stderr)
            connection.close()
        for number in files:
            os.close(number)
        return False

    def _check(self, request: Mapping[str, Any]) -> None:
        if self.loaded is None:
            raise ColdStartError(self.why_not)
        if not same_interpreter(request["executable"]):
            raise ColdStartError(f"{request['executable']} is another program than the hold's")
        if request["path"] != self.path:
            raise ColdStartError("its search path is another than the hold's")
        if changed := self._changed(request["environ"]):
            raise ColdStartError(f"{', '.join(changed[:3])} differ from the hold's")

    def _changed(self, environ: Mapping[str, str]) -> list[str]:
        """Variables with another value that torch may have read when it was imported."""
        changed = fork_safety.changed_variables(self.environ, environ)
        groups = self.loaded.aside.groups if self.loaded else ()
        named = {name for group in groups for name in group.named}
        return [
            name
            for name in changed
            if (name in named or name.startswith(_NATIVE)) and not is_read_late(name)
        ]

    def _become(self, request: Mapping[str, Any], files: Sequence[int], parent: int) -> None:
        """As the agent: all that a new process would have had."""
        self.listener.close()
        for guest in self.guests:
            guest.connection.close()
        os.setsid()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        kernel.die_with_parent(parent)
        with contextlib.suppress(OSError):
            os.chdir(request["directory"])
        os.umask(request["umask"])
        os.sched_setaffinity(0, request["cpus"])
        for name, (soft, hard) in zip(LIMITS, request["limits"], strict=True):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(getattr(resource, name), (soft, hard))
        command = tuple(request["command"])
        take_over(Program(command, "-c", (), False, True), request["environ"], files)
        sys.argv, sys.orig_argv = request["argv"], list(command)

    def _left(self, guest: _Guest) -> None:
        """Its process is gone, and what it stood for ends with it."""
        with contextlib.suppress(OSError):
            if guest.connection.recv(1):
                return
        if guest.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(guest.pid, signal.SIGKILL)
            os.waitpid(guest.pid, 0)
            self._clear(guest)
        else:
            remove_heartbeats_of(guest.process)
        self._forget(guest)

    def _ended(self, guest: _Guest) -> None:
        assert guest.pid is not None
        pid, status = os.waitpid(guest.pid, os.WNOHANG)
        if pid:
            self._clear(guest)
            with contextlib.suppress(OSError):
                ended = {"status": os.waitstatus_to_exitcode(status), "hold_ends": self.ends}
                send(guest.connection, ended)
            self._forget(guest)

    def _clear(self, ended: _Guest) -> None:
        """End what an agent has left that could not do that itself, for it was killed. Those of
        others are theirs: only orphans become children of this process."""
        others = {guest.pid for guest in self.guests if guest is not ended}
        deadline = time.monotonic() + _ANSWER_S
        while left := [one for one in psutil.Process().children() if one.pid not in others]:
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=1)
            if time.monotonic() > deadline:
                say(f"{len(left)} processes of a run do not end")
                break
        remove_heartbeats_of(ended.pid or 0)

    def _forget(self, guest: _Guest) -> None:
        guest.connection.close()
        self.guests.remove(guest)


def main() -> NoReturn:
    """Serve until the parent process ends: `… holder BUSY SECONDS`, with `FSDPKIT_HOLD` set."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the hold's own process decides when it ends
    kernel.adopt_orphans()
    environ = dict(os.environ)
    restore(os.environ)
    set_allocator(os.environ)
    loaded, why_not = None, ""
    began_s = time.monotonic()
    try:
        variables = dict(os.environ)
        loaded = load(variables, fork_safety.inherited_files())
        for name in WITH_TORCH:
            loaded.aside.load(name)
        if why := fork_safety.reason_not_to_fork(fork_safety.inherited_files()):
            raise ColdStartError(why)
        say(f"torch is loaded, in {time.monotonic() - began_s:.0f} s")
    except (ColdStartError, ImportError, OSError, AttributeError) as error:
        loaded, why_not = None, f"{type(error).__name__}: {error}"
        say(f"torch is not loaded ahead: {why_not}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address_of(os.environ[VARIABLE], os.environ["SLURMD_NODENAME"]))
    listener.listen(64)
    Path(sys.argv[1]).touch(0o600)
    say("ready for runs")
    busy, every_s = Path(sys.argv[1]), float(sys.argv[2])
    Holder(listener, busy, every_s, environ, list(sys.path), loaded, why_not).serve()
    agent.main(loaded)
