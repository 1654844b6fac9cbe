"""Inside a rank: process group, sharding, data order, checkpoints, metrics, stopping.

A small library, not a framework: each module is a room with one or two functions that a plain
training loop calls. `examples/own-model/train.py` is the shortest whole use of it,
`examples/T5-fsdp/fsdp_t5.py` the fullest. The names below are what a program needs; each is
imported when it is asked for, because what a rank imports is most of its start-up time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsdpkit.config.training import PrecisionSettings as PrecisionSettings
    from fsdpkit.config.training import ShardingSettings as ShardingSettings
    from fsdpkit.errors import STOPPED_EARLY as STOPPED_EARLY
    from fsdpkit.runs.layout import TaskPaths as TaskPaths
    from fsdpkit.training.agreement import SaveClock as SaveClock
    from fsdpkit.training.agreement import StopRequest as StopRequest
    from fsdpkit.training.agreement import Votes as Votes
    from fsdpkit.training.checkpoint import Checkpointer as Checkpointer
    from fsdpkit.training.distributed import Ranks as Ranks
    from fsdpkit.training.distributed import process_group as process_group
    from fsdpkit.training.distributed import seed_step as seed_step
    from fsdpkit.training.distributed import sum_over_ranks as sum_over_ranks
    from fsdpkit.training.export import HuggingFace as HuggingFace
    from fsdpkit.training.finite import require_finite as require_finite
    from fsdpkit.training.gradients import clip_gradients as clip_gradients
    from fsdpkit.training.gradients import gradient_sync as gradient_sync
    from fsdpkit.training.gradients import loss_scaler as loss_scaler
    from fsdpkit.training.hugging_face import pretrained as pretrained
    from fsdpkit.training.metrics import Metrics as Metrics
    from fsdpkit.training.optimizers import make_optimizer as make_optimizer
    from fsdpkit.training.progress import Progress as Progress
    from fsdpkit.training.sampler import GlobalBatches as GlobalBatches
    from fsdpkit.training.sampler import GlobalOrderSampler as GlobalOrderSampler
    from fsdpkit.training.sampler import data_order as data_order
    from fsdpkit.training.sampler import endless as endless
    from fsdpkit.training.schedules import set_learning_rate as set_learning_rate
    from fsdpkit.training.sharding import shard as shard
    from fsdpkit.training.weight_files import fill_from as fill_from
    from fsdpkit.training.whole import whole_weights as whole_weights

_HOMES = {
    "config.training": ("PrecisionSettings", "ShardingSettings"),
    "errors": ("STOPPED_EARLY",),
    "runs.layout": ("TaskPaths",),
    "training.checkpoint": ("Checkpointer",),
    "training.progress": ("Progress",),
    "training.export": ("HuggingFace",),
    "training.distributed": ("Ranks", "process_group", "seed_step", "sum_over_ranks"),
    "training.gradients": ("clip_gradients", "gradient_sync", "loss_scaler"),
    "training.metrics": ("Metrics",),
    "training.optimizers": ("make_optimizer",),
    "training.hugging_face": ("pretrained",),
    "training.sampler": ("GlobalBatches", "GlobalOrderSampler", "data_order", "endless"),
    "training.schedules": ("set_learning_rate",),
    "training.sharding": ("shard",),
    "training.whole": ("whole_weights",),
    "training.agreement": ("SaveClock", "StopRequest", "Votes"),
    "training.finite": ("require_finite",),
    "training.weight_files": ("fill_from",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fsdpkit.{_HOME_OF[name]}"), name)
