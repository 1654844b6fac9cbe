"""Plans that were made on this account, for `submit` to look at: a small file each, and no torch.

What a plan depends on is its name: the settings that decide what a step allocates, the ranks, the
GPU, torch and fsdpkit. So an answer is of this very job or there is none. Files that cannot be
read, or are not what they should be, are as good as none: a submission never fails for its cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

import fsdpkit
from fsdpkit.bounded import SCRIPT_BYTES, read_bytes
from fsdpkit.config.training import TrainingSettings
from fsdpkit.launching.torch_release import installed_torch
from fsdpkit.planning.cards import Card
from fsdpkit.runs.caches import cache, cached
from fsdpkit.runs.predicted import Predicted

NARROW = 0.9
"""From this share of the usable on, a job is said to hardly fit: plans are not measurements."""

_OF_TRAINING = ("batch_size", "micro_batch", "loss", "grad_clip", "sharding", "precision")
_OF_DATA = ("source_length", "target_length", "multiple", "packing")
_OF_OPTIMIZER = ("name", "implementation", "beta1", "rounding", "groups")


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """What `submit` says of a plan. Bytes, on the fullest GPU."""

    fit: Literal["fits", "tight", "does not fit"]
    total: int
    """Reserved by torch, and what lies outside of it."""
    usable: int
    """What the card has for both."""
    card: str
    would_fit: list[str] = []
    """`KEY=VALUE` of a change that would fit, if one was found."""
    made_s: float
    """Unix time."""
    predicted: Predicted | None = None
    """What a run of the job keeps, to be compared with what it measures."""


def name_of(
    settings: TrainingSettings | None,
    nodes: int,
    gpus: int,
    card: Card,
    trainer: Path,
    args: Sequence[str] | None = None,
    torch: str | None = None,
) -> str:
    """Of what a plan depends on, the SHA-256 as hex. gpus: per node; args: of a script that does
    not read [training], whose settings are None, all that it is told. torch: its version, if not
    the one that is installed here."""
    settings = settings or TrainingSettings()
    tables: dict[str, Any] = {
        "training": {key: getattr(settings, key) for key in _OF_TRAINING},
        "model": [settings.model.dimensions(), settings.model.attention],
        "data": {key: getattr(settings.data, key) for key in _OF_DATA},
        "optimizer": {key: getattr(settings.optimizer, key) for key in _OF_OPTIMIZER},
        "ranks": [nodes, gpus],
        "card": [card.name, card.memory, card.capability],
        "trainer": _digest(trainer),
        "software": [torch or installed_torch(), fsdpkit.__version__],
    }
    if args is not None:
        tables["args"] = list(args)
    return hashlib.sha256(msgspec.json.encode(tables, order="deterministic")).hexdigest()


def _digest(trainer: Path) -> str:
    """Of the trainer and the modules beside it: who edits one has another job."""
    whole = hashlib.sha256()
    try:
        for file in sorted(trainer.parent.glob("*.py")):
            whole.update(
                file.name.encode() + b"\0" + read_bytes(file, SCRIPT_BYTES, links=True) + b"\0"
            )
    except OSError:
        return str(trainer)
    return whole.hexdigest()


def remember(name: str, plan: Remembered) -> None:
    """Keep `plan`, if there is a place for it."""
    cache(f"plans/{name}.json", plan)


def recall(name: str) -> Remembered | None:
    """The plan of this name; None if none was made."""
    return cached(f"plans/{name}.json", Remembered)
