"""What `training.checkpoint.start` names: checkpoints of fsdpkit, or weights written by another
program. Determined from names and first bytes, so that a login node can do it, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from fsdpkit.errors import ConfigError, NotFoundError
from fsdpkit.runs.checkpoints import DESCRIPTION, METADATA, checkpoints_in, step_of
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.reading import open_regular

Kind = Literal["checkpoints", "dcp", "safetensors", "torch"]

TAKES = (
    "It takes an earlier run's directory or one of its checkpoints; or, for weights alone, a file "
    "of torch.save, of safetensors or of Lightning, a Hugging Face directory, or one of "
    "torch.distributed.checkpoint."
)
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
_MOST_HEADER_BYTES = 100 << 20


class StartingPoint(NamedTuple):
    """A place to begin from; `checkpoints` are oldest first, for that kind."""

    kind: Kind
    path: Path
    checkpoints: list[Path] = []  # noqa: RUF012 - never changed


def starting_point(path: Path) -> StartingPoint:
    """What `path` contains. Raises NotFoundError, or ConfigError for a file of another kind."""
    key = "training.checkpoint.start"
    try:
        if path.is_dir():
            if found := _of_directory(path):
                return found
            raise NotFoundError(f"{key}: {path} holds no complete checkpoint. {TAKES}")
        with open_regular(path) as file:
            begin = file.read(9)
    except FileNotFoundError:
        raise NotFoundError(f"{key}: there is nothing at {path}. {TAKES}") from None
    except OSError as error:
        raise NotFoundError(f"{key}: {path} cannot be read: {error.strerror}. {TAKES}") from None
    if begin.startswith(_ZIP):
        return StartingPoint("torch", path)
    if begin[8:] == b"{" and int.from_bytes(begin[:8], "little") <= _MOST_HEADER_BYTES:
        return StartingPoint("safetensors", path)
    if begin.startswith(_PICKLE):
        raise ConfigError(
            f"{key}: {path} is a pickle or was saved before torch 1.6, which is not read: load it "
            "where it was written, and torch.save its state dict again."
        )
    what = "is empty" if not begin else "is neither of torch.save nor of safetensors"
    raise ConfigError(f"{key}: {path} {what}. {TAKES}")


def _of_directory(path: Path) -> StartingPoint | None:
    if step_of(path) is not None or (path / DESCRIPTION).is_file():
        return StartingPoint("checkpoints", path, [path])
    for directory in (TaskPaths(path).checkpoints, path):
        if found := checkpoints_in(directory):
            return StartingPoint("checkpoints", path, found)
    if (path / METADATA).is_file():
        return StartingPoint("dcp", path)
    if any((path / name).is_file() for name in _SAFETENSORS):
        return StartingPoint("safetensors", path)
    return None
