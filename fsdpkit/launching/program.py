"""A forked process becomes `python -u script.py ARGUMENTS…`.

Does what the interpreter does before a script's first line and after its last one, in a process
whose interpreter is already running. The script cannot tell the difference, except that some
libraries are loaded before it imports them.
"""

from __future__ import annotations

import builtins
import fcntl
import importlib.machinery
import io
import logging
import multiprocessing
import os
import runpy
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from fsdpkit.launching import kernel
from fsdpkit.launching.at_start import caught
from fsdpkit.launching.python_path import search_path
from fsdpkit.runs.heartbeat import HeartbeatDir
from fsdpkit.runs.stacks import leave_when_asked

if TYPE_CHECKING:
    from fsdpkit.launching.set_aside import SetAside


class ColdStartError(Exception):
    """Why a rank cannot be forked and needs a cold start."""


class ServerLostError(ColdStartError):
    """The fork server died or hangs. That does not make forking unsafe, and ends no run."""


@dataclass(frozen=True)
class Program:
    """A command line of this interpreter: `python -u [-m] NAME ARGUMENTS…`."""

    command: tuple[str, ...]
    name: str
    """The script's path, or with `-m` the module's name."""
    arguments: tuple[str, ...]
    is_module: bool
    unbuffered: bool
    aside: SetAside | None = None
    """What a forked rank has loaded already."""

    @classmethod
    def parse(cls, command: Sequence[str]) -> Program:
        """Raises ColdStartError for whatever this interpreter could not have become."""
        executable, *words = command
        if not same_interpreter(executable):
            raise ColdStartError(f"{executable} is another program than {sys.executable}")
        unbuffered = words[:1] == ["-u"]
        if unbuffered:
            del words[0]
        is_module = words[:1] == ["-m"]
        if is_module:
            del words[0]
        if not words or words[0].startswith("-"):
            raise ColdStartError(f"it is started as {' '.join(command[1:3])} …")
        if not is_module and not os.path.isfile(words[0]):
            raise ColdStartError(f"{words[0]} is no file")
        unbuffered = unbuffered or bool(os.environ.get("PYTHONUNBUFFERED"))
        return cls(tuple(command), words[0], tuple(words[1:]), is_module, unbuffered)

    @property
    def directory(self) -> str:
        """What the interpreter puts first on the module search path."""
        if self.is_module:
            return os.getcwd()
        return os.path.dirname(os.path.realpath(self.name))

    def run(self) -> NoReturn:
        """Run it as `__main__`; leaves by SystemExit, as the interpreter's last exception."""
        main = types.ModuleType("__main__")
        vars(main).update(__builtins__=builtins)
        if sys.version_info < (3, 14):
            vars(main)["__annotations__"] = {}
        sys.modules["__main__"] = main
        if "__mp_main__" in sys.modules:  # as multiprocessing has called it since its import
            sys.modules["__mp_main__"] = main
        sys.argv = ["-m" if self.is_module else self.name, *self.arguments]
        sys.orig_argv = list(self.command)
        sys.path[:] = search_path(sys.path, os.environ)
        if not getattr(sys.flags, "safe_path", False):
            sys.path.insert(0, self.directory)
        uncaught: BaseException | None = None
        if self.aside:
            self.aside.begin()
        try:
            if self.is_module:
                runpy._run_module_as_main(self.name)  # type: ignore[attr-defined]
            else:
                path = os.path.join(os.getcwd(), self.name)  # not normalized, as Python does it
                vars(main).update(
                    __file__=path,
                    __cached__=None,
                    __loader__=importlib.machinery.SourceFileLoader("__main__", path),
                )
                with open(path, "rb") as file:
                    code = compile(file.read(), path, "exec", dont_inherit=True)
                exec(code, vars(main))
        except SystemExit as left:
            caught.record(left, _without_own_frame(left))
            raise
        except BaseException as error:
            uncaught = error
        finally:
            if self.aside:
                self.aside.put_back()
        if uncaught is not None:  # reported outside the handler, for the hook is called outside one
            _report(uncaught)
        raise SystemExit(0)


def _report(error: BaseException) -> NoReturn:
    """What the interpreter does with an uncaught exception."""
    error.__traceback__ = _without_own_frame(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    caught.record(error, error.__traceback__)
    _call_hook(error)
    if isinstance(error, KeyboardInterrupt):
        # The interpreter cleans up and then ends by the signal, so that the parent sees it.
        sys.excepthook = lambda *_: None
        raise error
    raise SystemExit(1)


def _without_own_frame(error: BaseException) -> types.TracebackType | None:
    return error.__traceback__ and error.__traceback__.tb_next


def _call_hook(error: BaseException) -> None:
    """Source: `_PyErr_PrintEx` in CPython's Python/pythonrun.c."""
    in_hook: BaseException | None = None
    if not hasattr(sys, "excepthook"):
        _tell("sys.excepthook is missing\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
        return
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException as failed:
        in_hook = failed
    if in_hook is not None:
        in_hook.__traceback__ = _without_own_frame(in_hook)
        _tell("Error in sys.excepthook:\n")
        sys.__excepthook__(type(in_hook), in_hook, in_hook.__traceback__)
        _tell("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)


def _tell(text: str) -> None:
    with suppress(Exception):  # a script may have closed it
        sys.stderr.write(text)


def take_over(program: Program, environ: Mapping[str, str], files: Sequence[int]) -> None:
    """Give this forked process what an executed one would have started with. files: descriptors of
    its standard input, output and error, which are closed here."""
    # If this process has no standard files, descriptors it was sent may have their numbers.
    for number, descriptor in enumerate([_above_standard(descriptor) for descriptor in files]):
        os.dup2(descriptor, number, inheritable=True)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environ)
    with suppress(OSError):
        kernel.show_as(program.command, environ)
    _open_streams(program.unbuffered)
    _forget()
    if (node := HeartbeatDir.of_this_node()) and (local_rank := environ.get("LOCAL_RANK")):
        with suppress(OSError, ValueError):
            leave_when_asked(node.stacks(int(local_rank)))


def _above_standard(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 3)
    os.close(descriptor)
    return moved


def same_interpreter(executable: str) -> bool:
    """Whether it is this Python in this environment; a virtual one is known by its directory."""
    here = os.path.realpath(os.path.dirname(sys.executable))
    there = os.path.realpath(os.path.dirname(executable))
    return there == here and os.path.realpath(executable) == os.path.realpath(sys.executable)


def _open_streams(unbuffered: bool) -> None:
    """Python's own three files, made from the descriptors as at its start."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before: Any = getattr(sys, f"__{name}__")
        mode = "r" if number == 0 else "w"
        raw = io.FileIO(number, mode, closefd=False)
        raw.name = f"<{name}>"
        binary: Any = raw
        if number == 0:
            binary = io.BufferedReader(raw)
        elif not unbuffered:
            binary = io.BufferedWriter(raw)
        stream: TextIO = io.TextIOWrapper(
            binary,
            encoding=before.encoding if before else None,
            errors=before.errors if before else None,
            newline="\n",
            line_buffering=not unbuffered and (number == 2 or raw.isatty()),
            write_through=unbuffered,
        )
        stream.mode = mode  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _forget() -> None:
    """Forget state of the parent process that each process should have of its own."""
    tempfile.tempdir = None  # a rank may set TMPDIR before it uses it
    threading.main_thread()._native_id = threading.get_native_id()  # type: ignore[attr-defined]
    # Where `relativeCreated` of log records counts from; nanoseconds since Python 3.13.
    started: Any = logging
    started._startTime = time.time_ns() if isinstance(started._startTime, int) else time.time()
    for path in [path for path, finder in sys.path_importer_cache.items() if finder is None]:
        del sys.path_importer_cache[path]  # it may have been made since
    multiprocessing.current_process().authkey = os.urandom(32)
    # Python reseeds its own generator on fork.
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
