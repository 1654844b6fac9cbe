"""From a checkpoint to files for other programs: Hugging Face's directory, or one torch file.

Reads shards without a process group, so that a login node can do it, and holds the tensors of one
file at a time. Written beside the place it is for, and renamed when all is there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fsdpkit
from fsdpkit.bounded import MODEL_BYTES, parsed, read_bytes
from fsdpkit.errors import StorageError, UsageError
from fsdpkit.runs.checkpoints import describe
from fsdpkit.training.checkpoint_loading import read_optimizer, read_weights, weights_in
from fsdpkit.training.export_layout import LAYOUT, WeightPart, read_layout, whole_weights, written

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_FILE_BYTES = 5 * 10**9
MARK = "fsdpkit-export.json"
"""In each export: what tells it from a model that somebody downloaded."""
TOKENIZER_FILES = (
    *("tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "added_tokens.json"),
    *("spiece.model", "sentencepiece.model", "sentencepiece.bpe.model", "tokenizer.model"),
    *("vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json"),
)
"""What tokenizers are saved as."""
DTYPE_KEYS = ("torch_dtype", "dtype")
"""Of config.json, in transformers 4 and 5."""
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")

Read = Callable[[Sequence[str]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class HuggingFace:
    """What a directory for Hugging Face has besides the weights.

    Attributes:
        files: Content of JSON files such as `config.json`, by name.
        copies: Names of tensors that repeat a parameter, with that parameter's name.
        as_they_are: Content of other files, such as a tokenizer's, by name.
        layout: Of which parts of parameters each tensor consists, if they are not the model's own.
    """

    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    as_they_are: Mapping[str, bytes] = field(default_factory=dict)
    layout: Mapping[str, WeightPart] = field(default_factory=dict)

    def texts(self) -> dict[str, str | bytes]:
        """Content of all files, and of the layout that a checkpoint has beside them.

        Returns:
            By file name.
        """
        tables = {name: json.dumps(table, indent=2) + "\n" for name, table in self.files.items()}
        layout = {LAYOUT: written(self.layout)} if self.layout else {}
        return {**tables, **layout, **self.as_they_are}

    def names(self) -> dict[str, Any]:
        """What a checkpoint's description says of the files.

        Returns:
            JSON: the names, without content.
        """
        return {
            "files": [*self.files],
            "copies": dict(self.copies),
            "as_they_are": [*self.as_they_are],
            "layout": bool(self.layout),
        }


def export_hugging_face(
    checkpoint: Path,
    directory: Path,
    *,
    dtype: torch.dtype | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write a checkpoint's weights as safetensors, with what the trainer put beside them.

    Needs no process group, and holds the tensors of one file at a time in memory. `directory` is
    replaced once all is there.

    Args:
        checkpoint: A `step-<s>` directory.
        directory: Where to; may hold an earlier export.
        dtype: Type of the floating-point weights; None: as in the checkpoint.
        max_file_bytes: Most bytes in one file, unless a single tensor has more.

    Raises:
        StorageError: The checkpoint cannot be read, or `directory` cannot be written or is
            something else than an earlier export.
    """
    described = describe(checkpoint)
    export = described.export
    stored = weights_in(checkpoint)
    own_types = {own for _, own in stored.values() if own.is_floating_point}
    as_type = dtype or (own_types.pop() if len(own_types) == 1 else None)
    texts: dict[str, str | bytes] = {
        name: _said(checkpoint / name, as_type)
        for name in export.get("files", [])
        if name in described.files  # and so in the checkpoint, nowhere else
    }
    for name in export.get("as_they_are", []):
        if name in described.files:
            texts[name] = _bytes_of(checkpoint / name)
    shapes = {name: shape for name, (shape, _) in stored.items()}
    parts = read_layout(checkpoint, shapes) if export.get("layout") else whole_weights(stored)
    sizes = {
        name: part.shape(shapes[part.of[0]]).numel() * _type(stored[part.of[0]][1], dtype).itemsize
        for name, part in parts.items()
    }

    def read(names: Sequence[str]) -> dict[str, Tensor]:
        weights = read_weights(checkpoint, sorted({parts[name].of[0] for name in names}))
        return {name: parts[name].cut(weights[parts[name].of[0]]) for name in names}

    write_hugging_face(
        directory,
        sizes,
        read,
        texts,
        export.get("copies", {}),
        dtype=dtype,
        max_file_bytes=max_file_bytes,
    )


def export_file(
    checkpoint: Path, file: Path, *, dtype: torch.dtype | None = None, with_optimizer: bool = False
) -> None:
    """Write all weights as one file, which `torch.load(file, weights_only=True)` reads.

    `dtype` None keeps their types. With the optimizer it is a dictionary of `model`, `optimizer`
    (whole, by parameters' names) and `step`. All of it is in memory meanwhile. Raises StorageError
    when `file` exists or cannot be written, or the checkpoint cannot be read; UsageError when that
    has no optimizer state.
    """
    if file.exists():
        raise StorageError(f"{file} exists; it was not overwritten.")
    weights = read_weights(checkpoint, [*weights_in(checkpoint)])
    weights = {name: each.to(_type(each.dtype, dtype)) for name, each in weights.items()}
    content: dict[str, Any] = dict(weights)
    if with_optimizer:
        if not (optimizer := read_optimizer(checkpoint)):
            raise UsageError(f"{checkpoint} has no optimizer state: no step had been taken.")
        step = describe(checkpoint).step
        content = {"model": weights, "optimizer": optimizer, "step": step}
    partial = file.with_name(f".{file.name}.partial")
    try:
        with partial.open("wb") as stream:
            torch.save(content, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(partial, file)
    except (OSError, RuntimeError) as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"{file} could not be written: {error}.") from None


def write_hugging_face(
    directory: Path,
    sizes: Mapping[str, int],
    read: Read,
    texts: Mapping[str, str | bytes],
    copies: Mapping[str, str],
    *,
    dtype: torch.dtype | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write the tensors that `read` gives for names of `sizes` (bytes), and the small `texts`.

    `directory` is replaced when all is there. Raises StorageError as `export_hugging_face` does.
    """
    from safetensors import SafetensorError

    directory = directory.absolute()
    building = directory.with_name(f".{directory.name}.partial")
    sizes = {**sizes, **{name: sizes[source] for name, source in copies.items()}}
    plan = _files(sizes, max_file_bytes)
    try:
        require_replaceable(directory, texts)
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        for file, names in plan.items():
            found = read([copies.get(name, name) for name in names])
            _save(building / file, {name: found[copies.get(name, name)] for name in names}, dtype)
        mark = {MARK: json.dumps({"written_by": f"fsdpkit {fsdpkit.__version__}"}) + "\n"}
        for name, text in {**texts, **mark, **_index(plan, sizes)}.items():
            (building / name).write_bytes(text.encode() if isinstance(text, str) else text)
        _finish(directory, building)
    except (OSError, SafetensorError, StorageError) as error:
        cause = str(error).rstrip(".")
        raise StorageError(f"The model could not be exported to {directory}: {cause}.") from None


def _files(sizes: Mapping[str, int], max_bytes: int) -> dict[str, list[str]]:
    """File name → its tensors, none larger than `max_bytes` unless a single tensor is."""
    parts: list[list[str]] = [[]]
    used = 0
    for name, size in sizes.items():
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


def _type(own: torch.dtype, asked: torch.dtype | None) -> torch.dtype:
    """Counters and masks stay what they are."""
    return asked if asked and own.is_floating_point else own


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise StorageError(f"{file} cannot be read: {error}.") from None


def _said(file: Path, dtype: torch.dtype | None) -> str:
    """The JSON in `file`, with the type that the weights are written in, if it names any.

    Raises StorageError when it cannot be read.
    """
    try:
        text = read_bytes(file, MODEL_BYTES, links=True).decode()
        table = parsed(text)
    except (OSError, ValueError) as error:
        raise StorageError(f"{file} cannot be read: {error}.") from None
    named = [key for key in DTYPE_KEYS if key in table]
    if dtype is None or not named:
        return text
    own = dict.fromkeys(named, str(dtype).removeprefix("torch."))
    return json.dumps({**table, **own}, indent=2) + "\n"


def _index(plan: Mapping[str, Sequence[str]], sizes: Mapping[str, int]) -> dict[str, str]:
    if len(plan) == 1:
        return {}
    where = {name: file for file, names in plan.items() for name in names}
    table = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": where}
    return {INDEX: json.dumps(table, indent=2) + "\n"}


def require_replaceable(directory: Path, texts: Collection[str]) -> None:
    """Raise StorageError when `directory` holds anything but an earlier export with `texts`."""
    if not directory.exists():
        return
    found = {path.name for path in directory.iterdir()}
    others = {
        name for name in found - {*texts, *TOKENIZER_FILES, MARK} if not _WEIGHTS.fullmatch(name)
    }
    if MARK not in found:  # a downloaded model may have the same files
        what = f"it has no {MARK}"
    elif others:
        what = f"{min(others)} in it is of something else"
    else:
        return
    raise StorageError(f"{directory} exists and is no earlier export, {what}; name another place.")


def _save(path: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> None:
    from safetensors.torch import save_file

    # Copies: safetensors refuses tensors that share memory.
    ready = {
        name: each.detach().to("cpu", _type(each.dtype, dtype), copy=True).contiguous()
        for name, each in tensors.items()
    }
    save_file(ready, path, metadata={"format": "pt"})  # without it transformers refuses
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)  # safetensors makes files that nobody else can read


def _finish(directory: Path, building: Path) -> None:
    old = directory.with_name(f".{directory.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        os.rename(directory, old)
    os.rename(building, directory)
    shutil.rmtree(old, ignore_errors=True)
