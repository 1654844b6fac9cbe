"""`fsdpkit` without the start of a Python for each command, which takes longer than most of them.

One process has imported what commands import without being asked for torch, and forks one for each:
a process of its own, with its own arguments, environment, working directory and output.

    python -m tests.warm SOCKET

listens there. Whoever connects sends the request with the files of output and error, or of input,
too, and reads the status.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.slurm_cluster import Session

ROOT = Path(__file__).resolve().parents[1]
READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG")
"""What a Python reads as it starts: with other values of these a command gets one of its own."""
Completed = subprocess.CompletedProcess[str]


def read_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environ.items() if name.startswith(READ_AT_START)}


class Warm:
    """The other end; starts that process with the first command, and ends it with this one.
    session: of another user, whose all commands are then."""

    def __init__(self, session: Session | None = None) -> None:
        self._session = session
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = Lock()
        self._start_values: dict[str, str] = {}
        self._directory = tempfile.TemporaryDirectory(prefix="fsdpkit-warm-", dir="/tmp")
        self._place = f"{self._directory.name}/socket"

    def run(
        self, words: Sequence[str], cwd: Path, environ: Mapping[str, str], timeout_s: float
    ) -> Completed:
        """As `subprocess.run` of `python -m fsdpkit WORDS…`, its output as text."""
        with self._starts:  # threads of a test may be the first together
            if self._process is None:
                self._start()
        if read_at_start(environ) != self._start_values:
            assert self._session is None
            command = [sys.executable, "-m", "fsdpkit", *words]
            return subprocess.run(
                command, cwd=cwd, env=dict(environ), stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=timeout_s, check=False,
            )  # fmt: skip
        with socket.socket(socket.AF_UNIX) as talk:
            talk.connect(self._place)
            talk.settimeout(timeout_s)
            ends = [os.pipe() for _ in range(2)]
            request = {"words": list(words), "cwd": str(cwd), "environ": dict(environ)}
            socket.send_fds(talk, [b"x"], [write for _, write in ends])
            talk.sendall(json.dumps(request).encode() + b"\n")
            for _, write in ends:
                os.close(write)
            out, err = _read_all([read for read, _ in ends])
            status = int(talk.makefile().readline())
        return Completed([*words], status, out, err)

    def _start(self) -> None:
        environ, words = dict(os.environ), [sys.executable, "-m", "tests.warm", self._place]
        if self._session is not None:
            user = self._session.user
            os.chown(self._directory.name, user.id, user.id)
            environ, words = self._session.env(), self._session.words(words, ROOT)
        self._start_values = read_at_start(environ)
        self._process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        atexit.register(self._process.kill)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"listens\n"


WARM = Warm()
"""Of this session, or of this worker of it."""


def _read_all(pipes: Sequence[int]) -> list[str]:
    texts = [""] * len(pipes)

    def read(number: int) -> None:
        with open(pipes[number], encoding="utf-8") as file:
            texts[number] = file.read()

    threads = [Thread(target=read, args=(number,), daemon=True) for number in range(len(pipes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return texts


# ---- In that process


COMMON = (
    ("submit", "--nodes", "2", "--gpus", "4", "--cluster", "generic", "--dry-run"),
    ("status",),
    ("sites", "generic", "--json"),
)
"""Commands that between them import most of what others import late."""


def load() -> None:
    """Import what commands import; what they only keep in mind is each one's own."""
    names = {name for words in COMMON for name in imported_by(words)}
    import fsdpkit.cli

    names |= {module.name for module in pkgutil.iter_modules(fsdpkit.cli.__path__, "fsdpkit.cli.")}
    for name in sorted(names - {"__main__", "fsdpkit.__main__"}):
        importlib.import_module(name)
    assert "torch" not in sys.modules
    gc.collect()
    gc.freeze()


def imported_by(words: Sequence[str]) -> list[str]:
    program = "import sys; from fsdpkit.cli.main import main\ntry: main()\n"
    program += "finally: print(*(n for n, m in sys.modules.items() if m), file=sys.stderr)"
    with tempfile.TemporaryDirectory() as nobody:
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            env=dict.fromkeys(("HOME", "PATH", "FSDPKIT_CONFIG_DIR", "FSDPKIT_RUNS"), nobody),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
    return done.stderr.decode().splitlines()[-1].split()


def serve(place: str) -> None:
    """Forks whoever waits for a command, and returns in the command's own process."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how those ended who wait
    print("listens", flush=True)
    while True:
        talk, _ = listener.accept()
        if os.fork():
            talk.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _, ends, _, _ = socket.recv_fds(talk, 1, 3)
        request = json.loads(talk.makefile().readline())
        if command := os.fork():
            for end in ends:
                os.close(end)
            _, status = os.waitpid(command, 0)
            talk.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os._exit(0)
        talk.close()
        for number, end in enumerate(ends, start=3 - len(ends)):
            os.dup2(end, number)
            os.close(end)
        os.environ.clear()
        os.environ.update(request["environ"])
        os.chdir(request["cwd"])
        sys.argv = [str(ROOT / "fsdpkit" / "__main__.py"), *request["words"]]
        return


if __name__ == "__main__":
    from fsdpkit.cli.main import main

    load()
    serve(sys.argv[1])
    main()
