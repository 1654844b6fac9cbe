"""The door between the launcher and a trainer: what `[training]` of a job means.

The launcher submits, places and watches a job without knowing what it trains. What can be known of
`[training]` before a job queues, the trainer's package says through an object of a class derived
from `Trainer`, which it offers as an entry point of the group `fsdpkit.trainers`; a job names it by
its key `trainer`. All methods run on a login node, on the path of each submission, so none may
import torch. fsdpkit's own is `fsdpkit/training/offer.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fsdpkit.config.partition import NodeType


class GpuVerdict(NamedTuple):
    """What is known of settings on GPUs of one kind."""

    problem: str | None = None
    """Why they cannot be trained there, with what to do."""
    notes: tuple[str, ...] = ()
    """What else to know, a sentence each."""


class CheckpointSize(NamedTuple):
    """What a run writes to disk."""

    what: str
    """Of what a checkpoint is, such as a model's name."""
    one_bytes: int
    """Bytes of one checkpoint."""
    kept: int
    """Checkpoints that are on disk at most, the one that is being written included."""


class TrainingLength(NamedTuple):
    """When training ends, and what it does besides its steps."""

    steps: int | None = None
    """None: not known."""
    source: str = ""
    """What says so, such as `training.steps`; of None, why it is not known and what to do."""
    is_estimate: bool = False
    saves: int = 0
    """Checkpoints until then."""
    background: bool = False
    """Whether training goes on while one is written."""
    evaluations: int = 0
    evaluated: int = 0
    """Batches of a rank in one of them."""
    not_counted: tuple[str, ...] = ()
    """What else takes time."""


class NoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `[training]` without keys."""


class Trainer:
    """A trainer as the launcher sees it; a method that has nothing to say may be left as it is."""

    Settings: type[msgspec.Struct] = NoSettings
    """The keys of `[training]`: types, defaults and sentences (`fsdpkit.config.fields.doc`)."""

    def problems(self, settings: Any, ranks: int, ranks_per_node: int) -> list[str]:
        """Combinations that cannot work.

        Args:
            settings: `[training]` of the job, as `Settings`.
            ranks: Ranks of the job.
            ranks_per_node: Their number on each node.

        Returns:
            A sentence each, with the remedy.
        """
        return []

    def file_problems(self, settings: Any, ranks: int, work_dir: Path) -> list[str]:
        """What is wrong with the files that the settings name.

        Args:
            settings: `[training]` of the job, as `Settings`.
            ranks: Ranks of the job.
            work_dir: The job's directory, in which relative paths start.

        Returns:
            A sentence each, with the remedy.
        """
        return []

    def check_start(self, settings: Any, work_dir: Path) -> None:
        """See whether what training starts from is there; raise an FsdpkitError if not.

        Args:
            settings: `[training]` of the job, as `Settings`.
            work_dir: The job's directory, in which relative paths start.
        """

    def in_place(self, settings: Any, work_dir: Path) -> Any:
        """The settings with whole paths of what describes the model.

        Args:
            settings: `[training]` of the job, as `Settings`.
            work_dir: The job's directory, in which relative paths start.

        Returns:
            Settings.
        """
        return settings

    def moved(self, settings: Any, move: Callable[[str], str]) -> Any:
        """The settings of a job that runs in a copy of its work tree.

        Args:
            settings: `[training]` of the job, as `Settings`.
            move: Gives a path as it is to be written in the copy.

        Returns:
            Settings in which every path is given by `move`.
        """
        return settings

    def inputs(self, settings: Any) -> list[str]:
        """Files and directories that training reads.

        Args:
            settings: `[training]` of the job, as `Settings`.

        Returns:
            Paths as they were written.
        """
        return []

    def on_gpus(
        self, settings: Any, ranks: int, ranks_per_node: int, node: NodeType, *, files: bool
    ) -> GpuVerdict:
        """Whether GPUs of a kind can train it.

        Args:
            settings: What `in_place` returned.
            ranks: Ranks of the job.
            ranks_per_node: Their number on each node.
            node: What the site's profile says of the nodes.
            files: Whether files can be looked at; not in a browser.

        Returns:
            The verdict.
        """
        return GpuVerdict()

    def least_gpu_bytes(
        self, settings: Any, ranks: int, ranks_per_node: int, node: NodeType, *, files: bool
    ) -> int | None:
        """Memory that each GPU needs whatever else it holds.

        Args:
            settings: What `in_place` returned.
            ranks: Ranks of the job.
            ranks_per_node: Their number on each node.
            node: What the site's profile says of the nodes.
            files: Whether files can be looked at; not in a browser.

        Returns:
            Bytes; None where that is not known.
        """
        return None

    def checkpoints(self, settings: Any) -> CheckpointSize | None:
        """How much a run writes.

        Args:
            settings: What `in_place` returned.

        Returns:
            The sizes; None where nothing is written, or it is not known.
        """
        return None

    def length(self, settings: Any, ranks: int, work_dir: Path) -> TrainingLength:
        """When training ends. May read data, a bounded part of it.

        Args:
            settings: What `in_place` returned.
            ranks: Ranks of the job.
            work_dir: The job's directory, in which relative paths start.

        Returns:
            The length.
        """
        return TrainingLength(source="the trainer does not say how many steps it makes")
