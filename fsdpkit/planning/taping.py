"""From what was asked for to a tape; imports torch and runs the step, so once a process is best."""

from __future__ import annotations

from contextlib import closing

from fsdpkit.errors import FsdpkitError
from fsdpkit.planning.asked import Asked, resolved
from fsdpkit.planning.pretend import Kernels, backend, pretend
from fsdpkit.planning.recorder import Recorder
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


def _not_followed(error: Exception) -> FsdpkitError:
    import traceback

    own = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "/torch/" not in frame.filename and "/fsdpkit/" not in frame.filename
    ]
    where = f" at {own[-1]}" if own else ""
    what = (str(error).strip().splitlines() or [""])[0][:160]
    return FsdpkitError(
        f"the step could not be followed{where}: {type(error).__name__}: {what}. Tensors have no "
        "values here, so what reads them, allocates by itself or has no fake version cannot be "
        "planned."
    )
