"""A node's part in copying, as the job's script calls it there.

    get SHELL WORDS…    copy what the words name. Prints three lines: the process that stays to hand
                        on what this node has, the directory that the job's program sees, and the
                        copy of its environment (or nothing). On failure: the cause, and why.
    end SERVER WORDS…   end that process, copy results back, and clean up.

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
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from fsdpkit.staging import bringing_back
from fsdpkit.staging.disk import StageStore
from fsdpkit.staging.getting import LISTED, Place, get
from fsdpkit.staging.manifest import StageError

FAILED = 78
_LOOK_S = 5.0
_GRACE_S = 5.0


def main() -> NoReturn:
    """The program's own start."""
    command, number, *words = sys.argv[1:]
    asked = _asked(words)
    sys.exit(_get(asked, int(number)) if command == "get" else _end(asked, int(number)))


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
        answer = json.loads(told.readline() or b'["storage", "the process that copies has ended"]')
    if isinstance(answer, list):
        print(*answer)
        return FAILED
    print(server, answer["stage"], answer["prefix"], sep="\n")
    return 0


def _stay(asked: argparse.Namespace, shell: int, told: socket.socket) -> NoReturn:
    """Copy, say so, and hand on what is here until the script's shell has ended this process."""
    status = 0
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        with contextlib.ExitStack() as at_end:
            place = Place.of(os.environ)
            answer: Any = get(asked, place, at_end, say)
            told.sendall(json.dumps(answer).encode() + b"\n")
            told.close()
            _wait_for(shell)
    except StageError as error:
        status = FAILED
        words = " ".join(str(error).split())
        with contextlib.suppress(OSError):
            told.sendall(json.dumps([error.cause, words]).encode() + b"\n")
    except BaseException:
        status = FAILED
        traceback.print_exc()
    os._exit(status)


def _wait_for(shell: int) -> None:
    """Until that process is gone."""
    try:
        held = os.pidfd_open(shell)
    except (OSError, AttributeError):
        while os.path.exists(f"/proc/{shell}"):
            time.sleep(_LOOK_S)
        return
    select.select([held], [], [])


def _end(asked: argparse.Namespace, server: int) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # time is left until Slurm's SIGKILL
    with contextlib.suppress(ProcessLookupError):
        os.kill(server, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        while os.path.exists(f"/proc/{server}") and time.monotonic() < deadline:
            time.sleep(0.02)
    place, stage = Place.of(os.environ), Path(os.environ["FSDPKIT_STAGE"])
    try:
        for words in bringing_back.bring_back(stage, asked.back, place.back):
            say(f"{place.name}: {words}")
        trees = json.loads((stage / LISTED).read_text(encoding="utf-8"))["trees"]
        store = StageStore.open(asked.local)
        store.remove_job(place.job)
        for name in [] if asked.kept_h or place.held else trees:
            store.remove_tree(str(name))  # not where another job uses it
    except (StageError, OSError, ValueError, KeyError) as error:
        say(f"{place.name}: {error}")
    return 0
