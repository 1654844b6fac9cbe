"""Takes the Python stacks of this node's ranks before they are ended.

A rank that answers `runs.stacks.SIGNAL` writes its own: every forked rank, and a trainer with a
heartbeat. For any other, and for one that does not answer, py-spy reads them from the process's
memory; py-spy is an extra because few runs need it. The files left in the attempt's directory look
the same in both cases.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import msgspec
import psutil

from fsdpkit.runs.heartbeat import HeartbeatDir
from fsdpkit.runs.layout import AttemptPaths
from fsdpkit.runs.reading import read_bytes, read_text
from fsdpkit.runs.stack_requests import RankStacks
from fsdpkit.runs.stacks import SIGNAL

ANSWER_S = 10.0
"""How long ranks may take to begin writing down where they are."""
_WHOLE_S = 1.0
"""A file that has not grown for as long is whole: a stack is many writes."""
_SPY_S = 10.0
_MOST_BYTES = 4 << 20
_DEAF = (psutil.STATUS_STOPPED, psutil.STATUS_DISK_SLEEP)
_MUTE = (*_DEAF, psutil.STATUS_ZOMBIE, None)

By = Literal["signal", "py-spy"]


class RankProcess(NamedTuple):
    """A rank on this node."""

    local_rank: int
    rank: int
    pid: int
    output: tuple[IO[Any], ...] = ()
    """Standard output and error, open in this process, too."""

    def printed_bytes(self) -> list[int]:
        """So far, by the open files' positions, not their system's. Raises ValueError if closed."""
        return [os.lseek(file.fileno(), 0, os.SEEK_CUR) for file in self.output]


_ONE_AT_A_TIME = threading.Lock()
"""A rank has one file to answer in, whoever asks."""


def take(
    ranks: Sequence[RankProcess], node: HeartbeatDir, attempt: AttemptPaths, launch: int
) -> tuple[dict[int, By], dict[int, str]]:
    """Put the stacks of each living rank into `rank-<r>.stacks`. Returns by global rank how they
    were taken, and of the others why not."""
    taken: dict[int, By] = {}
    missing: dict[int, str] = {}
    for rank, found in read(ranks, node).items():
        if found.by is not None:
            with contextlib.suppress(OSError):
                attempt.rank_file(rank, "stacks", launch).write_text(found.text, encoding="utf-8")
                taken[rank] = found.by
        elif found.why_not != _ENDED:
            missing[rank] = found.why_not
    return taken, missing


def read(ranks: Sequence[RankProcess], node: HeartbeatDir) -> dict[int, RankStacks]:
    """Where the threads of each rank are, by its global number."""
    with _ONE_AT_A_TIME:
        found = {rank.rank: RankStacks(rank=rank.rank, why_not=_ENDED) for rank in ranks}
        living = [rank for rank in ranks if _state(rank.pid) not in (None, psutil.STATUS_ZOMBIE)]
        for rank in _answering(living, node):
            with contextlib.suppress(OSError):
                text = read_text(node.stacks(rank.local_rank), _MOST_BYTES)
                found[rank.rank] = _told(rank, text, "signal")
        silent = [rank for rank in living if found[rank.rank].by is None]
        for rank, threads in zip(silent, _by_spy([rank.pid for rank in silent]), strict=True):
            found[rank.rank] = _spied(rank, threads)
        return found


def _told(rank: RankProcess, text: str, by: By) -> RankStacks:
    return RankStacks(rank=rank.rank, text=text, by=by, state=is_deaf(rank.pid))


def _spied(rank: RankProcess, threads: list[_Thread] | str) -> RankStacks:
    if isinstance(threads, str):
        return RankStacks(rank=rank.rank, why_not=threads, state=is_deaf(rank.pid))
    return _told(rank, _as_faulthandler(threads), "py-spy")


_ENDED = "it has ended"
_MOST_CHILDREN = 8


def peek(
    ranks: Sequence[RankProcess], node: HeartbeatDir
) -> tuple[dict[int, RankStacks], dict[int, str]]:
    """As `read`, of ranks that go on: by py-spy without stopping them, where it can be used, for a
    signal interrupts what they wait in. Of a rank that has started workers itself, the one that is
    setting up torch.distributed counts. Also the `host:port` that a function on a rank's stack was
    called with."""
    processes = {rank.rank: [rank.pid, *_children(rank.pid)] for rank in ranks}
    pids = [pid for own in processes.values() for pid in own]
    spied = dict(zip(pids, _by_spy(pids, "--nonblocking", "--locals"), strict=True))
    found: dict[int, RankStacks] = {}
    addresses: dict[int, str] = {}
    for rank in ranks:
        own = [spied[pid] for pid in processes[rank.rank]]
        if known := [threads for threads in own if isinstance(threads, list) and threads]:
            threads = next((one for one in known if _sets_up(one)), known[0])
            found[rank.rank] = _spied(rank, threads)
            if (address := _address_in(threads)) is not None:
                addresses[rank.rank] = address
    return found | read([rank for rank in ranks if rank.rank not in found], node), addresses


def _children(pid: int) -> list[int]:
    """Those that are Python's."""
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(pid).children(recursive=True)
        names = [(child.pid, child.name()) for child in children]
        return [child for child, name in names if name.startswith(("python", "pt_"))][
            :_MOST_CHILDREN
        ]
    return []


def _sets_up(threads: Iterable[_Thread]) -> bool:
    files = (frame.filename for thread in threads for frame in thread.frames)
    return any("/torch/distributed/" in file for file in files)


def _address_in(threads: Iterable[_Thread]) -> str | None:
    """torch's rendezvous has the address in `hostname` and `port`."""
    for thread in threads:
        for frame in thread.frames:
            told = {one.name: one.repr or "" for one in frame.locals or ()}
            host, port = told.get("hostname", "").strip("\"'"), told.get("port", "")
            if host and port.isdecimal():
                return f"{host}:{port}"
    return None


def _answering(ranks: Sequence[RankProcess], node: HeartbeatDir) -> list[RankProcess]:
    """Those that have answered the signal, once all have or their time is over."""
    asked = []
    for rank in ranks:
        if catches(rank.pid) and node.stacks(rank.local_rank).exists():
            with contextlib.suppress(OSError):
                os.truncate(node.stacks(rank.local_rank), 0)  # its previous answer
                os.kill(rank.pid, SIGNAL)
                asked.append(rank)
    sizes = dict.fromkeys(asked, 0)
    began_s = changed_s = time.monotonic()
    while (now := time.monotonic()) - began_s < ANSWER_S:
        sizes, before = {rank: _size(node.stacks(rank.local_rank)) for rank in asked}, sizes
        if sizes != before:
            changed_s = now
        waiting = any(not size and _state(rank.pid) not in _MUTE for rank, size in sizes.items())
        if not waiting and (now - changed_s > _WHOLE_S or not any(sizes.values())):
            break
        time.sleep(0.05)
    return [rank for rank, size in sizes.items() if size]


def catches(pid: int, number: int = SIGNAL) -> bool:
    """Whether the process has a handler for the signal, which would end it otherwise."""
    with contextlib.suppress(OSError, ValueError):
        for line in read_bytes(f"/proc/{pid}/status", 1 << 16).splitlines():
            if line.startswith(b"SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _state(pid: int) -> str | None:
    try:
        state: str = psutil.Process(pid).status()
    except psutil.Error:
        return None
    return state


def is_deaf(pid: int) -> str | None:
    """The state of a process that is stopped or in the kernel's hands; None of any other."""
    state = _state(pid)
    return state if state in _DEAF else None


class _Local(msgspec.Struct):
    name: str
    repr: str | None


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int
    locals: list[_Local] | None = None


class _Thread(msgspec.Struct):
    """What `py-spy dump --json` says of a thread."""

    pid: int
    os_thread_id: int | None
    frames: list[_Frame]


def _by_spy(pids: Sequence[int], *options: str) -> list[list[_Thread] | str]:
    """Of each process its threads, or why they cannot be read."""
    if not pids:
        return []
    program = _spy()
    if program is None:
        return ["py-spy is not installed (pip install 'fsdpkit[stacks]')"] * len(pids)
    dump = [program, "dump", "--json"]
    spies = [_start([*dump, "--pid", str(pid), *(options or _options(pid))]) for pid in pids]
    deadline = time.monotonic() + _SPY_S
    return [_heard(spy, deadline) for spy in spies]


def _options(pid: int) -> Sequence[str]:
    """py-spy stops a process while it reads, which does not work for one that is deaf."""
    return ["--nonblocking"] if is_deaf(pid) else []


def _spy() -> str | None:
    """This environment's, which need not be on the search path, or another."""
    own = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return own if os.access(own, os.X_OK) else shutil.which("py-spy")


def _start(command: Sequence[str]) -> subprocess.Popen[bytes] | OSError:
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        return error


def _heard(spy: subprocess.Popen[bytes] | OSError, deadline: float) -> list[_Thread] | str:
    if isinstance(spy, OSError):
        return f"py-spy cannot be started ({spy.strerror})"
    try:
        out, err = spy.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        spy.kill()
        spy.communicate()
        return f"py-spy did not end within {_SPY_S:.0f} s"
    if spy.returncode:
        return _why_not(err.decode(errors="replace"))
    try:
        return msgspec.json.decode(out[:_MOST_BYTES], type=list[_Thread])
    except msgspec.DecodeError as error:
        return f"py-spy's answer cannot be read ({error})"


def _why_not(said: str) -> str:
    if "ermission" not in said and "EPERM" not in said:
        return f"py-spy: {' '.join(said.split())[:200] or 'it failed without a word'}"
    with contextlib.suppress(OSError):
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
        if scope not in ("0", "1"):
            return f"py-spy may not read processes here (kernel.yama.ptrace_scope = {scope})"
    return "py-spy may not read processes here (no permission for ptrace)"


def _plain(name: str) -> str:
    """A function's name as faulthandler has it, without its class."""
    return name.rpartition(".")[2] or name


def _as_faulthandler(threads: Iterable[_Thread]) -> str:
    """In faulthandler's format, which is widely known: the main thread, called the current one,
    last. Source: the format of CPython's Python/traceback.c, `_Py_DumpTracebackThreads`."""
    others: list[str] = []
    main: list[str] = []
    for thread in threads:
        frames = [
            f'  File "{frame.filename}", line {frame.line} in {_plain(frame.name)}'
            for frame in thread.frames
        ]
        is_main = thread.os_thread_id == thread.pid
        kind = "Current thread" if is_main else "Thread"
        number = f"0x{thread.os_thread_id or 0:016x}"
        text = "\n".join([f"{kind} {number} (most recent call first):", *frames])
        (main if is_main else others).append(text)
    return "\n\n".join([*others, *main]) + "\n"
