"""`[training.optimizer]`: the update rule, its parameter groups and the learning rate over time."""

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from fsdpkit.config.fields import Count, doc
from fsdpkit.config.training.model import Name
from fsdpkit.config.training.torch_schedules import OURS, TORCHS

if TYPE_CHECKING:
    Schedule = str
else:
    Schedule = Literal[(*OURS, *TORCHS)]


class ParameterGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[training.optimizer.groups]]`: parameters with a rate or decay of their own."""

    match: Annotated[
        Name,
        doc('Pattern of parameter names, such as "*.layer_norm.weight"; the first match wins.'),
    ]
    lr_scale: Annotated[float, doc("Factor on the learning rate; 0 freezes.", ge=0, le=1000)] = 1.0
    weight_decay: Annotated[
        Annotated[float, Meta(ge=0, le=10)] | None,
        doc("Decoupled weight decay of the group; unset takes the optimizer's."),
    ] = None


class OptimizerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[training.optimizer]`: the update rule and its learning rate over time."""

    name: Annotated[
        Literal["adamw", "adamw-scaled", "adafactor", "adam", "sgd"],
        doc(
            "Update rule; adam adds its decay to the gradient; adamw-scaled and adafactor multiply "
            "each update by its weight's root mean square, which pre-training T5 needs."
        ),
    ] = "adamw"
    implementation: Annotated[
        Literal["auto", "fused", "foreach", "loop"],
        doc(
            "fused: one kernel; foreach: fewer kernels, more memory; loop: least "
            "memory; auto is the fastest available for the update rule."
        ),
    ] = "auto"
    lr: Annotated[float, doc("Peak learning rate.", gt=0, le=100)] = 4e-3
    warmup_steps: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        doc(
            "Steps over which the rate rises linearly from zero, or stays at lr with schedule t5; "
            "unset takes a tenth of the run, at most 1000, or none before a torch scheduler."
        ),
    ] = None
    schedule: Annotated[
        Schedule,
        doc(
            "Learning rate after warm-up; linear and cosine end at min_lr_ratio. t5 is "
            "T5's own, 1/√max(step, warmup_steps) where lr = 1/√warmup_steps. Or a class of "
            "torch.optim.lr_scheduler, with schedule_arguments."
        ),
    ] = "cosine"
    schedule_arguments: Annotated[
        dict[str, bool | int | float | str | list[int | float]],
        doc("Arguments of a torch scheduler, such as {step_size = 30, gamma = 0.1}."),
    ] = {}
    schedule_every: Annotated[
        Count,
        doc(
            "Optimizer steps between two steps of a torch scheduler; for a scheduler "
            "that steps once per epoch, set the number of steps in an epoch."
        ),
    ] = 1
    min_lr_ratio: Annotated[
        float, doc("Where linear and cosine end, as a share of lr.", ge=0, le=1)
    ] = 0.1
    weight_decay: Annotated[
        float,
        doc(
            "Weight decay of matrices, decoupled but for adam; norms, biases and other "
            "vectors have none.",
            ge=0,
            le=10,
        ),
    ] = 0.0
    beta1: Annotated[float, doc("Decay of AdamW's mean; momentum of sgd.", ge=0, lt=1)] = 0.9
    beta2: Annotated[float, doc("Decay of AdamW's squared mean.", ge=0, lt=1)] = 0.98
    eps: Annotated[float, doc("AdamW's guard against division by zero.", gt=0)] = 1e-8
    rounding: Annotated[
        Literal["stochastic", "compensated", "nearest"] | None,
        doc(
            "How adamw updates bfloat16 weights: stochastic rounds up or down by chance, "
            "compensated keeps what was rounded off; nearest loses small updates, to compare with."
        ),
    ] = None
    groups: Annotated[
        tuple[ParameterGroup, ...], doc("Parameters with a rate or decay of their own.")
    ] = ()
