"""A file server for measurements: it counts what reaches it, and is as slow as it is told to be.

A directory is shown read-only by FUSE, once for each client. Clients have their own caches, as
machines do, and one server: a rate in bytes a second that they share, and a time that it takes to
answer an open. It speaks the kernel's protocol (include/uapi/linux/fuse.h, version 7.31) itself and
so needs root, /dev/fuse and no library.

An answer costs about 0.1 ms of one core in Python. This is less than a network's round trip, and
800 reads of 128 KiB a second, as many as a rate of 100 MB/s allows, take a tenth of a core.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

_VALID_S = 3  # how long clients believe names and attributes, as NFS does by default
_MOST = 1 << 20  # bytes of one read
_THREADS = 4  # of each client, so that one slow answer does not delay the next
_REQUEST = struct.Struct("<IIQQ")
_ATTRIBUTES = struct.Struct("<6Q10I")
_KEEP_CACHE, _CACHE_DIRECTORY = 2, 8
_ASYNC_READ, _PARALLEL_DIROPS, _MAX_PAGES = 1, 1 << 18, 1 << 22

Counts = dict[str, int]
"""`opens`, `looks` (names and attributes that were asked for) and `bytes` that were read."""


class FileServer:
    """Serves `source` to clients; as a context manager it ends with all their mounts."""

    def __init__(self, source: Path, *, bytes_per_s: float = 0.0, open_s: float = 0.0) -> None:
        self.source = source
        self.bytes_per_s = bytes_per_s
        """0: as fast as it goes."""
        self.open_s = open_s
        self._mounts: list[_Mount] = []
        self._lock = threading.Lock()
        self._free_s = 0.0

    def __enter__(self) -> FileServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.unmount_all()

    def mount(self, place: Path, entering: Sequence[str] = ()) -> None:
        """A new client, which has nothing in its cache; these words lead to its machine."""
        self._mounts.append(_Mount(self, place, entering))

    def counts(self, below: str = "") -> Counts:
        """What all clients together have asked for; or only what is in a directory of `source`."""
        total: Counter[str] = Counter()
        for client in self._mounts:
            for (top, what), count in client.counts.items():
                total[what] += count * (below in ("", top))
        return {name: total[name] for name in ("opens", "looks", "bytes")}

    def unmount_all(self) -> None:
        for client in self._mounts:
            argv = [*client.entering, "umount", "--lazy", str(client.place)]
            subprocess.run(argv, capture_output=True, check=False)  # the machine may be off
        self._mounts.clear()

    def wait_for(self, size: int) -> None:
        """Return when the server, which serves all clients, has had the time to read so much."""
        if not self.bytes_per_s:
            return
        with self._lock:
            self._free_s = max(self._free_s, time.monotonic()) + size / self.bytes_per_s
            ready_s = self._free_s
        time.sleep(max(0.0, ready_s - time.monotonic()))


class _Mount:
    """One client's connection to the kernel."""

    def __init__(self, server: FileServer, place: Path, entering: Sequence[str]) -> None:
        self.server, self.place, self.entering = server, place, entering
        self.counts: Counter[tuple[str, str]] = Counter()
        self._paths = {1: os.fsencode(server.source)}
        self._numbers = {path: number for number, path in self._paths.items()}
        self._directories: dict[int, list[bytes]] = {}
        self._lock = threading.Lock()
        self._fd = os.open("/dev/fuse", os.O_RDWR)
        told = f"ro,fd={self._fd},rootmode=40755,user_id=0,group_id=0"
        told += f",allow_other,default_permissions,max_read={_MOST}"
        argv = [*entering, "mount", "-i", "-t", "fuse", "-o", told, "file-server", str(place)]
        for _ in range(_THREADS):
            threading.Thread(target=self._serve, daemon=True).start()
        subprocess.run(argv, pass_fds=[self._fd], check=True)

    def _serve(self) -> None:
        answers: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._lookup,
            3: lambda node, _: struct.pack("<QII", _VALID_S, 0, 0) + self._attributes(node),
            5: lambda node, _: os.readlink(self._paths[node]),
            14: self._open,
            15: self._read,
            17: lambda *_: struct.pack("<5Q10I", 1 << 30, 0, 0, 1 << 20, 0, 4096, 255, *[0] * 8),
            18: lambda _, body: self._release(body),
            26: lambda _, body: self._begin(body),
            27: self._open_directory,
            28: self._read_directory,
            29: lambda *_: b"",
        }
        silent = {2, 36, 42}  # forget, interrupt: they have no answer
        while True:
            try:
                request = os.read(self._fd, _MOST + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return  # the mount is gone
                time.sleep(0.01)  # not mounted yet, or who asked is gone
                continue
            _, kind, unique, node = _REQUEST.unpack_from(request)
            if kind in silent:
                continue
            failed, body = 0, b""
            try:
                body = answers[kind](node, request[40:])
            except KeyError:
                failed = errno.ENOSYS
            except OSError as error:
                failed = error.errno or errno.EIO
            with contextlib.suppress(OSError):  # who asked may be gone
                os.writev(self._fd, [struct.pack("<IiQ", 16 + len(body), -failed, unique), body])

    def _count(self, what: str, node: int, more: int = 1) -> None:
        path = os.path.relpath(self._paths[node], self._paths[1])
        self.counts[os.fsdecode(path.split(b"/")[0]), what] += more

    def _begin(self, body: bytes) -> bytes:
        _, _, ahead, offered = struct.unpack_from("<IIII", body)
        wanted = offered & (_ASYNC_READ | _PARALLEL_DIROPS | _MAX_PAGES)
        sizes = struct.pack("<HHIIHHI", 64, 48, 4096, 1, _MOST // 4096, 0, 0)
        return struct.pack("<IIII", 7, 31, ahead, wanted) + sizes + bytes(28)

    def _lookup(self, parent: int, body: bytes) -> bytes:
        path = self._paths[parent] + b"/" + body.rstrip(b"\0")
        with self._lock:
            number = self._numbers.setdefault(path, len(self._numbers) + 1)
            self._paths[number] = path
        try:
            found = self._attributes(number)
        except FileNotFoundError:
            number, found = 0, bytes(_ATTRIBUTES.size)  # no such name, which is believed as well
        return struct.pack("<QQQQII", number, 0, _VALID_S, _VALID_S, 0, 0) + found

    def _attributes(self, node: int) -> bytes:
        self._count("looks", node)
        at = os.lstat(self._paths[node])
        times = (at.st_atime_ns, at.st_mtime_ns, at.st_ctime_ns)
        return _ATTRIBUTES.pack(
            *(node, at.st_size, at.st_blocks, *(each // 10**9 for each in times)),
            *(each % 10**9 for each in times),
            *(at.st_mode, at.st_nlink, at.st_uid, at.st_gid, 0, 4096, 0),
        )

    def _open(self, node: int, _: bytes) -> bytes:
        self._count("opens", node)
        time.sleep(self.server.open_s)
        handle = os.open(self._paths[node], os.O_RDONLY)
        return struct.pack("<QII", handle, _KEEP_CACHE, 0)

    def _read(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        data = os.pread(handle, size, offset)
        self._count("bytes", node, len(data))
        self.server.wait_for(len(data))
        return data

    def _release(self, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def _open_directory(self, node: int, _: bytes) -> bytes:
        self._count("opens", node)
        time.sleep(self.server.open_s)
        with os.scandir(self._paths[node]) as found:
            names = [(each.inode(), _kind(each), each.name) for each in found]
        self._directories[node] = [
            _directory_entry(inode, place, kind, name)
            for place, (inode, kind, name) in enumerate(names, 1)
        ]
        return struct.pack("<QII", node, _CACHE_DIRECTORY, 0)

    def _read_directory(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        answer = b""
        for entry in self._directories[node][offset:]:
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer


def _kind(found: os.DirEntry[bytes]) -> int:
    if found.is_symlink():
        return stat.S_IFLNK >> 12
    return (stat.S_IFDIR if found.is_dir() else stat.S_IFREG) >> 12


def _directory_entry(inode: int, place: int, kind: int, name: bytes) -> bytes:
    entry = struct.pack("<QQII", inode, place, len(name), kind) + name
    return entry + bytes(-len(entry) % 8)
