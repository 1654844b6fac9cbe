"""Weights in files: a Hugging Face directory of `config.json` and safetensors, read and written.

One whole parameter is in memory at a time, so that no rank ever holds the model; on export, the
first rank's host holds the tensors of one file. Everything that can be wrong with a file is found
in the headers, before a GPU has done any work: `check`, then `fill_from` for
`fsdpkit.training.sharding.shard`.

Names are those of model.py, which are Hugging Face's. Values are float32 in memory and in files
written here; bfloat16 and float16 files are read too.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from model import EOS, PAD, T5, T5Config
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Generator, Tensor, nn
from torch.distributed.tensor import DTensor

from fsdpkit.config.training.presets import read_config_json
from fsdpkit.errors import ConfigError, NotFoundError, StorageError
from fsdpkit.training.distributed import Ranks

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARED, HEAD = "shared.weight", "lm_head.weight"
ALIASES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")  # of SHARED
# In files of 2020: transformers made this table and never read it.
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
DTYPES = ("F32", "BF16", "F16")


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, as the file's header has it."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str

    def read(self) -> Tensor:
        with safe_open(self.file, framework="pt") as file:
            value: Tensor = file.get_tensor(self.name)
        return value


def check(directory: Path, config: T5Config) -> T5Config:
    """`config` with the head tied or not as the files in `directory` have it.

    Compares every tensor's name, shape and type with what `config` needs; reads headers only (and
    the head, when the file also has one for a tied model). Raises NotFoundError when there are no
    safetensors, ConfigError naming file and tensor for a broken file, a tensor that is missing, not
    expected, of another shape, or of a type other than float32, bfloat16 and float16.
    """
    return _table(directory, config)[1]


def fill_from(directory: Path, config: T5Config) -> Callable[[str, Tensor, Generator], None]:
    """A `fill` for `shard`: copies one whole parameter out of the files in `directory`.

    `config` is what `check` returned and the model was built from. Raises what `check` raises, and
    from the `fill` itself ConfigError for a tensor that holds NaN or infinity.
    """
    table, found = _table(directory, config)
    if found.tie_word_embeddings != config.tie_word_embeddings:
        raise ConfigError(
            f"{directory}: {HEAD} does not fit tie_word_embeddings = "
            f"{str(config.tie_word_embeddings).lower()}; build the model from what check() returns."
        )

    def fill(name: str, tensor: Tensor, generator: Generator) -> None:
        stored = table[name]
        value = stored.read()
        if not torch.isfinite(value).all():
            raise ConfigError(f"{stored.file}: {stored.name} holds numbers that are not finite.")
        tensor.copy_(value)

    return fill


def load(
    directory: Path,
    *,
    attention: str = "sdpa",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> T5:
    """The whole model in one process, in evaluation mode. Raises what `check` raises."""
    config = check(directory, T5Config(**read_config_json(directory / "config.json")))
    with torch.device("meta"):
        model = T5(config, attention).to(dtype).eval()
    model.to_empty(device=device)
    fill = fill_from(directory, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            fill(name, parameter, torch.default_generator)
    return model


def export(
    directory: Path,
    model: nn.Module,
    config: T5Config,
    ranks: Ranks | None = None,
    *,
    eos_id: int = EOS,
    max_file_bytes: int = 5 * 10**9,
) -> None:
    """Write `model`, sharded by either engine or whole, to `directory` for `transformers`.

    A collective: with `ranks`, call it on every rank; the first one writes, next to `directory`
    first, which is replaced when all is there. transformers 4 and 5 load the result. Raises
    StorageError on all ranks when it cannot be written, or when `directory` is no earlier export.
    """
    first = ranks is None or ranks.is_first
    directory = directory.absolute()
    building = directory.with_name(f".{directory.name}.partial")
    gather = _gatherer(model)
    names = [*_shapes(config)]
    if config.tie_word_embeddings and not config.scales_decoder_outputs:
        names.append(HEAD)  # transformers 4 scales what is tied: give it an equal, untied head
    plan = _files(names, config, max_file_bytes)
    table = hugging_face_config(config, eos_id)
    failure = _attempt(partial(_begin, directory, building)) if first else ""
    for file, members in plan.items():
        tensors = {}
        for name in members:  # after a failure too: the other ranks are in the same collective
            whole = gather(SHARED if name == HEAD and config.tie_word_embeddings else name)
            if first and not failure:
                # A copy: safetensors refuses tensors that share memory.
                tensors[name] = whole.detach().to("cpu", torch.float32, copy=True).contiguous()
        if first and not failure:
            failure = _attempt(partial(_save, building / file, tensors))
    if first and not failure:
        failure = _attempt(partial(_finish, directory, building, table, plan))
    if ranks is not None:
        told = [failure]
        torch.distributed.broadcast_object_list(told)
        failure = told[0]
    if failure:
        raise StorageError(f"The model could not be exported to {directory}: {failure}.")


def hugging_face_config(config: T5Config, eos_id: int = EOS) -> dict[str, Any]:
    """What `config.json` says of `config`, in words that transformers 4 and 5 understand alike.

    transformers 4 both ties and scales by tie_word_embeddings. transformers 5 scales by
    scale_decoder_outputs and ties a head that the file lacks or has with equal values.
    """
    dimensions = asdict(config)
    del dimensions["head_init_std"]  # of no use once there are weights
    scaled = config.scales_decoder_outputs
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        **dimensions,
        "tie_word_embeddings": config.tie_word_embeddings and scaled,
        "scale_decoder_outputs": scaled,
        "is_encoder_decoder": True,
        "use_cache": True,
        "torch_dtype": "float32",
        "decoder_start_token_id": PAD,
        "pad_token_id": PAD,
        "eos_token_id": eos_id,
    }


def _shapes(config: T5Config) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(p.shape) for name, p in T5(config).named_parameters()}


def _table(directory: Path, config: T5Config) -> tuple[dict[str, Stored], T5Config]:
    """Where each parameter of the model is, and the config with the head's tie as found."""
    stored = {name: entry for name, entry in _headers(directory) if name != UNUSED}
    aliases = [stored.pop(name) for name in ALIASES if name in stored]
    if aliases:
        shared = stored.setdefault(SHARED, aliases[0])
        for alias in aliases:
            if not _same(shared, alias):
                raise ConfigError(f"{alias.file}: {alias.name} differs from {shared.name}.")
    tied = config.tie_word_embeddings
    if HEAD in stored and SHARED in stored:
        tied = _same(stored[SHARED], stored[HEAD])
    found = replace(
        config, tie_word_embeddings=tied, scale_decoder_outputs=config.scales_decoder_outputs
    )
    if tied:
        stored.pop(HEAD, None)
    wrong = list(_mismatches(directory, stored, _shapes(found)))
    if wrong:
        more = f"\n(and {len(wrong) - 5} more)" if len(wrong) > 5 else ""
        raise ConfigError("\n".join(wrong[:5]) + more)
    return stored, found


def _mismatches(
    directory: Path, stored: dict[str, Stored], expected: dict[str, tuple[int, ...]]
) -> Iterator[str]:
    for name, shape in expected.items():
        if name not in stored:
            yield f"{directory}: {name} is missing from the safetensors; {_of(name, shape)}."
        elif stored[name].shape != shape:
            found = stored[name]
            yield (
                f"{found.file}: {found.name} has the shape {list(found.shape)}, but "
                f"{_of(name, shape)}."
            )
    for name, found in stored.items():
        if name not in expected:
            yield f"{found.file}: {name} belongs to no T5 of the dimensions given."
        elif found.dtype not in DTYPES:
            yield (
                f"{found.file}: {name} is of type {found.dtype}; only {', '.join(DTYPES)} can be "
                "read."
            )


def _of(name: str, shape: tuple[int, ...]) -> str:
    if name == HEAD:
        return f"tie_word_embeddings = false asks for it, with the shape {list(shape)}"
    return f"the dimensions given make it {list(shape)}"


def _headers(directory: Path) -> Iterator[tuple[str, Stored]]:
    """Every tensor in the single file, or in the files that the index names."""
    if (directory / SINGLE).is_file():
        files: dict[Path, list[str]] = {directory / SINGLE: []}
    elif (directory / INDEX).is_file():
        files = _index(directory / INDEX)
    else:
        hint = ""
        if (directory / "pytorch_model.bin").is_file():
            hint = " Save it again with transformers: pytorch_model.bin is not read."
        raise NotFoundError(f"{directory}: holds neither {SINGLE} nor {INDEX}.{hint}")
    for path, promised in files.items():
        try:
            with safe_open(path, framework="pt") as file:
                found = {
                    name: Stored(path, name, tuple(tensor.get_shape()), tensor.get_dtype())
                    for name in file.keys()  # noqa: SIM118
                    for tensor in [file.get_slice(name)]
                }
        except FileNotFoundError:
            raise NotFoundError(f"{path}: no such file, but {INDEX} names it.") from None
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{path}: cannot be read as safetensors: {error}.") from None
        if absent := [name for name in promised if name not in found]:
            raise ConfigError(f"{path}: {absent[0]} is missing, but {INDEX} has it there.")
        yield from found.items()


def _index(path: Path) -> dict[Path, list[str]]:
    """File → names of its tensors, as the index has it."""
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["weight_map"].items()
        files: dict[Path, list[str]] = {}
        for name, file in names:
            if Path(file).name != file:
                raise ValueError(f"{file!r} is not the name of a file beside it")
            files.setdefault(path.parent / file, []).append(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: cannot be read as an index: {error!r}.") from None
    return files


def _same(one: Stored, other: Stored) -> bool:
    """Whether two tensors hold the same values; stops at the first rows that differ."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    with safe_open(one.file, "pt") as first, safe_open(other.file, "pt") as second:
        a, b = first.get_slice(one.name), second.get_slice(other.name)
        rows = range(0, one.shape[0], 1024)
        return all(torch.equal(a[r : r + 1024], b[r : r + 1024]) for r in rows)


def _gatherer(model: nn.Module) -> Callable[[str], Tensor]:
    """A function from a parameter's plain name to the whole parameter; a collective."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    # Sharded, as either engine holds it: FSDP1's own gathering into full state dicts would put the
    # whole model on one host, and has crashed before the first forward pass.
    state = get_model_state_dict(model)

    def gather(name: str) -> Tensor:
        held: Any = state[name]
        whole: Tensor = held.full_tensor() if isinstance(held, DTensor) else held
        return whole

    return gather


def _files(names: list[str], config: T5Config, max_bytes: int) -> dict[str, list[str]]:
    """File name → its tensors, none larger than `max_bytes` unless a single tensor is."""
    shapes = _shapes(replace(config, tie_word_embeddings=False))
    parts: list[list[str]] = [[]]
    used = 0
    for name in names:
        size = 4 * torch.Size(shapes[name]).numel()
        if parts[-1] and used + size > max_bytes:
            parts.append([])
            used = 0
        parts[-1].append(name)
        used += size
    if len(parts) == 1:
        return {SINGLE: parts[0]}
    return {
        f"model-{i:05d}-of-{len(parts):05d}.safetensors": part for i, part in enumerate(parts, 1)
    }


def _attempt(action: Callable[[], None]) -> str:
    """What went wrong, or nothing."""
    try:
        action()
    except (OSError, SafetensorError, StorageError) as error:
        return str(error).rstrip(".")
    return ""


def _begin(directory: Path, building: Path) -> None:
    if directory.exists() and not (directory / "config.json").is_file():
        raise StorageError("it exists and is no earlier export; name another place")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, path, metadata={"format": "pt"})  # transformers refuses files without it
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)  # safetensors makes files that nobody else can read


def _finish(
    directory: Path, building: Path, table: dict[str, Any], plan: dict[str, list[str]]
) -> None:
    def write(name: str, content: dict[str, Any]) -> None:
        (building / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    write("config.json", table)
    ids = ("decoder_start_token_id", "pad_token_id", "eos_token_id")
    write("generation_config.json", {key: table[key] for key in ids})
    if len(plan) > 1:
        size = sum((building / file).stat().st_size for file in plan)
        where = {name: file for file, names in plan.items() for name in names}
        write(INDEX, {"metadata": {"total_size": size}, "weight_map": where})
    old = directory.with_name(f".{directory.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        os.rename(directory, old)
    os.rename(building, directory)
    shutil.rmtree(old, ignore_errors=True)
