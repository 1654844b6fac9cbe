"""How a checkpoint's tensors reach its files and come back: synced, summed, and without code.

`torch.distributed.checkpoint` lays tensors out; this page adds what it leaves to its user. Writing
hashes the bytes while they are written, and has the disk begin before the last of them is there.
Reading runs nothing that a file brings along: both the index (`.metadata`) and the small values are
pickles, and here they may only build the few classes that a checkpoint is made of.
"""

from __future__ import annotations

import enum
import hashlib
import io
import os
import pickle
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from torch.utils.serialization import config as save_options

from fsdpkit.errors import StorageError
from fsdpkit.runs.checkpoint_writing import WrittenFile
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


_LARGE_BYTES, _PIECE_BYTES = 256 << 10, 8 << 20
"""From here on another thread hashes; so much at a time is hashed, written and begun on disk."""


class Writer(FileSystemWriter):
    """Writes this rank's part into `directory`, each file synced.

    `written` then lists its files, and on the first rank those of all ranks: what each wrote
    travels with torch's own results, which only that rank gets. `copied`: all tensors are in host
    memory already; if not, they are copied one after another.
    """

    def __init__(self, directory: Path, *, copied: bool = True) -> None:
        super().__init__(directory, sync_files=True, overwrite=False)
        if copied:
            self.per_thread_copy_ahead = 0
        self.written: dict[str, WrittenFile] = {}
        self.fs = _Summing(self.written)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        # Of each file there is a SHA-256; a CRC of each tensor beside it would say nothing more.
        # Patched for this thread only.
        with save_options.patch({"save.compute_crc32": False}):  # type: ignore[attr-defined]
            results = super().write_data(plan, planner).wait()
        mine: Future[list[WriteResult]] = Future()
        mine.set_result(_Part(results, self.written))
        return mine

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        for part in results:
            self.written.update(part.files if isinstance(part, _Part) else {})
        super().finish(metadata, results)


class _Part(list[WriteResult]):
    """What torch wants to know of what a rank wrote, and the files."""

    def __init__(
        self, results: Iterable[WriteResult] = (), files: Mapping[str, WrittenFile] | None = None
    ) -> None:
        super().__init__(results)
        self.files = dict(files or {})


class _Summing(FileSystem):
    """The file system, taking down size and SHA-256 of whatever is written."""

    def __init__(self, written: dict[str, WrittenFile]) -> None:
        self._written = written

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        with open(path, "wb") as file, closing(_Digest()) as digest:
            summed = _Summed(file, digest)
            try:
                yield summed
            except Exception:
                if summed.failure:  # torch's zip writer puts a riddle in its place
                    raise summed.failure from None
                raise
            size = file.tell()
        self._written[Path(path).name] = WrittenFile(size, digest.hexadecimal())

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self._written[Path(new_path).name] = self._written.pop(Path(path).name)


class _Digest:
    """SHA-256 of bytes in the order in which they come; large pieces are hashed by a thread."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._pieces: SimpleQueue[memoryview | None] = SimpleQueue()
        self._hashed: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def update(self, data: memoryview) -> None:
        """Take in `data`, now; nothing may be under way."""
        self._sha256.update(data)

    @contextmanager
    def meanwhile(self, data: memoryview) -> Iterator[None]:
        """Take in `data` while the body runs; its memory is not read any more afterwards."""
        if self._is_running():
            self._pieces.put(data)
            try:
                yield
            finally:
                self._hashed.get()
        else:
            self.update(data)
            yield

    def _is_running(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="checkpoint digest", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the process is about to end: Python starts none any more
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            self._sha256.update(piece)
            self._hashed.put(None)

    def close(self) -> None:
        """End the thread."""
        self._pieces.put(None)

    def hexadecimal(self) -> str:
        return self._sha256.hexdigest()


class _Summed(io.RawIOBase):
    """A file that is only ever written from front to back, and its digest so far."""

    def __init__(self, file: io.BufferedWriter, digest: _Digest) -> None:
        self._file, self._digest = file, digest
        self._begun = 0  # bytes that the disk was told to write
        self.failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            if len(view) < _LARGE_BYTES:
                self._digest.update(view)
                return self._file.write(view)
            for start in range(0, len(view), _PIECE_BYTES):
                piece = view[start : start + _PIECE_BYTES]
                with self._digest.meanwhile(piece):
                    self._file.write(piece)
                    self._begin_writing()
        except OSError as error:
            self.failure = error
            raise
        return len(view)

    def _begin_writing(self) -> None:
        """Have the disk write what is complete, so that the sync at the end finds little to do."""
        end = self._file.tell()
        if end - self._begun >= _PIECE_BYTES and hasattr(os, "posix_fadvise"):
            self._file.flush()
            part = self._begun, end - self._begun
            with suppress(OSError):  # no more than advice: Linux begins to write such pages
                os.posix_fadvise(self._file.fileno(), *part, os.POSIX_FADV_DONTNEED)
            self._begun = end

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def fileno(self) -> int:
        self._file.flush()  # asked for in order to sync
        return self._file.fileno()


class CheckpointReader(FileSystemReader):
    """Reads the checkpoint `directory`; its index is unpickled into harmless classes only. `index`:
    what another rank has read of it; this one then does not."""

    def __init__(self, directory: Path, index: Metadata | None = None) -> None:
        super().__init__(directory)
        self._index = index

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._index is not None:
            return self._index
        file = Path(self.path) / METADATA
        with file.open("rb") as stream:
            index = _HarmlessUnpickler(stream, file).load()
        if not isinstance(index, Metadata):
            raise StorageError(f"{file} is not the index of a checkpoint.")
        for part in (index.storage_data or {}).values():
            name = getattr(part, "relative_path", None)
            if not isinstance(name, str) or Path(name).name != name or name == "..":
                raise StorageError(f"{file} names {name!r:.200}, which does not lie beside it.")
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
