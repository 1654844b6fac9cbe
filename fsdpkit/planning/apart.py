"""Tapes made in a child of this process.

What goes wrong inside a kernel or on a thread of torch ends the process that it is in, and must not
end the command. A process that has taped once tapes again in two thirds of the time, so `one_child`
lets plans of the trainer share one. A model of one's own has a child for each tape: importing a
file and building a model a second time may not do what it did first.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from fsdpkit.errors import FsdpkitError
from fsdpkit.planning.asked import Asked
from fsdpkit.planning.tape import Tape

Taped = tuple[Tape, tuple[str, ...]]


class Child:
    """A process that answers until this one lets go of it."""

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        self._pipe, other = Pipe()
        self._pid = os.fork()
        if not self._pid:
            self._pipe.close()
            _live(lambda: serve(other))
        other.close()

    @property
    def has_ended(self) -> bool:
        return self._pipe.closed

    def ask(self, question: Any) -> Any:
        """Its answer. Raises FsdpkitError where it has ended instead, or answered with an error."""
        try:
            self._pipe.send(question)
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise FsdpkitError(
                "the step could not be followed: its process ended (wait status "
                f"{self.close()}), for lack of memory or inside a kernel. Tensors have neither "
                "values nor addresses here: your own kernel needs a fake version "
                "(torch.library.register_fake)."
            ) from None
        except BaseException:  # interrupted: an answer that comes later is not the next one's
            os.kill(self._pid, signal.SIGKILL)
            self.close()
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> int:
        """Let it go, once it is done. Its wait status; 0 where it was let go of before."""
        if self.has_ended:
            return 0
        self._pipe.close()
        return os.waitpid(self._pid, 0)[1]


def _live(serve: Callable[[], None]) -> NoReturn:
    """The child's whole life."""
    status = 1
    try:
        serve()
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


def tape_apart(asked: Asked) -> Taped:
    """`taping.tape_of` in a child. Raises what that does, and FsdpkitError where the child ends."""
    if asked.model:
        # Seconds of imports, here once and not in each child. What has run a backward cannot fork.
        import torch._dynamo  # noqa: F401

        import fsdpkit.planning.taping  # noqa: F401

        own = Child(_answer_all)
        try:
            return _ask(own, asked)
        finally:
            own.close()
    with one_child():
        child = _shared[0]
        if child is None or child.has_ended:
            child = _shared[0] = Child(_answer_all)
        return _ask(child, asked)


def _ask(child: Child, asked: Asked) -> Taped:
    taped: Taped = child.ask((asked, os.getcwd()))
    return taped


def _answer_all(pipe: Connection) -> None:
    import torch

    # OpenMP's threads are the parent's: a child that waits for them does so for ever.
    torch.set_num_threads(1)
    while True:
        try:
            asked, directory = pipe.recv()
        except EOFError:
            return
        pipe.send(_answer(asked, directory))


def _answer(asked: Asked, directory: str) -> Taped | Exception:
    try:
        from fsdpkit.planning.taping import tape_of

        os.chdir(directory)
        return tape_of(asked)
    except (FsdpkitError, ImportError) as error:
        error.__cause__ = None  # neither goes through a pipe
        return error.with_traceback(None)
