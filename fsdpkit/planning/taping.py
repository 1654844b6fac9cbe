"""From what was asked for to a tape; imports torch and runs the step, so once a process is best."""

from __future__ import annotations

import os
import pickle
from contextlib import closing
from typing import NoReturn

from fsdpkit.errors import FsdpkitError
from fsdpkit.planning.asked import Asked, resolved
from fsdpkit.planning.pretend import Kernels, backend, pretend
from fsdpkit.planning.recorder import NOT_THE_PROGRAM, Recorder
from fsdpkit.planning.subjects import of_function, of_trainer
from fsdpkit.planning.tape import Tape

STEPS = 2
"""The peak is reached in the second: the first has no optimizer state yet."""


def tape_of(
    asked: Asked, steps: int = STEPS, kernels: Kernels = "gpu"
) -> tuple[Tape, tuple[str, ...]]:
    """The tape of rank 0, and what to know of it.

    Raises FsdpkitError for what the trainer refuses, and for what could not be followed.
    """
    settings, notes = resolved(asked)
    if asked.model:
        build, vocabulary = of_function(asked.model, settings)
    else:
        build, vocabulary = of_trainer(asked.entry, settings)
    with pretend(asked.ranks, asked.gpus, asked.card.memory, kernels) as (ranks, _):
        recorder = Recorder(
            ranks.device, lambda: backend().current_stream().stream_id, vocabulary=vocabulary
        )
        with recorder.recording():
            try:
                subject = build(ranks)
                recorder.model_is_built(subject.model)
                recorder.tape.samples, recorder.tape.tokens = subject.counts
                recorder.tape.parameters = subject.parameters
                with closing(subject):
                    for number in range(steps):
                        subject.step(number)
                        recorder.step_is_done()
            except FsdpkitError:
                raise
            except Exception as error:
                raise _not_followed(error) from error
            tape = recorder.tape
            del subject
    return tape, notes


def tape_apart(asked: Asked) -> tuple[Tape, tuple[str, ...]]:
    """`tape_of` in a child of this process: an error inside backward, which torch runs on a thread
    of the device, ends the process that it is in. Raises what `tape_of` does.
    """
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        _answer(asked, writes)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        content = pipe.read()
    _, ended = os.waitpid(child, 0)
    if ended:
        raise FsdpkitError(
            "the step could not be followed: its process ended (wait status "
            f"{ended}) inside backward, or for lack of memory. Tensors have no values here, so "
            "what reads them, allocates by itself or has no fake version cannot be planned."
        )
    found = pickle.loads(content)
    if isinstance(found, FsdpkitError):
        raise found
    tape, notes = found
    return tape, notes


def _answer(asked: Asked, pipe: int) -> NoReturn:
    """The child's whole life."""
    status = 1
    try:
        try:
            found: object = tape_of(asked)
        except FsdpkitError as error:
            found = error.with_traceback(None)
            found.__cause__ = None
        with os.fdopen(pipe, "wb") as out:
            pickle.dump(found, out)
        status = 0
    finally:
        os._exit(status)


def _not_followed(error: Exception) -> FsdpkitError:
    import traceback

    own = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(NOT_THE_PROGRAM)
    ]
    where = f" at {own[-1]}" if own else ""
    what = (str(error).strip().splitlines() or [""])[0][:160].rstrip(".")
    return FsdpkitError(
        f"the step could not be followed{where}: {type(error).__name__}: {what}. Tensors have no "
        "values here, so what reads them, allocates by itself or has no fake version cannot be "
        "planned."
    )
