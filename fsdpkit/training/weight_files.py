"""Weights out of safetensors into a sharded model, each rank reading its own slices.

    fill = training.fill_from("/models/llama", rename=lambda name: name.removeprefix("model."))
    model = training.shard(model, …, blocks=[Block], fill=fill)

`shard` compares names, shapes and types with the model's before anything is read. FSDP2 then asks
for each rank's slice of each tensor, FSDP1 for a unit's tensors at a time. No rank ever holds more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Generator, Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from fsdpkit.bounded import json_of_model
from fsdpkit.config.training.hub import hub_hint
from fsdpkit.errors import ConfigError, NotFoundError
from fsdpkit.training.export import INDEX, SINGLE
from fsdpkit.training.units import plain_name

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
TYPES = {
    "F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_MOST_TOLD = 3
_REMEDY = (
    "`rename` gives names in files the model's, or None to leave a tensor out; `otherwise` fills "
    "what the files lack."
)

Rename = Callable[[str], str | None]
"""A tensor's name in the file to the model's; None leaves the tensor out."""
Fill = Callable[[str, Tensor, Generator], None]


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, as the file's header has it."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str  # safetensors' word

    def read(self, part: tuple[slice, ...] = ()) -> Tensor:
        """The whole tensor, or a slice of each dimension."""
        with safe_open(self.file, framework="pt") as file:
            value: Tensor = file.get_slice(self.name)[part] if part else file.get_tensor(self.name)
        return value


@dataclass(frozen=True)
class JoinedTensors:
    """Several tensors that are one in the model, along a dimension that is new (stacked) or not."""

    parts: tuple[Source, ...]
    dim: int
    stacked: bool = False

    @property
    def file(self) -> Path:
        return self.parts[0].file

    @property
    def name(self) -> str:
        first, *others = self.names
        return f"{first} with {len(others)} more tensors" if others else first

    @property
    def names(self) -> list[str]:
        """Of all tensors in files, also those that are joined more than once."""
        return [n for part in self.parts for n in (part.names if isinstance(part, JoinedTensors)
                                                   else [part.name])]  # fmt: skip

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole. Raises ConfigError for parts that do not fit one another."""
        shapes = {part.shape for part in self.parts}
        if self.stacked and len(shapes) == 1:
            (shape,) = shapes
            return (*shape[: self.dim], len(self.parts), *shape[self.dim :])
        others = {shape[: self.dim] + shape[self.dim + 1 :] for shape in shapes}
        if self.stacked or len(others) != 1 or len({len(shape) for shape in shapes}) != 1:
            raise ConfigError(f"{self.file}: {self.name} have shapes that do not fit: {shapes}.")
        shape = self.parts[0].shape
        length = sum(part.shape[self.dim] for part in self.parts)
        return (*shape[: self.dim], length, *shape[self.dim + 1 :])

    @property
    def dtype(self) -> str:
        return "/".join(sorted({part.dtype for part in self.parts}))

    def read(self, part: tuple[slice, ...] = ()) -> Tensor:
        """The whole tensor, or a slice of each dimension; only what lies in it is read."""
        part = part or tuple(slice(0, length) for length in self.shape)
        here, others = part[self.dim], (part[: self.dim], part[self.dim + 1 :])
        if self.stacked:
            inner = (*others[0], *others[1])
            return torch.stack([each.read(inner) for each in self.parts[here]], self.dim)
        pieces, start = [], 0
        for each in self.parts:
            end = start + each.shape[self.dim]
            first, last = max(here.start, start), min(here.stop, end)
            if first < last:
                within = slice(first - start, last - start)
                pieces.append(each.read((*others[0], within, *others[1])))
            start = end
        return torch.cat(pieces, self.dim)


Source = Stored | JoinedTensors


@dataclass(frozen=True)
class Needed:
    """A tensor that the model has, under each of its names (several if modules share it)."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype


class FileFill:
    """A `fill` for `shard` that reads files. `otherwise` fills what they lack."""

    def __init__(
        self,
        table: Mapping[str, Source],
        where: Path,
        otherwise: Fill | None = None,
        remedy: str = _REMEDY,
    ) -> None:
        self._table, self._where, self._otherwise = dict(table), where, otherwise
        self._remedy = remedy

    def check(self, model: nn.Module) -> None:
        """Raises ConfigError unless the files have what `model` needs, and nothing else."""
        needed = tensors_needed(model)
        # A buffer that was built with values keeps them where no file has others.
        has_value = {plain_name(n) for n, buffer in model.named_buffers() if not buffer.is_meta}
        known = {name for each in needed for name in each.names}
        wrong = [
            f"{stored.file}: {name} is not a tensor of the model"
            for name, stored in self._table.items()
            if name not in known
        ]
        for each in needed:
            found = [self._table[name] for name in each.names if name in self._table]
            if not found and self._otherwise is None and not has_value & {*each.names}:
                wrong.append(f"{self._where}: {each.names[0]} is missing")
            wrong += [told for stored in found if (told := _misfit(stored, each))]
            wrong += [
                f"{other.file}: {other.name} differs from {found[0].name}, which the model ties"
                for other in found[1:]
                if not wrong and not same(found[0], other)
            ]
            self._table |= {name: found[0] for name in each.names if found}
        if wrong:
            more = f"\n(and {len(wrong) - _MOST_TOLD} more)" if len(wrong) > _MOST_TOLD else ""
            raise ConfigError(
                "\n".join(f"{line}." for line in wrong[:_MOST_TOLD]) + more + "\nThe model and the "
                f"files must agree: {self._remedy}"
            )

    def __call__(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Fill one whole tensor."""
        if (stored := self._table.get(name)) is not None:
            copy_finite(stored, tensor)
        elif self._otherwise is not None:
            self._otherwise(name, tensor, generator)
        else:
            raise ConfigError(f"{self._where}: {name} is missing.")

    def has(self, name: str) -> bool:
        """Whether the files have the tensor, so that `fill_part` can read it."""
        return name in self._table

    def fill_part(self, name: str, tensor: DTensor) -> None:
        """Fill this rank's part of a sharded tensor, reading no more than that."""
        copy_finite(self._table[name], tensor)


def fill_from(
    directory: Path | str, rename: Rename | None = None, otherwise: Fill | None = None
) -> FileFill:
    """A `fill` for `shard`: weights from `model.safetensors`, or the files that its index names.

    float32, bfloat16, float16 and float64 become the model's type.

    Args:
        directory: Where the files are.
        rename: Gives a tensor's name in the files the model's, or None to leave it out.
        otherwise: Fills what the files lack, such as a new head.

    Returns:
        What to pass to `shard` as `fill`. It refuses names and shapes that do not fit.

    Raises:
        NotFoundError: There are no such files.
        ConfigError: A file cannot be read, or two tensors get the same name.

    Examples:
        >>> from fsdpkit import training
        >>> training.fill_from("no-such-directory")
        Traceback (most recent call last):
        fsdpkit.errors.NotFoundError: no-such-directory...
    """
    directory = Path(directory)
    table: dict[str, Stored] = {}
    for name, stored in safetensors_in(directory):
        new = rename(name) if rename else name
        if new is None:
            continue
        if new in table:
            raise ConfigError(f"{directory}: {table[new].name} and {name} are both renamed {new}.")
        table[new] = stored
    return FileFill(table, directory, otherwise)


def tensors_needed(model: nn.Module) -> list[Needed]:
    """What a state dict of the unsharded `model` has: parameters and persistent buffers."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor):
            names.setdefault(id(tensor), []).append(plain_name(name))
            tensors[id(tensor)] = tensor
    return [
        Needed(tuple(names[key]), tuple(tensor.shape), tensor.dtype)
        for key, tensor in tensors.items()
    ]


def _misfit(stored: Source, needed: Needed) -> str | None:
    if stored.shape != needed.shape:
        return (
            f"{stored.file}: {stored.name} has the shape {list(stored.shape)}, the model "
            f"{list(needed.shape)}"
        )
    if not converts(TYPES.get(stored.dtype), needed.dtype):
        return f"{stored.file}: {stored.name} is of type {stored.dtype}, the model {needed.dtype}"
    return None


def converts(found: torch.dtype | None, needed: torch.dtype) -> bool:
    """Whether values of one type may become values of the other."""
    return found == needed or (found in FLOATS and needed.is_floating_point)


def copy_finite(stored: Source, target: Tensor) -> None:
    """Copy into `target` what it has of the tensor. Raises ConfigError for NaN and infinity."""
    copy_part(
        stored.read,
        target,
        lambda: f"{stored.file}: {stored.name} holds numbers that are not finite.",
    )


def copy_part(
    read: Callable[[tuple[slice, ...]], Tensor], target: Tensor, not_finite: Callable[[], str]
) -> None:
    """`read` the part of a tensor that `target` holds here: all of it, or a DTensor's shard."""
    part: tuple[slice, ...] = ()
    own = target
    if isinstance(target, DTensor):
        own = target.to_local()
        shape, offset = compute_local_shape_and_global_offset(
            target.shape, target.device_mesh, target.placements
        )
        part = tuple(slice(o, o + s) for o, s in zip(offset, shape, strict=True))
    if own.numel() == 0:
        return
    value = read(part)
    if value.is_floating_point() and not torch.isfinite(value).all():
        raise ConfigError(not_finite())
    own.copy_(value)


def safetensors_in(directory: Path) -> Iterator[tuple[str, Stored]]:
    """Every tensor of the one file, or of the files that the index names, from their headers.

    Raises NotFoundError when there are none, ConfigError for one that cannot be read.
    """
    if (directory / SINGLE).is_file():
        files: dict[Path, list[str]] = {directory / SINGLE: []}
    elif (directory / INDEX).is_file():
        files = _index(directory / INDEX)
    else:
        hint = ""
        if pickled := sorted(path.name for path in directory.glob("pytorch_model*.bin")):
            hint = f" Save it again with transformers: {pickled[0]} is not read."
        if not directory.exists():
            raise NotFoundError(f"{directory}: no such directory.{hub_hint(directory)}")
        raise NotFoundError(f"{directory}: holds neither {SINGLE} nor {INDEX}.{hint}")
    for path, promised in files.items():
        found = tensors_of(path)
        if absent := [name for name in promised if name not in found]:
            raise ConfigError(f"{path}: {absent[0]} is missing, but {INDEX} has it there.")
        yield from found.items()


def tensors_of(path: Path) -> dict[str, Stored]:
    """The tensors of one file of safetensors, from its header. Raises as `safetensors_in` does."""
    try:
        with safe_open(path, framework="pt") as file:
            return {
                name: Stored(path, name, tuple(tensor.get_shape()), tensor.get_dtype())
                for name in file.keys()  # noqa: SIM118
                for tensor in [file.get_slice(name)]
            }
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file, but {INDEX} names it.") from None
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path}: cannot be read as safetensors: {error}.") from None


def _index(path: Path) -> dict[Path, list[str]]:
    """File → names of its tensors, as the index has it."""
    try:
        names = json_of_model(path)["weight_map"].items()
        files: dict[Path, list[str]] = {}
        for name, file in names:
            if Path(file).name != file:
                raise ValueError(f"{file!r} is not the name of a file beside it")
            files.setdefault(path.parent / file, []).append(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: cannot be read as an index: {error!r}.") from None
    return files


def same(one: Source, other: Source) -> bool:
    """Whether two tensors hold the same values; stops at the first rows that differ."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.shape or isinstance(one, JoinedTensors) or isinstance(other, JoinedTensors):
        return torch.equal(one.read(), other.read())
    with safe_open(one.file, "pt") as first, safe_open(other.file, "pt") as second:
        a, b = first.get_slice(one.name), second.get_slice(other.name)
        rows = range(0, one.shape[0], 1024)
        return all(torch.equal(a[r : r + 1024], b[r : r + 1024]) for r in rows)
