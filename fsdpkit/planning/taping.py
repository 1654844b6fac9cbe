"""From what was asked for to a tape; imports torch and runs the step, so once a process is best."""

from __future__ import annotations

import os
import pickle
import warnings
from contextlib import closing, suppress
from typing import NoReturn

import torch

from fsdpkit.config.training import TrainingSettings
from fsdpkit.errors import FsdpkitError, UsageError
from fsdpkit.planning.asked import Asked, resolved
from fsdpkit.planning.pretend import Kernels, backend, pretend
from fsdpkit.planning.recorder import Recorder
from fsdpkit.planning.subjects import Subject, of_model, of_trainer
from fsdpkit.planning.tape import Tape
from fsdpkit.planning.unknown import Side, place_of

STEPS = 2
"""The peak is reached in the second: the first has no optimizer state yet."""


def tape_of(
    asked: Asked, steps: int = STEPS, kernels: Kernels = "gpu"
) -> tuple[Tape, tuple[str, ...]]:
    """The tape of rank 0, and what to know of it. Where values decide, `least` has the other side;
    where something could not be followed, the tape says so and is a lower bound.

    Raises FsdpkitError for what the trainer refuses.
    """
    settings, notes = resolved(asked)
    tape = _tape(asked, settings, steps, kernels, "most")
    if tape.assumed:
        least = _tape(asked, settings, steps, kernels, "least")
        if not least.lacking or tape.lacking:
            tape.least = least
    return tape, notes


def _tape(
    asked: Asked, settings: TrainingSettings, steps: int, kernels: Kernels, side: Side
) -> Tape:
    if asked.model:
        build, vocabulary = of_model(asked.model, settings, asked.rows)
    else:
        build, vocabulary = of_trainer(asked.entry, settings)
    with pretend(asked.ranks, asked.gpus, asked.card.memory, kernels) as (ranks, _):
        recorder = Recorder(
            ranks.device,
            lambda: backend().current_stream().stream_id,
            vocabulary=vocabulary,
            side=side,
        )
        with recorder.recording(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about steps that nobody takes
            try:
                subject = build(ranks)
            except FsdpkitError:
                raise
            except Exception as error:
                raise FsdpkitError(f"the model could not be built: {_said(error)}") from error
            recorder.model_is_built(subject.model)
            recorder.tape.samples, recorder.tape.tokens = subject.counts
            recorder.tape.parameters = subject.parameters
            with closing(subject):
                try:
                    for number in range(steps):
                        subject.step(number)
                        recorder.step_is_done()
                except UsageError:
                    raise
                except Exception as error:
                    recorder.tape.lacking.append(f"the step ended early: {_said(error)}")
                    error.__traceback__ = None  # its frames hold activations
                    _update_alone(subject)
                    recorder.step_is_done()
            tape = recorder.tape
            del subject
    return tape


def _update_alone(subject: Subject) -> None:
    """Gradients and the optimizer's state, which are there whatever forward does."""
    with suppress(Exception):
        # The optimizer's are the shards; the model's may be gathered where forward ended.
        for parameter in (p for group in subject.optimizer.param_groups for p in group["params"]):
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        subject.optimizer.step()


def tape_apart(asked: Asked) -> tuple[Tape, tuple[str, ...]]:
    """`tape_of` in a child of this process: an error inside backward, which torch runs on a thread
    of the device, ends the process that it is in. Raises what `tape_of` does.
    """
    import torch._dynamo  # noqa: F401  # a second of imports, here once and not in each child

    if not asked.model:
        of_trainer(asked.entry, asked.settings)  # and the trainer's
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
            f"the step could not be followed: its process ended (wait status {ended}), for lack of "
            "memory or inside a kernel. Tensors have neither values nor addresses here: your own "
            "kernel needs a fake version (torch.library.register_fake)."
        )
    found = pickle.loads(content)
    if isinstance(found, FsdpkitError):
        raise found
    tape, notes = found
    return tape, notes


def _answer(asked: Asked, pipe: int) -> NoReturn:
    """The child's whole life."""
    status = 1
    # OpenMP's threads are the parent's: a child that waits for them does so for ever.
    torch.set_num_threads(1)
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


def _said(error: Exception) -> str:
    what = (str(error).strip().splitlines() or [""])[0][:160].rstrip(".")
    name = "" if isinstance(error, FsdpkitError) else f"{type(error).__name__}: "
    return f"{name}{what}{place_of(error)}"
