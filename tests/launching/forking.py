"""A fork server to try ranks with, and the same program started anew beside it.

    python -m tests.launching.forking

starts the server and forks a rank for each line of JSON on its standard input; a line answers each:
`pid` when it runs, `status` when it has ended, or `cold` with the reason. `Forking` is the other
end of that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from fsdpkit.launching import fork_server
from fsdpkit.launching.program import ColdStartError, Program


class Ended(NamedTuple):
    """How a program ended, and what it printed."""

    status: int
    out: str
    err: str


class Forking:
    """A fork server in a process of its own."""

    def __init__(self, directory: Path, environ: Mapping[str, str] | None = None) -> None:
        self._dir, self._count = directory, 0
        self.environ = {**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.launching.forking"],
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.server = int(self._answer()["server"])
        self._lock = threading.Lock()

    def __enter__(self) -> Forking:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=300)

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process with the fork server has ended"
        return dict(json.loads(line))

    def start(
        self, command: Sequence[str], environ: Mapping[str, str] | None = None, **more: Any
    ) -> dict[str, Any]:
        """Fork a rank: its `pid` and output files, or `cold`."""
        self._count += 1
        files = [str(self._dir / f"{kind}-{self._count}") for kind in ("out", "err")]
        whole = {**self.environ, **(environ or {})}
        answer = self._ask(do="start", command=list(command), environ=whole, files=files, **more)
        return {**answer, "files": files}

    def wait(self, started: Mapping[str, Any]) -> Ended:
        status = int(self._ask(do="wait", pid=started["pid"])["status"])
        out, err = (Path(file).read_text() for file in started["files"])
        return Ended(status, out, err)

    def load(self, *modules: str) -> None:
        """Let the server import these."""
        self._ask(do="load", modules=modules)

    def run(
        self, command: Sequence[str], environ: Mapping[str, str] | None = None, **more: Any
    ) -> Ended:
        """Fork a rank and wait for its end."""
        started = self.start(command, environ, **more)
        assert "pid" in started, started
        return self.wait(started)


def started_anew(
    command: Sequence[str], environ: Mapping[str, str], cwd: Path, stdin: int = subprocess.DEVNULL
) -> Ended:
    """The same program as torchelastic starts it: a process and a session of its own."""
    from fsdpkit.launching.ranks import _SHIELDED

    done = subprocess.run(
        [*_SHIELDED, *command],
        env=dict(environ),
        cwd=cwd,
        stdin=stdin,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=300,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def _answer_requests(server: fork_server.ForkServer, answers: int) -> None:
    from fsdpkit.launching.ranks import _SHIELDED

    ranks: dict[int, fork_server.ForkedRank] = {}

    def tell(**answer: Any) -> None:
        os.write(answers, json.dumps(answer).encode() + b"\n")

    tell(server=server.pid)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "wait":
                tell(status=ranks[request["pid"]].wait())
                continue
            os.chdir(request.get("cwd", "."))
            if request["do"] == "load":
                server.preload(*request["modules"])
                tell()
                continue
            program = Program.parse(request["command"])
            with ExitStack() as files:
                null = files.enter_context(open("/dev/null"))
                opened = [files.enter_context(open(file, "w")) for file in request["files"]]
                numbers = [file.fileno() for file in (null, *opened)]
                anew = (*_SHIELDED, *request["command"])
                rank = server.start(program, request["environ"], numbers, anew)
            ranks[rank.pid] = rank
            tell(pid=rank.pid)
        except ColdStartError as error:
            tell(cold=str(error))


def main() -> None:
    del sys.path[0]
    answers = os.dup(1)
    os.set_inheritable(answers, True)  # as if this process had been started with it
    os.dup2(2, 1)  # what the server says is no answer
    started = fork_server.start()
    if isinstance(started, Program):
        started.run()
    _answer_requests(started, answers)


if __name__ == "__main__":
    main()
