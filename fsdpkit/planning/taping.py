"""From what was asked for to a tape; imports torch and runs the step, so once a process is best."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import torch

from fsdpkit.config.training import TrainingSettings
from fsdpkit.errors import FsdpkitError, UsageError
from fsdpkit.planning import recurrent
from fsdpkit.planning.asked import AskedStep, resolved
from fsdpkit.planning.compiled import followed
from fsdpkit.planning.cuda_calls import cuda_is
from fsdpkit.planning.pretend import Kernels, backend, pretend, replaced
from fsdpkit.planning.recorder import Recorder
from fsdpkit.planning.subjects import Subject, of_model, of_trainer
from fsdpkit.planning.tape import Tape, Trust
from fsdpkit.planning.unknown import Side, place_in, place_of

STEPS = 2
"""The peak is reached in the second: the first has no optimizer state yet."""


def tape_of(
    asked: AskedStep,
    steps: int = STEPS,
    kernels: Kernels = "gpu",
    *,
    trust: Trust = "kernels",
    dump: str = "",
) -> tuple[Tape, tuple[str, ...]]:
    """The tape of rank 0, and what to know of it. Where values decide, `least` has the other side;
    where something could not be followed, the tape says so and is a lower bound.

    dump: where a kernel has ended the process that taped this before, with more `trust`.

    Raises FsdpkitError for what the trainer refuses.
    """
    settings, notes = resolved(asked)
    steps = 0 if trust == "nothing" else steps
    tape = _tape(asked, settings, steps, kernels, "most", trust)
    if not steps:
        tape.lacking.append(f"a kernel without a fake version ended the step{place_in(dump)}")
    if tape.assumed:
        least = _tape(asked, settings, steps, kernels, "least", trust)
        if not least.lacking or tape.lacking:
            tape.least = least
    return tape, notes


def _tape(
    asked: AskedStep,
    settings: TrainingSettings,
    steps: int,
    kernels: Kernels,
    side: Side,
    trust: Trust,
) -> Tape:
    if asked.model:
        build, vocabulary = of_model(asked.model, settings, asked.args, asked.rows, asked.length)
    else:
        build, vocabulary = of_trainer(asked.entry, settings)
    with pretend(asked.ranks, asked.gpus, asked.card.memory, kernels) as (ranks, _):
        recorder = Recorder(
            ranks.device,
            lambda: backend().current_stream().stream_id,
            vocabulary=vocabulary,
            side=side,
            trust=trust,
        )
        with ExitStack() as around:
            around.enter_context(recorder.recording())
            around.enter_context(followed(recorder, as_graphs=asked.compiled))
            around.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # of torch, about steps that nobody takes
            if asked.model:
                card = asked.card
                around.enter_context(cuda_is(ranks.device, card.memory, card.capability))
            if kernels == "gpu":
                around.enter_context(replaced(*recurrent.as_on_a_gpu()))
            try:
                subject = build(ranks)
            except FsdpkitError:
                raise
            except Exception as error:
                raise FsdpkitError(f"the model could not be built: {_said(error)}") from error
            recorder.model_is_built(subject.model)
            recorder.tape.samples, recorder.tape.tokens = subject.counts
            recorder.tape.parameters = subject.parameters
            recorder.tape.notes += subject.notes
            with closing(subject), _rows_unpacked():
                try:
                    for number in range(steps):
                        subject.step(number)
                        recorder.step_is_done()
                    if not steps:
                        _update_alone(subject)
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


@contextmanager
def _rows_unpacked() -> Iterator[None]:
    """transformers reads the values of positions to see whether rows are packed, and takes tensors
    without values for packed ones: attention then gets a mask, and slower kernels, that a run whose
    positions simply count up does without."""
    masks = sys.modules.get("transformers.masking_utils")
    packed = getattr(masks, "find_packed_sequence_indices", None)
    if masks is None or packed is None:
        yield
        return
    masks.__dict__["find_packed_sequence_indices"] = lambda position_ids: None
    try:
        yield
    finally:
        masks.__dict__["find_packed_sequence_indices"] = packed


def _update_alone(subject: Subject) -> None:
    """Gradients and the optimizer's state, which are there whatever forward does."""
    with suppress(Exception):
        # The optimizer's are the shards; the model's may be gathered where forward ended.
        for parameter in (p for group in subject.optimizer.param_groups for p in group["params"]):
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        subject.optimizer.step()


def _said(error: Exception) -> str:
    what = (str(error).strip().splitlines() or [""])[0][:160].rstrip(".")
    name = "" if isinstance(error, FsdpkitError) else f"{type(error).__name__}: "
    return f"{name}{what}{place_of(error)}"
