"""Tapes made in a child of this process.

What goes wrong inside a kernel or on a thread of torch ends the process that it is in, and must not
end the command: a kernel that reads at an address that is none, say. The step is then taped again
without what may have done that. A process that has taped once tapes again in two thirds of the
time, so `one_child` lets plans of the trainer share one. A model of one's own has a child for each
tape: importing a file and building a model a second time may not do what it did first.

A child is forked, for torch is imported then. This process must not have run a backward: a fork
lacks autograd's threads, and its backward would end where it needs them.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, NoReturn

from fsdpkit.errors import FsdpkitError
from fsdpkit.planning.asked import AskedStep
from fsdpkit.planning.tape import TRUST, Tape, Trust

Taped = tuple[Tape, tuple[str, ...]]


class ChildEnded(FsdpkitError):
    """In the place of an answer. dump: where its program was, as `faulthandler` says it."""

    def __init__(self, status: int, dump: str) -> None:
        super().__init__(
            f"the step could not be followed: its program ended the process, with exit status "
            f"{os.WEXITSTATUS(status)}"
            if os.WIFEXITED(status)
            else f"the step could not be followed: its process ended (wait status {status}), out "
            f"of memory or inside a kernel. Tensors have neither values nor addresses here: a "
            f"kernel of your own needs a fake version (torch.library.register_fake)."
        )
        self.in_a_kernel = os.WIFSIGNALED(status) and os.WTERMSIG(status) in _OF_KERNELS
        self.dump = dump


_OF_KERNELS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
_MOST_DUMPED = 1 << 16


class Child:
    """A process that answers until this one lets go of it."""

    def __init__(self) -> None:
        self._pipe, other = Pipe()
        self._dump = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the child is there
        self._pid = os.fork()
        if not self._pid:
            self._pipe.close()
            _live(other, self._dump)
        other.close()

    @property
    def has_ended(self) -> bool:
        return self._pipe.closed

    def ask(self, question: tuple[AskedStep, str, Trust, str]) -> Taped:
        """Its answer. Raises Ended, or the error that it answers with."""
        try:
            self._pipe.send(question)
            answer: Taped | Exception = self._pipe.recv()
        except (EOFError, OSError):
            self._pipe.close()
            status = os.waitpid(self._pid, 0)[1]
            with self._dump as dump:
                dump.seek(0)
                raise ChildEnded(
                    status, dump.read(_MOST_DUMPED).decode("ascii", "replace")
                ) from None
        except BaseException:  # interrupted: an answer that comes later is not the next one's
            os.kill(self._pid, signal.SIGKILL)
            self.close()
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """Let it go, once it is done."""
        if not self.has_ended:
            self._pipe.close()
            os.waitpid(self._pid, 0)
            self._dump.close()


def _live(pipe: Connection, dump: IO[bytes]) -> NoReturn:
    """The child's whole life. dump: where it writes what its program did when a signal ended it."""
    status = 1
    # The command's output is its answer, whatever a model prints; and a process that the model
    # forks holds no end of this pipe, nor answers a second time.
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    os.dup2(sys.stdout.fileno(), 1)
    os.register_at_fork(after_in_child=pipe.close)
    try:
        faulthandler.enable(dump, all_threads=False)
        _answer_all(pipe)
        status = 0
    finally:
        os._exit(status)


_shared: list[Child | None] = []
"""Of `one_child`: the child, None while there is none."""


@contextmanager
def one_child() -> Iterator[None]:
    """All tapes inside come from one child, from a new one after one that has ended."""
    if _shared:
        yield
        return
    _shared.append(None)
    try:
        yield
    finally:
        if child := _shared.pop():
            child.close()


def tape_apart(asked: AskedStep) -> Taped:
    """`taping.tape_of` in a child. Raises as it does, ModuleNotFoundError, and ChildEnded."""
    if find_spec("torch") is None:  # a child that lacks it could not say so
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    dump = ""
    for trust in TRUST:
        try:
            return _taped(asked, trust, dump)
        except ChildEnded as error:
            if not error.in_a_kernel or trust == TRUST[-1]:
                raise
            dump = dump or error.dump
    raise AssertionError("there is a last trust")


def _taped(asked: AskedStep, trust: Trust, dump: str) -> Taped:
    question = asked, os.getcwd(), trust, dump
    if asked.model:
        # Seconds of imports, here once and not in each child. What has run a backward cannot fork.
        import torch._dynamo  # noqa: F401

        import fsdpkit.planning.taping  # noqa: F401

        own = Child()
        try:
            return own.ask(question)
        finally:
            own.close()
    with one_child():
        child = _shared[0]
        if child is None or child.has_ended:
            child = _shared[0] = Child()
        return child.ask(question)


def _answer_all(pipe: Connection) -> None:
    import torch

    # OpenMP's threads are the parent's: a child that waits for them does so for ever.
    torch.set_num_threads(1)
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        pipe.send(_answer(*question))


def _answer(asked: AskedStep, directory: str, trust: Trust, dump: str) -> Taped | Exception:
    try:
        from fsdpkit.planning.taping import tape_of

        os.chdir(directory)
        return tape_of(asked, trust=trust, dump=dump)
    except (FsdpkitError, ImportError) as error:
        error.__cause__ = None  # neither goes through a pipe
        return error.with_traceback(None)
    except (Exception, SystemExit) as error:
        return FsdpkitError(f"the step could not be followed: {type(error).__name__}: {error}")
