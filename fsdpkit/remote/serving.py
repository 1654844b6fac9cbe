"""The login node's side: `fsdpkit _remote REQUEST`, which a laptop's fsdpkit calls over ssh.

A command runs in a child forked from here, as if it had been typed at home. This process passes on
what the laptop asks for: Ctrl-C (on a terminal that is the terminal's affair), and, where the
connection is gone, an end of what would otherwise wait for a run that nobody watches. A submission
that is under way has time to finish first.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import fsdpkit
from fsdpkit.errors import FsdpkitError, NotFoundError, StorageError
from fsdpkit.remote import tree
from fsdpkit.remote.protocol import PROTOCOL, RemoteRequest, answer

_GRACE_S = 20.0
"""From the connection's end to an interrupt, and from that to SIGTERM."""


def serve(encoded: str, main: Callable[[], None]) -> int:
    """Do what the request says; the exit status. main: the command line, of `sys.argv`."""
    try:
        request = RemoteRequest.decode(encoded)
    except (ValueError, KeyError, TypeError):
        # Of another protocol: only the version can be said in a way that any side understands.
        print(answer({"protocol": PROTOCOL, "version": fsdpkit.__version__}), end="", flush=True)
        return 0
    if request.do in ("hello", "receive"):
        try:
            said = _hello(request) if request.do == "hello" else _receive(request)
        except FsdpkitError as error:
            said = {"error": str(error)}
        print(answer(said), end="", flush=True)
        return 0
    if request.do == "collect":
        return _collect(request, main)
    return _run(request, main, Path(request.work_dir or _home()))


def _home() -> Path:
    return Path(os.path.expanduser("~"))


def _hello(request: RemoteRequest) -> dict[str, object]:
    found = tree.find_tree(request.tree) if request.tree else None
    return {
        "protocol": PROTOCOL,
        "version": fsdpkit.__version__,
        "tree": str(found) if found else None,
    }


def _receive(request: RemoteRequest) -> dict[str, object]:
    return {"tree": str(tree.receive(sys.stdin.buffer, request.tree))}


# ---- One command


def _run(
    request: RemoteRequest, main: Callable[[], None], work_dir: Path, output: int | None = None
) -> int:
    """The command's exit status, 128 + n if signal n ended it. output: for its standard output."""
    # Both are meant for the child, which a terminal tells, too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # until it is known what to do then
    child = os.fork()
    if child == 0:
        _become(request, main, work_dir, output)
    if request.terminal:
        signal.signal(signal.SIGHUP, lambda *_: _in_background(lambda: _end(child)))
    else:
        with suppress(OSError):
            os.setpgid(child, child)
        _in_background(lambda: _listen(child))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    _, status = os.waitpid(child, 0)
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()


def _become(
    request: RemoteRequest, main: Callable[[], None], work_dir: Path, output: int | None
) -> NoReturn:
    """The forked child: `fsdpkit WORDS…` in the work directory; leaves this process."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        if not request.terminal:
            with suppress(OSError):
                os.setpgid(0, 0)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
        if output is not None:
            os.dup2(output, 1)
        _prepare(request, work_dir)
        sys.argv = [sys.argv[0], *request.words]
        main()
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else 1
    except OSError as error:
        sys.stderr.write(f"fsdpkit: {error.filename or work_dir}: {error.strerror}\n")
        status = 74
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def _prepare(request: RemoteRequest, work_dir: Path) -> None:
    os.chdir(work_dir)
    environ = os.environ
    environ["FSDPKIT_HOST"] = ""  # the login node's own default is not meant
    environ["FSDPKIT_VIA"] = request.via
    if request.runs is not None:
        environ["FSDPKIT_RUNS"] = os.path.expanduser(request.runs)
    elif not environ.get("FSDPKIT_RUNS"):
        environ["FSDPKIT_RUNS"] = str(_home() / "runs")
    if request.columns is not None:
        environ["COLUMNS"] = str(request.columns)


def _listen(child: int) -> None:
    """Each byte from the laptop is a Ctrl-C; no more of them, and the laptop is gone."""
    while os.read(0, 1):
        _signal(child, signal.SIGINT)
    _end(child)


def _end(child: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        time.sleep(_GRACE_S)
        _signal(child, number)


def _signal(child: int, number: int) -> None:
    """To the child and what it has started; on a terminal it has no group of its own."""
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(child) == child:
            os.killpg(child, number)
        else:
            os.kill(child, number)


# ---- A command that writes one file, which goes to the laptop


def _collect(request: RemoteRequest, main: Callable[[], None]) -> int:
    """Run it in an empty directory; then send the one file that it wrote, behind an answer."""
    place = Path(tempfile.mkdtemp(prefix="fsdpkit-collect-"))
    try:
        # What the command prints is of no interest: the laptop names the file that it wrote.
        with open(os.devnull, "w") as nothing:
            status = _run(request, main, place, nothing.fileno())
        written = [path for path in place.iterdir() if path.is_file()]
        if status == 0 and len(written) != 1:
            raise NotFoundError(f"`fsdpkit {request.words[0]}` wrote {len(written)} files, not one")
        if status == 0:
            told = {"file": written[0].name, "bytes": written[0].stat().st_size}
            print(answer(told), end="", flush=True)
            with open(written[0], "rb") as file:
                shutil.copyfileobj(file, os.fdopen(os.dup(1), "wb"))
        return status
    except OSError as error:
        raise StorageError(f"{place} cannot be read: {error.strerror}") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
