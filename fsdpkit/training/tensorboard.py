"""The lines of metrics.jsonl once more, as TensorBoard scalars, written by rank 0."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from fsdpkit.errors import ConfigError, StorageError


def require_tensorboard() -> None:
    """Raise ConfigError unless the package is installed; cheap, so that every rank can ask."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "training.metrics.tensorboard needs the tensorboard package: "
            'pip install "fsdpkit[tensorboard]", or set it to false.'
        )


class TensorBoard:
    """Writes a line's numbers under their field names; `step` is the horizontal axis.

    Raises ConfigError when the package is missing, StorageError when `directory` cannot be
    written.
    """

    def __init__(self, directory: Path) -> None:
        require_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        try:
            self._writer = SummaryWriter(str(directory))
        except OSError as error:
            raise StorageError(f"{directory} cannot be written: {error.strerror}.") from error

    def write(self, *, step: int, **fields: Any) -> None:
        """One line; anything that is not a number is left to metrics.jsonl."""
        for name, value in fields.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
