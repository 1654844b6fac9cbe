"""A template's rendering in a process of its own, which ends at limits of time and memory.

The sandbox decides what a template can reach; how long its loops run, and how large its texts grow,
the kernel decides here. The child inherits what it needs, and answers in plain data.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import msgspec

from fsdpkit.bounded import RENDERING_BYTES, RENDERING_S
from fsdpkit.errors import RenderError
from fsdpkit.process_limits import limit_resources
from fsdpkit.rendering.traced import RenderLimitError, Traced
from fsdpkit.rendering.variables import Undecided, Variable

_WAIT_S = 60.0  # on a machine that is busy with other things
_MOST_BYTES = 64 << 20  # of an answer


class _Refused(msgspec.Struct, frozen=True, tag=True):
    message: str


class _Open(msgspec.Struct, frozen=True, tag=True):
    variable: Variable
    use: str


class _Made(msgspec.Struct, frozen=True, tag=True):
    script: Traced


_Answer = _Refused | _Open | _Made


def in_limited_process(work: Callable[[], Traced]) -> Traced:
    """What `work` returns. Raises RenderError as it does, RenderLimitError."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _work_and_exit(work, writing)
    os.close(writing)
    try:
        content = _read(reading)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):  # somebody waits for all children
            os.waitpid(child, 0)
    try:
        answer: _Answer = msgspec.msgpack.decode(content, type=_Answer)
    except msgspec.DecodeError as error:
        raise RenderLimitError(
            f"rendering it was ended: it takes more than {RENDERING_S} s of processor time or "
            f"{RENDERING_BYTES >> 20} MiB of memory"
        ) from error
    if isinstance(answer, _Refused):
        raise RenderError(answer.message)
    if isinstance(answer, _Open):
        raise Undecided(answer.variable, answer.use)
    return answer.script


def _read(reading: int) -> bytes:
    """All of the answer that comes in time."""
    ends, content = time.monotonic() + _WAIT_S, b""
    while len(content) < _MOST_BYTES and (left := ends - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0]:
            piece = os.read(reading, 1 << 20)
            if not piece:
                return content
            content += piece
    return b""


def _work_and_exit(work: Callable[[], Traced], writing: int) -> NoReturn:
    """In the child, which shares files with its parent and so leaves them alone as it ends."""
    try:
        with suppress(OSError):  # not Linux
            limit_resources(memory_bytes=RENDERING_BYTES, cpu_s=RENDERING_S)
        with open(writing, "wb") as file:
            file.write(msgspec.msgpack.encode(_answer(work)))
    finally:
        os._exit(0)


def _answer(work: Callable[[], Traced]) -> _Answer:
    try:
        return _Made(work())
    except Undecided as error:
        return _Open(error.variable, error.use)
    except Exception as error:
        told = str(error) if isinstance(error, RenderError) else f"{type(error).__name__}: {error}"
        return _Refused(told.encode(errors="replace").decode())
