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
    from fsdpkit.config.training import PrecisionSettings, ShardingSettings
    from fsdpkit.errors import STOPPED_EARLY
    from fsdpkit.runs.layout import TaskPaths
    from fsdpkit.training.agreement import SaveClock, StopRequest, Votes
    from fsdpkit.training.checkpoint import Checkpointer
    from fsdpkit.training.distributed import Ranks, process_group, seed_step, sum_over_ranks
    from fsdpkit.training.export import HuggingFace
    from fsdpkit.training.finite import require_finite
    from fsdpkit.training.gradients import clip_gradients, gradient_sync, loss_scaler
    from fsdpkit.training.hugging_face import pretrained
    from fsdpkit.training.metrics import Metrics
    from fsdpkit.training.optimizers import make_optimizer
    from fsdpkit.training.progress import Progress
    from fsdpkit.training.sampler import GlobalBatches, GlobalOrderSampler, data_order, endless
    from fsdpkit.training.schedules import set_learning_rate
    from fsdpkit.training.sharding import shard
    from fsdpkit.training.weight_files import fill_from
    from fsdpkit.training.whole import whole_weights

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

__all__ = [
    "STOPPED_EARLY",
    "Checkpointer",
    "GlobalBatches",
    "GlobalOrderSampler",
    "HuggingFace",
    "Metrics",
    "PrecisionSettings",
    "Progress",
    "Ranks",
    "SaveClock",
    "ShardingSettings",
    "StopRequest",
    "TaskPaths",
    "Votes",
    "clip_gradients",
    "data_order",
    "endless",
    "fill_from",
    "gradient_sync",
    "loss_scaler",
    "make_optimizer",
    "pretrained",
    "process_group",
    "require_finite",
    "seed_step",
    "set_learning_rate",
    "shard",
    "sum_over_ranks",
    "whole_weights",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fsdpkit.{_HOME_OF[name]}"), name)
