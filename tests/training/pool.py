"""Ranks of this machine without a torchrun for each test.

Importing torch costs seconds of CPU time, forking a process that has done so ten milliseconds. One
process a test session, the pool, imports torch and the trainer's library and then takes cases, one
after another. A case is a script on some ranks, each forked anew: it has variables as torchrun sets
them, is `__main__`, and ends as an interpreter ends. No state passes from one case to the next; one
that fails, crashes or hangs ends with its own processes and leaves the pool as it was.

What is not here: torchrun's own agent and its error files (`@record`), and a seed of `hash()` for
each rank. Where a test is about those, or about the start of a process, it starts torchrun.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import faulthandler
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

GRACE_S = 10
"""How long ranks may go on when one has failed, so that each can say what it saw."""
DUMP_S = 10
"""How long ranks that ran out of time have to write their stacks."""
READ_AT_IMPORT = {
    "OMP_NUM_THREADS": "1",  # the pool forks, so it has a single thread
    "PYTHONPATH": str(Path(__file__).resolve().parents[2]),  # this checkout, whatever is installed
    "PYTHONWARNINGS": "default",
}
"""What a case can no longer change."""


@dataclasses.dataclass(frozen=True)
class Case:
    ranks: int
    script: str
    arguments: list[str]
    environment: dict[str, str]
    directory: str
    output: str
    """File that gets what all ranks print."""
    libraries: list[str]
    timeout_s: float


# The side of the tests


class Pool:
    """Starts with the first case and ends with the process that asked for it.

    libraries: modules to import beside torch and the trainer's.
    """

    def __init__(self, libraries: Sequence[str] = ()) -> None:
        self._libraries = libraries
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self, ranks: int, script: Path, *arguments: str,
        environment: dict[str, str], directory: Path | None = None,
        libraries: Sequence[str] = (), timeout_s: float = 300,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """What all ranks printed, and the status of the first that failed (minus its signal).

        libraries: modules that the pool is to import first, and has from then on.
        Raises subprocess.TimeoutExpired, whose output ends with the stacks of all ranks.
        """
        with tempfile.NamedTemporaryFile("r", errors="replace") as output:
            case = Case(
                ranks, str(script), list(arguments), environment,
                str(directory or Path.cwd()), output.name, [*libraries], timeout_s,
            )  # fmt: skip
            answer = self._ask(case)
            command = [case.script, *case.arguments]
            said = output.read()
        if answer["timed_out"]:
            print(said)  # into the report of the test
            raise subprocess.TimeoutExpired(command, timeout_s, said)
        failures = [status for status in answer["statuses"] if status]
        return subprocess.CompletedProcess(command, (failures or [0])[0], said)

    def _ask(self, case: Case) -> dict:
        if self._process is None:
            self._start()
        try:
            self._control.sendall(json.dumps(dataclasses.asdict(case)).encode() + b"\n")
            line = self._answers.readline()
        except OSError:
            line = ""
        if not line:
            assert self._process is not None
            status, self._process = self._process.wait(), None  # the next case gets a new pool
            self._log.seek(0)
            raise RuntimeError(f"the pool of ranks ended with {status}: {self._log.read()[-6000:]}")
        answer: dict = json.loads(line)
        return answer

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        self._answers = self._control.makefile("r")
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", __file__, str(theirs.fileno()), *self._libraries],
                env={**os.environ, **READ_AT_IMPORT},
                stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip


# The side of the pool


def serve(control: socket.socket) -> Case | None:
    """Take cases until nobody asks any more and return None; in each rank return its case."""
    requests = control.makefile("r")
    while line := requests.readline():
        case = Case(**json.loads(line))
        if not {*case.libraries} <= sys.modules.keys():
            keep(case.libraries)
        threads = len(os.listdir("/proc/self/task"))
        assert threads == 1, f"forking needs a single thread, not {threads}"
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            store = os.fork()
            if store == 0:
                os.setpgid(0, 0)
                requests.close()
                control.close()
                _keep_store(listening)
            os.setpgid(store, store)
        pids: list[int] = []
        for rank in range(case.ranks):
            pid = os.fork()
            if pid == 0:
                os.setpgid(0, store)
                requests.close()
                control.close()
                _become(case, rank, port)
                return case
            pids.append(pid)
        statuses, timed_out = _wait(pids, case.timeout_s, control)
        os.killpg(store, signal.SIGKILL)  # the store, and whatever ranks have left behind
        os.waitpid(store, 0)
        answer = {"statuses": statuses, "timed_out": timed_out}
        control.sendall(json.dumps(answer).encode() + b"\n")
    return None


def keep(libraries: Sequence[str]) -> None:
    """Import them, for all ranks to come."""
    gc.disable()
    for name in libraries:
        import_module(name)
    _of_the_pool.update(sys.modules.keys() - {"__main__", "sys", "builtins"})
    gc.freeze()
    gc.enable()


def _keep_store(listening: socket.socket) -> NoReturn:
    """Where ranks find each other: in a process of its own, which outlives each of them."""
    address, port = listening.getsockname()
    store = torch.distributed.TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    while store:
        signal.pause()
    raise AssertionError


def _become(case: Case, rank: int, port: int) -> None:
    """Make this process what torchrun would have started, up to the script's first line."""
    ends_with_parent = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(ends_with_parent, signal.SIGKILL)
    own, everyone = str(rank), str(case.ranks)
    os.environ.clear()
    os.environ |= {
        **case.environment,
        "RANK": own,
        "LOCAL_RANK": own,
        "GROUP_RANK": "0",
        "ROLE_RANK": own,
        "WORLD_SIZE": everyone,
        "LOCAL_WORLD_SIZE": everyone,
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "pool",
    }
    os.chdir(case.directory)
    output = os.open(case.output, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.argv = [case.script, *case.arguments]
    sys.path[0] = str(Path(case.script).parent)
    sys.path[1:1] = [p for p in case.environment.get("PYTHONPATH", "").split(os.pathsep) if p]


def _wait(pids: list[int], timeout_s: float, control: socket.socket) -> tuple[list[int], bool]:
    """Statuses in the order in which ranks ended, and whether time ran out; all have ended then."""
    open_ends = {os.pidfd_open(pid): pid for pid in pids}
    deadline, failed, timed_out = time.monotonic() + timeout_s, False, False
    statuses: list[int] = []
    while open_ends:
        left_s = deadline - time.monotonic()
        ready, _, _ = select.select([*open_ends, control], [], [], max(left_s, 0))
        if not ready and not failed and not timed_out:
            timed_out, deadline = True, time.monotonic() + DUMP_S
            _signal(open_ends, signal.SIGABRT)  # faulthandler writes the stacks
        elif not ready or control in ready:  # who asked is gone
            _signal(open_ends, signal.SIGKILL)
            deadline = time.monotonic() + GRACE_S
        for end in [each for each in ready if each in open_ends]:
            status = os.waitstatus_to_exitcode(os.waitpid(open_ends.pop(end), 0)[1])
            os.close(end)
            statuses.append(status)
            if status and not failed:
                failed, deadline = True, min(deadline, time.monotonic() + GRACE_S)
    return statuses, timed_out


def _signal(open_ends: dict[int, int], number: signal.Signals) -> None:
    for end in open_ends:
        signal.pidfd_send_signal(end, number)


def _script(case: Case) -> tuple[CodeType, dict[str, Any]]:
    """The script's code, and the variables of the new `__main__` to run it in."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = case.script
    return compile(Path(case.script).read_bytes(), case.script, "exec"), vars(main)


def _leave_modules_alone() -> None:
    """At a rank's end: what the pool has imported is not taken apart, page by copied page. The
    script's own variables, and what it has imported itself, are."""
    kept = {name: module for name, module in sys.modules.items() if name in _of_the_pool}
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    for name in kept:
        del sys.modules[name]


_of_the_pool: set[str] = set()


if __name__ == "__main__":
    atexit.register(_leave_modules_alone)  # the first to be registered is called last
    gc.disable()
    import torch._dynamo  # every optimizer imports it: half of what a rank would import
    import torch.distributed.checkpoint.state_dict_loader
    import torch.distributed.checkpoint.state_dict_saver
    import torch.distributed.fsdp

    import fsdpkit.training
    from fsdpkit.launching.destructors import skip_destructors

    for name in fsdpkit.training.__all__:
        getattr(fsdpkit.training, name)  # imports it
    keep(sys.argv[2:])
    faulthandler.enable()
    skip_destructors(os.environ)
    if case := serve(socket.socket(fileno=int(sys.argv[1]))):
        # Down here, so that what the script raises, and the interpreter's end, are its own.
        exec(*_script(case))
