"""A node's part in copying, as the job's script calls it there.

    get SHELL WORDS…    copy what the words name. Prints three lines: the process that stays to hand
                        on what this node has, the directory that the job's program sees, and the
                        copy of its environment (or nothing). On failure: the cause, and why.
    end SERVER WORDS…   copy results back, and end that process, which cleans up.
    try WORDS…          nothing, where this Python can do it.

The first node reads the shared file system; the others get it from one another.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from fsdpkit.staging import bringing_back
from fsdpkit.staging.disk import StageStore
from fsdpkit.staging.getting import LISTED, Place, get
from fsdpkit.staging.manifest import StageError

FAILED, _INTERRUPTED = 78, 128 + signal.SIGTERM
_LOOK_S = 1.0
_GONE_S, _FOREVER_S = 10.0, 86400.0 * 30
"""How long nodes wait for one another at the end: to begin to copy back, and to do it."""


def main() -> NoReturn:
    """The program's own start."""
    command, *words = sys.argv[1:]
    if command == "try":
        sys.exit()
    number, asked = int(words[0]), _asked(words[1:])
    sys.exit(_get(asked, number) if command == "get" else _end(asked, number))


def _asked(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--local", required=True)
    parser.add_argument("--kept-h", type=float, default=0.0)
    parser.add_argument("--share", choices=("each", "sharded"), default="each")
    parser.add_argument("--environment")
    for each in ("--data", "--back"):
        parser.add_argument(each, action="append", default=[])
    return parser.parse_args(words)


def say(words: str) -> None:
    """One line of the job's log."""
    print(f"fsdpkit: {words}", file=sys.stderr, flush=True)


def _get(asked: argparse.Namespace, shell: int) -> int:
    """What the script waits for. Another process does it, and stays."""
    mine, theirs = socket.socketpair()
    server = os.fork()
    if not server:
        mine.close()
        _stay(asked, shell, theirs)
    theirs.close()
    with mine, mine.makefile("rb") as told:
        answer = json.loads(told.readline() or b'["unknown", "the process that copies was killed"]')
    if answer is None:
        return _INTERRUPTED
    if isinstance(answer, list):
        print(*answer)
        return FAILED
    print(server, answer["stage"], answer["prefix"], sep="\n")
    return 0


def _stay(asked: argparse.Namespace, shell: int, told: socket.socket) -> NoReturn:
    """Copy, say so, and hand on what is here until the script's shell has ended this process."""
    answer: Any
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _interrupted)
        threading.Thread(target=_end_with, args=[shell], daemon=True).start()
        with contextlib.ExitStack() as at_end:
            answer = get(asked, Place.of(os.environ), at_end, say)
            # Slurm signals all processes of a step; ranks that save at that use the copies.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            _tell(told, answer)
            _wait_for(shell)
        os._exit(0)
    except StageError as error:
        answer = [error.cause, " ".join(str(error).split())]
    except SystemExit:
        answer = None
    except BaseException as error:
        traceback.print_exc()
        answer = ["unknown", " ".join(f"{type(error).__name__}: {error}".split())]
    _tell(told, answer)
    os._exit(FAILED)


def _interrupted(*_signal: object) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # one is enough
    sys.exit()


def _tell(told: socket.socket, answer: Any) -> None:
    with contextlib.suppress(OSError), told:
        told.sendall(json.dumps(answer).encode() + b"\n")


def _end_with(process: int) -> None:
    """Copy no longer than that process is there."""
    _wait_for(process)
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_for(process: int, seconds: float = _FOREVER_S) -> None:
    """Until that process is gone, but at most so long."""
    try:
        held = os.pidfd_open(process)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # the kernel or Python is too old
        until_s = time.monotonic() + seconds
        while os.path.exists(f"/proc/{process}/exe") and time.monotonic() < until_s:
            time.sleep(min(_LOOK_S, seconds / 100))
        return
    select.select([held], [], [], seconds)
    os.close(held)


def _end(asked: argparse.Namespace, server: int) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # time is left until Slurm's SIGKILL
    place, stage = Place.of(os.environ), Path(os.environ["FSDPKIT_STAGE"])
    busy = place.attempt / ".stage-end" / str(place.number)  # for which the job's shell waits
    with contextlib.suppress(OSError):
        busy.parent.mkdir(mode=0o700, exist_ok=True)
        busy.touch(0o600)
    try:
        for words in bringing_back.bring_back(stage, asked.back, place.back):
            say(f"{place.name}: {words}")
        trees = json.loads((stage / LISTED).read_text(encoding="utf-8"))["trees"]
        with contextlib.suppress(ProcessLookupError):
            for number in (signal.SIGHUP, signal.SIGKILL):
                os.kill(server, number)
                _wait_for(server, _GONE_S)
        store = StageStore.open(asked.local)
        store.remove_job(place.job)
        for name in [] if asked.kept_h or place.held else trees:
            store.remove_tree(str(name))  # not where another job uses it
    except (StageError, OSError, ValueError, KeyError) as error:
        say(f"{place.name}: {error}")
    finally:
        with contextlib.suppress(OSError):
            busy.unlink()
    return 0
