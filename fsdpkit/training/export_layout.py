"""Where the tensors of an export come from, if it has others than the model.

A checkpoint holds the model's weights. transformers stacks the experts of a layer, say, that lie
one by one in files: what is exported is then cut out of weights, as a table in the checkpoint says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from fsdpkit.errors import StorageError

LAYOUT = "export_layout.json"
"""In a checkpoint: tensors of the export → parts of the model's."""


@dataclass(frozen=True)
class WeightPart:
    """A tensor of an export that is a weight of the model, or cut out of one."""

    of: tuple[str, ...]  # the weight, under each of its names
    index: int | None = None  # into the first dimension, which is then gone
    narrow: tuple[int, int, int] | None = None  # then: dimension, start, length

    def cut(self, weight: Tensor) -> Tensor:
        part = weight if self.index is None else weight[self.index]
        return part if self.narrow is None else part.narrow(*self.narrow)

    def shape(self, whole: torch.Size) -> torch.Size:
        """What `cut` makes of a weight of the shape `whole`."""
        return self.cut(torch.empty(whole, device="meta")).shape


def written(layout: Mapping[str, WeightPart]) -> str:
    """The text of a checkpoint's LAYOUT."""
    return msgspec.json.encode(dict(layout)).decode() + "\n"


def read_layout(checkpoint: Path, shapes: Mapping[str, torch.Size]) -> dict[str, WeightPart]:
    """Each tensor of the export as a part of one weight of `shapes`, those in the checkpoint.

    Raises StorageError for a table that cannot be read or does not fit them.
    """
    file = checkpoint / LAYOUT
    try:
        parts = msgspec.json.decode(file.read_bytes(), type=dict[str, WeightPart])
    except (OSError, msgspec.MsgspecError) as error:
        raise StorageError(f"{file} cannot be read: {error}.") from None
    found = {}
    for name, part in parts.items():
        weights = [weight for weight in part.of if weight in shapes][:1]
        if not weights:
            raise StorageError(f"{file}: {name} is of no weight in {checkpoint}.")
        found[name] = replace(part, of=tuple(weights))
        try:
            found[name].shape(shapes[weights[0]])
        except (IndexError, RuntimeError) as error:
            raise StorageError(f"{file}: {name} is no part of {weights[0]}: {error}.") from None
    return found


def whole_weights(names: Collection[str]) -> dict[str, WeightPart]:
    """The layout of an export that has the model's own tensors."""
    return {name: WeightPart((name,)) for name in names}
