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
import errno
import json
import os
import select
import shutil
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fsdpkit.staging.disk import StageStore
from fsdpkit.staging.getting import LISTED, Place, get
from fsdpkit.staging.manifest import StageError
from fsdpkit.staging.stream import shown

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
        for words in bring_back(stage, asked.back, place.back):
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


_ON_THE_WAY = ".part"
_FULL = errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE
_MOST_SAID = 20


def bring_back(stage: Path, names: list[str], to: Path) -> Iterator[str]:
    """Copy what is below `stage` under these names into the run's directory. A file gets its name
    when it is complete, so what Slurm interrupts leaves whole files. Yields sentences: of what
    could not be copied, and at last how much was."""
    files = size = failed = 0
    try:
        for name in names:
            for source, relative in _found(stage / name, Path(name)):
                try:
                    size += _copied(source, to / relative)
                    files += 1
                except OSError as error:
                    if error.errno in _FULL:
                        raise
                    failed += 1
                    if failed <= _MOST_SAID:
                        yield f"{shown(str(relative))} was not copied back: {error.strerror}"
    except OSError as error:
        yield f"nothing more is copied back to {to}: {error.strerror}"
    if failed > _MOST_SAID:
        yield f"{failed} files were not copied back"
    if files:
        yield f"copied back {files:,} file{'s' * (files != 1)}, {size / 1e6:.1f} MB, to {to}"


def _found(path: Path, relative: Path) -> Iterator[tuple[Path, Path]]:
    """Regular files and links at or below a path, which no link is followed to."""
    names: list[str] = []
    if not path.is_symlink() and path.is_dir():
        try:
            names = sorted(os.listdir(path))
        except OSError:
            yield path, relative  # whose copying says why
    elif os.path.lexists(path):
        yield path, relative
    for name in names:
        yield from _found(path / name, relative / name)


def _copied(source: Path, target: Path) -> int:
    """Bytes. Raises OSError."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = target.with_name(target.name + _ON_THE_WAY)
    if source.is_symlink():
        part.unlink(missing_ok=True)
        part.symlink_to(os.readlink(source))
        size = 0
    else:
        with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(0, "it is no regular file")
            try:
                with open(part, "wb", opener=_private) as copy:
                    shutil.copyfileobj(file, copy, 1 << 20)
                    size = copy.tell()
            except OSError:
                part.unlink(missing_ok=True)
                raise
    part.replace(target)
    return size


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
