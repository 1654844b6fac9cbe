"""Weights that another program wrote, into a sharded model: each rank reads its slices.

A file of `torch.save` or safetensors, Lightning's checkpoint, a directory of safetensors or of
`torch.distributed.checkpoint`. Nothing is unpickled but tensors and plain values. Names may have a
prefix, such as Lightning's `state_dict.model.`: it is found by comparing them with the model's.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from fsdpkit.errors import ConfigError, FsdpkitError
from fsdpkit.listing import first_of
from fsdpkit.runs.checkpoints import METADATA
from fsdpkit.runs.starting_points import StartingPoint
from fsdpkit.training.checkpoint_files import CheckpointReader, LoadPlanner
from fsdpkit.training.distributed import Ranks, error_text, on_first, together
from fsdpkit.training.shards import local_part
from fsdpkit.training.units import plain_name
from fsdpkit.training.weight_files import (
    TYPES,
    Needed,
    converts,
    copy_part,
    safetensors_in,
    tensors_of,
)

_KINDS = {
    "torch": "a file of torch.save",
    "safetensors": "safetensors",
    "dcp": "a directory of torch.distributed.checkpoint",
}
_DEEPEST = 8
_MOST_TOLD = 3
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")


@dataclass(frozen=True)
class Found:
    """A tensor in a file, by the name that it has there.

    `read` gives a slice of each dimension, or all for `()`; it is None where
    torch.distributed.checkpoint reads. Tensors with the same `memory` are one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    read: Callable[[tuple[slice, ...]], Tensor] | None = None
    memory: object = None


class Match(NamedTuple):
    """Names of the model → those in the file, and what there is left out."""

    names: dict[str, str]
    left_out: list[str]


def import_weights(start: StartingPoint, model: nn.Module, ranks: Ranks) -> None:
    """Give the sharded `model` the weights at `start`; a collective.

    Raises ConfigError when they are of another model or cannot be read, StorageError when reading
    fails on the way.
    """
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    state: dict[str, Any] = get_model_state_dict(model)
    needed = _needed(state, model)
    matched = on_first(ranks, lambda: match(start.path, tensors_at(start), needed))
    together(lambda: _read(start, matched.names, state))
    set_model_state_dict(model, state)
    ranks.say(
        f"begins with the weights of {start.path}: {len(matched.names)} tensors; optimizer, step "
        "and order of the samples begin anew"
    )
    if matched.left_out:
        ranks.say(f"left out: {first_of(matched.left_out, _MOST_TOLD)}")


def _needed(state: Mapping[str, Any], model: nn.Module) -> list[Needed]:
    """What the state dict has, the names of a weight that modules share together."""
    of_weight: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        of_weight.setdefault(id(parameter), []).append(plain_name(name))
    tied = {name: names for names in of_weight.values() for name in names}
    groups = {tuple(n for n in tied.get(name, [name]) if n in state): name for name in state}
    return [
        Needed(names, tuple(state[one].shape), state[one].dtype) for names, one in groups.items()
    ]


def tensors_at(start: StartingPoint) -> dict[str, Found]:
    """Every tensor there by its name, dictionaries in dictionaries joined by dots.

    Raises ConfigError, or NotFoundError for a missing file of several.
    """
    try:
        if start.kind == "torch":
            return dict(_of_torch(start.path))
        if start.kind == "dcp":
            return dict(_of_dcp(start.path))
        stored = dict(safetensors_in(start.path)) if start.path.is_dir() else tensors_of(start.path)
    except FsdpkitError:
        raise
    except Exception as error:  # whatever a damaged file makes of its reader
        raise ConfigError(_unreadable(start, error)) from None
    return {
        _plain(name): Found(name, each.shape, TYPES.get(each.dtype), each.read)
        for name, each in stored.items()
    }


def _unreadable(start: StartingPoint, error: BaseException) -> str:
    path = start.path
    if isinstance(error, pickle.UnpicklingError) and (asked := _GLOBAL.search(str(error))):
        return (
            f"{path} holds {asked[1]} beside tensors and plain values, and what could run code is "
            "not unpickled. Where it was written, save its weights alone: "
            "torch.save(model.state_dict(), FILE); of Lightning: "
            'torch.save(checkpoint["state_dict"], FILE).'
        )
    said = error_text(error).partition("\n")[0].partition(". ")[0]
    return f"{path} cannot be read as {_KINDS[start.kind]}, it may have been cut short: {said}."


def _of_torch(path: Path) -> Iterator[tuple[str, Found]]:
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} holds a {type(content).__name__}, where a state dict is wanted.")
    for name, tensor in _flat(content):
        memory = (tensor.untyped_storage().data_ptr(), tensor.storage_offset())

        def read(part: tuple[slice, ...], tensor: Tensor = tensor) -> Tensor:
            return tensor[part] if part else tensor

        yield _plain(name), Found(name, tuple(tensor.shape), tensor.dtype, read, memory)


def _flat(
    content: Mapping[Any, Any], prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, Tensor]]:
    for key, value in content.items():
        if isinstance(value, Mapping) and depth < _DEEPEST:
            yield from _flat(value, f"{prefix}{key}.", depth + 1)
        elif type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided:
            yield f"{prefix}{key}", value.detach()


def _of_dcp(path: Path) -> Iterator[tuple[str, Found]]:
    index = CheckpointReader(path).read_metadata()
    _require_files(path, index)
    for name, entry in index.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            yield _plain(name), Found(name, tuple(entry.size), entry.properties.dtype)


def _require_files(path: Path, index: Metadata) -> None:
    """Raise ConfigError for a file of tensors that is missing or shorter than the index has it."""
    ends: dict[str, int] = {}
    for part in (index.storage_data or {}).values():
        file = part.relative_path
        ends[file] = max(ends.get(file, 0), part.offset + part.length)
    for file, end in ends.items():
        if not (path / file).is_file():
            raise ConfigError(f"{path}: {file} is missing, and {METADATA} has tensors in it.")
        if (size := (path / file).stat().st_size) < end:
            raise ConfigError(f"{path}: {file} has been cut short: {size:,} bytes of {end:,}.")


def _plain(name: str) -> str:
    return plain_name(name).replace("_orig_mod.", "")


def match(path: Path, found: Mapping[str, Found], needed: Sequence[Needed]) -> Match:
    """Which tensor in the file is which of the model's, under the one prefix that fits.

    What has another prefix (a metric, the optimizer) is left out. Raises ConfigError when no
    prefix fits, or several do.
    """
    tries = {prefix: _differences(prefix, found, needed) for prefix in _prefixes(found, needed)}
    fitting = [prefix for prefix, differences in tries.items() if not differences]
    if len(fitting) > 1:
        raise ConfigError(
            f"{path} has this model's weights more than once, under "
            f"{first_of(fitting, _MOST_TOLD)}: save the ones you mean in a file of their own."
        )
    if not fitting:
        raise ConfigError(_of_another_model(path, found, needed, tries))
    (prefix,) = fitting
    names = {
        name: prefix + next(n for n in each.names if prefix + n in found)
        for each in needed
        for name in each.names
    }
    used = {found[name].memory for name in names.values()} - {None}
    taken = {*names.values()}
    left_out = [
        name for name, each in found.items() if name not in taken and each.memory not in used
    ]
    return Match(names, left_out)


def _prefixes(found: Mapping[str, Found], needed: Sequence[Needed]) -> list[str]:
    """What stands before a name of the model in names of the file, for the longest of them."""
    longest = max((name for each in needed for name in each.names), key=len, default="")
    ends = [name for each in needed if longest in each.names for name in each.names]
    prefixes = {
        name.removesuffix(end)
        for name in found
        for end in ends
        if name == end or name.endswith(f".{end}")
    }
    return sorted(prefixes, key=lambda prefix: (len(prefix), prefix))


def _differences(prefix: str, found: Mapping[str, Found], needed: Sequence[Needed]) -> list[str]:
    known = {prefix + name for each in needed for name in each.names}
    used = {found[name].memory for name in known & found.keys()} - {None}
    wrong = []
    for each in needed:
        here = _shown(each.shape, each.dtype)
        theirs = [found[prefix + name] for name in each.names if prefix + name in found]
        if not theirs:
            wrong.append(f"{each.names[0]} is missing there and {here} here")
        wrong += [
            f"{each.names[0]} is {_shown(other.shape, other.dtype)} there and {here} here"
            for other in theirs
            if other.shape != each.shape or not converts(other.dtype, each.dtype)
        ]
    wrong += [
        f"{name} is {_shown(other.shape, other.dtype)} there and missing here"
        for name, other in found.items()
        if name.startswith(prefix) and name not in known and other.memory not in used
    ]
    return wrong


def _of_another_model(
    path: Path,
    found: Mapping[str, Found],
    needed: Sequence[Needed],
    tries: Mapping[str, Sequence[str]],
) -> str:
    if not found:
        return f"{path} holds no tensors, where the weights of this model were expected."
    if not tries:
        here = first_of((each.names[0] for each in needed), _MOST_TOLD)
        there = first_of(found, _MOST_TOLD)
        return f"{path} is of another model: it has {there}; this model has {here}."
    remedy = ""
    if (path / "config.json").is_file():
        remedy = " A T5 in Hugging Face's format is read by training.model.pretrained."
    closest = min(tries.values(), key=len)
    return f"{path} is of another model: {first_of(closest, _MOST_TOLD, '; ')}.{remedy}"


def _shown(shape: tuple[int, ...], dtype: torch.dtype | None) -> str:
    kind = "of a type that is not read" if dtype is None else str(dtype).removeprefix("torch.")
    return f"{list(shape)} {kind}"


def _read(start: StartingPoint, names: Mapping[str, str], state: Mapping[str, Tensor]) -> None:
    """Copy what is at `start` into `state`; a collective for torch.distributed.checkpoint."""
    found = tensors_at(start)
    if start.kind == "dcp":
        _read_dcp(start.path, {own: found[theirs].name for own, theirs in names.items()}, state)
        return
    for own, theirs in names.items():
        read = found[theirs].read
        assert read is not None
        copy_part(read, state[own], partial(_not_finite, start.path, theirs))


def _read_dcp(path: Path, names: Mapping[str, str], state: Mapping[str, Tensor]) -> None:
    from torch.distributed.checkpoint import state_dict_loader

    targets: dict[str, Tensor] = {}
    for own, theirs in names.items():
        targets.setdefault(theirs, state[own])
    try:
        state_dict_loader.load(
            targets, storage_reader=CheckpointReader(path), planner=LoadPlanner()
        )
    except CheckpointException as error:
        raise ConfigError(_unreadable(StartingPoint("dcp", path), error)) from None
    for own, theirs in names.items():
        here, read = local_part(state[own]), local_part(targets[theirs])
        if read.is_floating_point() and not torch.isfinite(read).all():
            raise ConfigError(_not_finite(path, theirs))
        here.copy_(read)  # a second name of the same weight


def _not_finite(path: Path, name: str) -> str:
    return f"{path}: {name} holds numbers that are not finite."
