"""From a checkpoint back into a sharded model: which one to believe, whether it fits, loading it.

Functions that take ranks are collectives.
"""

from __future__ import annotations

import io
import json
import platform
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

import fsdpkit
from fsdpkit.errors import ConfigError, DamagedError, FsdpkitError, StorageError
from fsdpkit.listing import first_of
from fsdpkit.runs import checkpoints as files
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.runs.starting_points import starting_point
from fsdpkit.script import random_states
from fsdpkit.training.checkpoint_files import CheckpointReader, LoadPlanner, tensors_in
from fsdpkit.training.distributed import Ranks, error_text, gather, on_any, on_first, together
from fsdpkit.training.units import plain_name


def newest_whole(found: Sequence[Path], ranks: Ranks | None) -> tuple[Path, list[Path]]:
    """The last of `found` that is as it was written, and those after it, which are not.

    Every byte is read, with `ranks` by each a share of the files; what is refused is said, with the
    file that is wrong. Raises StorageError when none is whole, or one cannot be read just now.
    """
    refused: list[Path] = []
    problems: list[str] = []
    for path in reversed(found):
        wrong = _problems_of(path, ranks)
        if not wrong:
            return path, refused
        (ranks.say if ranks else print)(f"checkpoint {path.name} is refused: {'; '.join(wrong)}.")
        refused.append(path)
        problems += wrong
    raise StorageError("No checkpoint is whole:\n" + "\n".join(problems))


def settings_before(paths: TaskPaths, start: str | None, ranks: Ranks) -> dict[str, Any]:
    """The settings of the run that training goes on from, its own or the one at `start`.

    Empty for a first start, and where its checkpoint does not say; reading it tells what is wrong.
    A collective.
    """

    def look() -> dict[str, Any]:
        found = files.checkpoints_in(paths.checkpoints)
        with suppress(FsdpkitError):
            if not found and start is not None:
                found = starting_point(Path(start)).checkpoints
        for path in reversed(found):
            with suppress(FsdpkitError):
                return files.describe(path).settings
        return {}

    return on_first(ranks, look)


def _problems_of(path: Path, ranks: Ranks | None) -> list[str]:
    if ranks is None:
        return files.problems_of(path)
    try:
        sums = on_first(ranks, lambda: files.checksums(path))
    except DamagedError as error:
        return [str(error).rstrip(".")]
    mine = sorted(sums)[ranks.rank :: ranks.world_size]
    looked = together(lambda: [files.problem_with(path, name, sums[name]) for name in mine])
    found = [problem for problem in looked if problem]
    return [problem for each in gather(found) for problem in each] if on_any(bool(found)) else []


def sharded_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks, *, fresh: bool = False
) -> dict[str, Any]:
    """What a checkpoint has, as this rank holds it; tensors are not copied.

    An optimizer that has not taken a step has no state, unless `fresh` asks for room to load some.
    """
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict,
        get_optimizer_state_dict,
    )

    return {
        "model": get_model_state_dict(model),
        # Asked for the state of an optimizer that has none, torch takes a step to make some.
        "optimizer": get_optimizer_state_dict(model, optimizer) if optimizer.state or fresh else {},
        "random": {str(ranks.rank): _random_state()},
    }


def state_to_save(
    model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks
) -> dict[str, Any]:
    """What this rank adds to a checkpoint: its `sharded_state`, and on the first rank the buffers.

    Every rank has buffers of its own, such as BatchNorm's statistics: of tensors that several ranks
    bring whole, torch takes each from any of them. They are copied, as the next forward pass may
    change them.
    """
    state = sharded_state(model, optimizer, ranks)
    weights = state["model"]
    for full_name, _ in model.named_buffers(remove_duplicate=False):
        name = plain_name(full_name)
        if name in weights and ranks.is_first:
            weights[name] = weights[name].clone()
        else:
            weights.pop(name, None)
    return state


def load(
    path: Path,
    description: files.Description,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
) -> None:
    """Load weights, optimizer and, on as many ranks as saved it, each rank's random generators.

    `path` is what `newest_whole` found, `description` its own. Raises ConfigError, naming what
    differs, when it is of another model or optimizer, StorageError when it cannot be read.
    """
    from torch.distributed.checkpoint.state_dict import (
        set_model_state_dict,
        set_optimizer_state_dict,
    )

    index = _index_for_all(path, ranks)
    has_steps = any(name.startswith("optimizer.") for name in index.state_dict_metadata)
    state = sharded_state(model, optimizer, ranks, fresh=has_steps)
    _require_fit(path, description, index, state, type(optimizer).__name__)
    state["random"] = _room_for_random_state(description, index, ranks)

    together(lambda: _read(path, state, index))
    set_model_state_dict(model, state["model"])
    if has_steps:
        set_optimizer_state_dict(model, optimizer, state["optimizer"])
    for each in state["random"].values():
        _set_random_state(each)
    for name, here in versions().items():
        if (there := description.versions.get(name)) != here:
            ranks.say(
                f"note: the checkpoint was written with {name} {there}, this is {here}; rounding "
                "and random numbers may differ from here on"
            )


def other_order(
    path: Path,
    there: Mapping[str, Any],
    here: Mapping[str, Any],
    may_differ: Collection[str],
    ranks: Ranks,
) -> bool:
    """Whether the epoch must begin anew, because its samples come in another order than in `path`.

    `there` and `here` are `DataOrder`s as dictionaries; an older checkpoint has none. Another
    global batch is said: each sample still comes once an epoch. Raises ConfigError for other data
    or another seed, unless `may_differ` names them.
    """
    if not there:
        return False
    differs = {
        "data": any(there.get(key) != here[key] for key in ("fingerprint", "samples")),
        "seed": there.get("seed") != here["seed"],
    }
    texts = {
        "data": f"on other data ({_data(there)} there, {_data(here)} here)",
        "seed": f"with training.seed = {there.get('seed')}, which is {here['seed']} here",
    }
    changed = [name for name, differently in differs.items() if differently]
    for name in changed:
        if name not in may_differ:
            raise ConfigError(
                f"{path} was trained {texts[name]}: its place in the epoch would be another. Set "
                "it back, or, to begin the epoch anew, set training.checkpoint.may_differ = "
                f"{json.dumps(changed)}."
            )
        ranks.say(f"note: the checkpoint was trained {texts[name]}; the epoch begins anew")
    if (batch := there.get("global_batch")) != here["global_batch"]:
        share, rest = divmod(batch, ranks.world_size) if isinstance(batch, int) else (0, 1)
        remedy = "" if rest else f"; training.batch_size = {share} would keep it"
        ranks.say(
            f"note: a step now takes {here['global_batch']} samples, {batch} before the "
            f"checkpoint{remedy}"
        )
    return bool(changed)


def _data(order: Mapping[str, Any]) -> str:
    return f"{order.get('samples'):,} samples, {order.get('fingerprint') or 'no fingerprint'}"


def weights_in(path: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and type of each weight of the checkpoint `path`; needs no process group.

    Raises StorageError when its index cannot be read.
    """
    return tensors_in(_index_of(path), "model")


def _index_of(path: Path) -> Metadata:
    try:
        return CheckpointReader(path).read_metadata()
    except StorageError:
        raise
    except Exception as error:  # whatever a damaged file makes of its reader
        raise StorageError(f"{path}: its index cannot be read: {error}.") from None


def read_weights(path: Path, names: Sequence[str]) -> dict[str, Tensor]:
    """The weights `names` of the checkpoint `path`, whole, on the CPU; needs no process group.

    Raises StorageError when they cannot be read.
    """
    stored = weights_in(path)
    weights = {name: torch.empty(stored[name][0], dtype=stored[name][1]) for name in names}
    read_into(path, weights)
    return weights


def read_optimizer(path: Path) -> dict[str, Any]:
    """The optimizer's state in the checkpoint `path`, whole, on the CPU, by parameters' names, as
    torch's `set_optimizer_state_dict` takes it; empty if no step was taken. Needs no process group.

    Raises StorageError when it cannot be read.
    """
    index = _index_of(path)
    flat: dict[str, Any] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        if isinstance(entry, TensorStorageMetadata)
        else None
        for name, entry in index.state_dict_metadata.items()
        if name.startswith("optimizer.")
    }
    _load_alone(path, flat)
    paths = {name: index.planner_data[name][1:] for name in flat}
    return _nested({paths[name]: value for name, value in flat.items()}) if flat else {}


def _nested(flat: Mapping[tuple[str | int, ...], Any]) -> Any:
    """Dictionaries and lists in one another, from their leaves by path."""
    if () in flat:
        return flat[()]
    parts: dict[str | int, dict[tuple[str | int, ...], Any]] = {}
    for (first, *rest), value in flat.items():
        parts.setdefault(first, {})[tuple(rest)] = value
    inner = {key: _nested(part) for key, part in parts.items()}
    if all(isinstance(key, int) for key in inner):
        return [inner[key] for key in sorted(inner)]
    return inner


def read_into(path: Path, weights: Mapping[str, Tensor], ranks: Ranks | None = None) -> None:
    """Copy what the checkpoint `path` has into `weights`, by name.

    With `ranks`, a collective, weights may be DTensors: each rank reads its part. Raises
    StorageError when they cannot be read.
    """
    if ranks:
        index = _index_for_all(path, ranks)
        together(lambda: _read(path, {"model": dict(weights)}, index))
    else:
        _load_alone(path, {"model": dict(weights)})


def _load_alone(path: Path, state: dict[str, Any]) -> None:
    try:
        _read(path, state)
    except (OSError, RuntimeError, CheckpointException) as error:
        raise StorageError(f"{path} cannot be read: {error_text(error)}.") from None


def _read(path: Path, state: dict[str, Any], index: Metadata | None = None) -> None:
    """Each rank for itself: with `index` at hand it needs no other's plan to find its part."""
    from torch.distributed.checkpoint import state_dict_loader

    reader = CheckpointReader(path, index)
    with warnings.catch_warnings():  # that there is no process group
        warnings.simplefilter("ignore")
        state_dict_loader.load(state, storage_reader=reader, planner=LoadPlanner(), no_dist=True)


def _index_for_all(path: Path, ranks: Ranks) -> Metadata:
    """Read once, by the first rank. Raises StorageError."""
    return on_first(ranks, lambda: _index_of(path))


def versions() -> dict[str, str]:
    """Of what decides about rounding and random numbers."""
    return {
        "fsdpkit": fsdpkit.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def _require_fit(
    path: Path,
    description: files.Description,
    index: Metadata,
    state: Mapping[str, Any],
    optimizer: str,
) -> None:
    theirs = {name: shape for name, (shape, _) in tensors_in(index, "model").items()}
    ours = {name: tensor.shape for name, tensor in state["model"].items()}
    wrong = [
        f"{name} is {_shape(theirs.get(name))} there and {_shape(ours.get(name))} here"
        for name in sorted({*theirs, *ours})
        if theirs.get(name) != ours.get(name)
    ]
    remedy = "Start another run, or move the checkpoint away."
    weights_alone = "To begin from its weights alone: fsdpkit checkpoint export."
    if wrong:
        raise ConfigError(f"{path} is of another model: {first_of(wrong, 3, '; ')}. {remedy}")
    if description.optimizer != optimizer:
        raise ConfigError(
            f"{path} is of another optimizer: {description.optimizer} there, {optimizer} here. "
            f"{remedy} {weights_alone}"
        )
    without = [
        parameter
        for parameter, kept in state["optimizer"].get("state", {}).items()
        if any(f"optimizer.state.{parameter}.{n}" not in index.state_dict_metadata for n in kept)
    ]
    if without:
        raise ConfigError(
            f"{path} has no optimizer state for {', '.join(without[:3])}, which must have been "
            f"frozen or without a gradient then. {weights_alone}"
        )


def _shape(shape: torch.Size | None) -> str:
    return "missing" if shape is None else str(list(shape))


def _room_for_random_state(
    description: files.Description, index: Metadata, ranks: Ranks
) -> dict[str, Tensor]:
    """Where this rank's generators are read to; none on another number of ranks."""
    mine = str(ranks.rank)
    stored = tensors_in(index, "random")
    if description.world_size != ranks.world_size or mine not in stored:
        return {}
    size, dtype = stored[mine]
    return {mine: torch.empty(size, dtype=dtype)}


def _random_state() -> Tensor:
    """State of Python's, numpy's, torch's and, on a GPU, the device's generator; uint8 [n]."""
    written = io.BytesIO()
    torch.save(random_states.random_state(), written)
    return torch.frombuffer(written.getbuffer(), dtype=torch.uint8)


def _set_random_state(state: Tensor) -> None:
    """Go on drawing where `random_state` was called; a device of another kind keeps its own."""
    found = torch.load(io.BytesIO(state.numpy().tobytes()), weights_only=True)
    random_states.set_random_state(found)
