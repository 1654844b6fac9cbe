"""How a checkpoint's tensors reach its files and come back: synced, summed, and without code.

`torch.distributed.checkpoint` lays tensors out; this page adds what it leaves to its user. Writing
hashes each file as it is written. Reading runs nothing that a file brings along: both the index
(`.metadata`) and the small values are pickles, and here they may only build the few classes that a
checkpoint is made of.
"""

from __future__ import annotations

import enum
import hashlib
import io
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import (
    FileSystem,
    FileSystemReader,
    FileSystemWriter,
)
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from fsdpkit.errors import StorageError
from fsdpkit.runs.checkpoint_writing import Written
from fsdpkit.runs.checkpoints import METADATA

_HARMLESS = {
    *(f"torch.distributed.checkpoint.metadata.{name}" for name in metadata.__all__),
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.serialization._get_layout",
    "torch.Size",
    *(f"torch.{name}" for name, value in vars(torch).items() if isinstance(value, torch.dtype)),
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",  # its home in Python 3.13
}
"""What may be built from `.metadata`."""


class Writer(FileSystemWriter):
    """Writes this rank's part into `directory`, each file synced; `written` then lists them.

    For tensors that are in host memory already.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, sync_files=True, per_thread_copy_ahead=0, overwrite=False)
        self.written: dict[str, Written] = {}
        self.fs = _Summing(self.written)


class _Summing(FileSystem):
    """The file system, taking down size and SHA-256 of whatever is written."""

    def __init__(self, written: dict[str, Written]) -> None:
        self._written = written

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        with open(path, "wb") as file:
            summed = _Summed(file)
            try:
                yield summed
            except Exception:
                if summed.failure:  # torch's zip writer puts a riddle in its place
                    raise summed.failure from None
                raise
            size = file.tell()
        self._written[Path(path).name] = Written(size, summed.digest.hexdigest())

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self._written[Path(new_path).name] = self._written.pop(Path(path).name)


class _Summed(io.RawIOBase):
    """A file that is only ever written from front to back, and its SHA-256 so far."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file, self.digest = file, hashlib.sha256()
        self.failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.failure = error
            raise

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def fileno(self) -> int:
        self._file.flush()  # asked for in order to sync
        return self._file.fileno()


class Reader(FileSystemReader):
    """Reads the checkpoint `directory`; its index is unpickled into harmless classes only."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        file = Path(self.path) / METADATA
        with file.open("rb") as stream:
            index = _HarmlessUnpickler(stream, file).load()
        if not isinstance(index, Metadata):
            raise StorageError(f"{file} is not the index of a checkpoint.")
        index.storage_meta = index.storage_meta or StorageMeta()
        index.storage_meta.load_id = self.load_id
        return index


class _HarmlessUnpickler(pickle.Unpickler):
    def __init__(self, stream: io.BufferedReader, file: Path) -> None:
        super().__init__(stream)
        self._file = file

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" in _HARMLESS:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return self._enum_member
        raise StorageError(f"{self._file} asks for {module}.{name}, which no checkpoint needs.")

    def _enum_member(self, kind: Any, name: Any) -> Any:
        """For Pythons that pickle a member of an enumeration as an attribute (3.11.0 to 3.11.3)."""
        if isinstance(kind, enum.EnumMeta) and isinstance(name, str) and name in kind.__members__:
            return kind[name]
        raise StorageError(f"{self._file} asks for {name} of {kind}, which no checkpoint needs.")


class LoadPlanner(DefaultLoadPlanner):
    """The usual plan, but small values are read as plain numbers, texts and lists, not as code."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        plain = io.BytesIO()
        torch.save(torch.load(value, weights_only=True), plain)  # raises for anything else
        plain.seek(0)
        super().load_bytes(read_item, plain)


def tensors_in(index: Metadata, section: str) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and type of each tensor whose name begins with `section` and a dot, without them."""
    prefix = f"{section}."
    return {
        name.removeprefix(prefix): (entry.size, entry.properties.dtype)
        for name, entry in index.state_dict_metadata.items()
        if name.startswith(prefix) and isinstance(entry, TensorStorageMetadata)
    }
