"""Hugging Face's Trainer in a run: progress, heartbeat, stop and resume, by one line.

    from fsdpkit.script.huggingface import attach

    trainer = attach(Trainer(model=model, args=arguments, …))
    trainer.train()

Checkpoints go to the run's directory. A job that Slurm queues again goes on from the newest whole
one; one that is to stop saves after the same step on every rank, and the process ends with
`fsdpkit.STOPPED` where `train()` would have returned. Where fsdpkit did not start the script,
`attach` changes nothing.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from transformers import TrainerCallback

from fsdpkit.errors import STOPPED_EARLY, UsageError
from fsdpkit.runs.heartbeat import HeartbeatFile, Phase, own_heart
from fsdpkit.runs.layout import HUGGINGFACE
from fsdpkit.script.log import log
from fsdpkit.script.saving import Wishes, begin, in_a_run, saved, where_to_go_on
from fsdpkit.script.stopping import task_dir

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

Any_Trainer = TypeVar("Any_Trainer", bound="Trainer")
_OURS = {"learning_rate": "lr", "num_input_tokens_seen": "tokens"}


def attach(trainer: Any_Trainer) -> Any_Trainer:
    """Make a Trainer of `transformers` part of the run: progress, heartbeat, stop and resume.

    Call it before `train()`, on every rank. Checkpoints then go to `trainer/` in `task_dir()`;
    `train()` continues from the newest whole one, and ends the process with `fsdpkit.STOPPED` when
    the run is to stop.

    Args:
        trainer: A `transformers.Trainer`, or one of its subclasses.

    Returns:
        The same trainer; unchanged where fsdpkit did not start the script.

    Raises:
        UsageError: The Trainer knows of another number of ranks than the run has, so that each
            would train alone and overwrite the others' checkpoints.
    """
    if not in_a_run():
        return trainer
    wanted = int(os.environ.get("WORLD_SIZE", "1"))
    if trainer.args.world_size != wanted:
        raise UsageError(
            f"this is one of {wanted} ranks, but its Trainer knows of {trainer.args.world_size}: "
            "on CPUs it needs TrainingArguments(use_cpu=True)"
        )
    output = task_dir() / HUGGINGFACE
    trainer.args.output_dir = str(output)
    callback = RunCallback(saves=not trainer.args.save_only_model)
    trainer.add_callback(callback)
    original = trainer.train

    def train(resume_from_checkpoint: str | bool | None = None, *args: Any, **keys: Any) -> Any:
        if resume_from_checkpoint is None or resume_from_checkpoint is True:
            found = where_to_go_on(output)
            resume_from_checkpoint = None if found is None else str(found)
        result = original(resume_from_checkpoint, *args, **keys)
        if callback.stopped:
            sys.exit(STOPPED_EARLY)
        return result

    trainer.train = train
    return trainer


class RunCallback(TrainerCallback):
    """What `attach` adds to a Trainer."""

    def __init__(self, saves: bool = True) -> None:
        self.stopped = False
        self._wishes = Wishes(saves)
        self._asked: str | None = None  # the wish that the next checkpoint answers
        self._heart: HeartbeatFile | None = None
        with suppress(OSError):
            self._heart = own_heart()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._beat(state, "starting")
        if args.save_only_model and state.is_world_process_zero:
            print("fsdpkit: save_only_model leaves out what a run needs to go on", flush=True)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        # Asked after the last step, too: all ranks ask equally often.
        asked = self._wishes.asked()
        if asked.stop and state.global_step < state.max_steps:
            self.stopped = control.should_save = control.should_training_stop = True
        control.should_save |= asked.save
        self._note_save(args, state, control)
        self._beat(state, _next_phase(control))

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._note_save(args, state, control)
        self._beat(state, _next_phase(control))

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._beat(state, "evaluating")

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._beat(state, "saving" if control.should_save else "training")

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if not args.save_only_model:
            saved(_checkpoint(args, state), state.global_step, self._asked)
            self._asked = None
        self._beat(state, "training")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._beat(state, "ending")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        numbers = {_OURS.get(name, name): value for name, value in (logs or {}).items()}
        planned = {"planned_steps": state.max_steps} if state.max_steps > 0 else {}
        log(state.global_step, **{**numbers, **planned})

    def _note_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl
    ) -> None:
        if control.should_save and not args.save_only_model:
            self._asked = begin(_checkpoint(args, state))

    def _beat(self, state: TrainerState, phase: Phase) -> None:
        if self._heart is not None:
            self._heart.beat(state.global_step, phase)


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """Where the Trainer puts what it saves after this step."""
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"


def _next_phase(control: TrainerControl) -> Phase:
    """What follows a step, by what was decided at its end."""
    if control.should_evaluate:
        return "evaluating"
    return "saving" if control.should_save else "training"
