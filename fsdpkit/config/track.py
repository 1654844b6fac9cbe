"""`[track]` of a job: where `fsdpkit track` sends what a run logged.

Compute nodes often reach nothing outside the cluster, and a tracker must never harm a training: the
job itself only writes metrics.jsonl, and sends nothing.
"""

from typing import Annotated, Literal

import msgspec

from fsdpkit.config.fields import Text, doc

Tracker = Literal["tensorboard", "mlflow", "wandb"]


class Track(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The trackers, and where in them the run belongs. Keys are the person's own: `WANDB_API_KEY`
    or `~/.netrc`, `MLFLOW_TRACKING_TOKEN`."""

    to: Annotated[list[Tracker], doc("Trackers: tensorboard, mlflow, wandb.")] = []
    project: Annotated[
        Text | None, doc("MLflow's experiment, W&B's project; unset: the job's name.")
    ] = None
    uri: Annotated[
        Text | None, doc("MLflow's server, sqlite:///FILE or directory; unset: its own variable.")
    ] = None
    entity: Annotated[Text | None, doc("W&B's team or user; unset: your own.")] = None
    offline: Annotated[bool, doc("Let W&B write into the run's directory, for wandb sync.")] = False
