"""`[training.checkpoint]`: when to save, what to keep, and by which metric one is the best."""

from typing import Annotated, Literal

import msgspec

from fsdpkit.config.fields import doc
from fsdpkit.config.training.model import Name

ROUGE = ("eval_rouge1", "eval_rouge2", "eval_rougeL")
EVALUATED = ("eval_loss", *ROUGE)
"""Metrics of an evaluation."""

LOGGED = ("loss", "grad_norm", "step_time_s", "tokens_per_s", "tflops_per_device", "memory_bytes")
"""Metrics of a logged line by which a checkpoint may be better; see `fsdpkit.training.metrics`."""

BEST_IS_HIGHEST = (*ROUGE, "tokens_per_s", "tflops_per_device")
"""Of the metrics that are recorded here; others are taken for losses."""


class CheckpointSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.checkpoint]`: when to save, what to keep, whether to go on from it."""

    every_steps: Annotated[
        int, doc("Steps between checkpoints; 0 saves only at the end or when stopped.", ge=0)
    ] = 50
    every_epochs: Annotated[
        int, doc("Also save at the end of every n-th epoch; 0 does not.", ge=0)
    ] = 0
    every_minutes: Annotated[
        float, doc("Also save when this long has passed since the last checkpoint; 0 never.", ge=0)
    ] = 0
    background: Annotated[
        bool, doc("Write while training goes on, from a copy of the shards in host memory.")
    ] = True
    keep_last: Annotated[int, doc("Newest checkpoints to keep.", ge=1)] = 2
    keep_best: Annotated[
        Name | None,
        doc(
            "Also keep the checkpoint that is best by this metric, such as eval_loss; "
            "an evaluation that is the best so far saves one. Unset: eval_loss with "
            "evaluation.patience, else none."
        ),
    ] = None
    best_is: Annotated[
        Literal["lowest", "highest"] | None,
        doc(
            "Which value of keep_best is the best. Unset: the highest ROUGE and speed, "
            "of all others the lowest."
        ),
    ] = None
    at_end: Annotated[bool, doc("Also save after the last step.")] = True
    export: Annotated[
        bool,
        doc(
            "After the last step also write config.json and safetensors for "
            "Hugging Face, in the run's export directory: of the best checkpoint if one is kept."
        ),
    ] = False
    resume: Annotated[
        Literal["auto", "never"],
        doc("auto: resume from the run's newest complete checkpoint, if there is one."),
    ] = "auto"
    may_differ: Annotated[
        tuple[Literal["data", "seed"], ...],
        doc(
            "What may differ from the checkpoint that training resumes from; the epoch "
            "then starts again. Any other difference is refused."
        ),
    ] = ()
    start: Annotated[
        str | None,
        doc(
            "An earlier run's directory to continue from, or weights to start from (a "
            "file of torch.save, safetensors or Lightning, a directory of torch's or Hugging "
            "Face's), unless this run has already started."
        ),
    ] = None

    @property
    def highest_is_best(self) -> bool:
        """Of `keep_best`."""
        return self.best_is == "highest" or (
            self.best_is is None and self.keep_best in BEST_IS_HIGHEST
        )
