"""The file system under a directory of runs: what it is, and how fast."""

from __future__ import annotations

import os
import time
from pathlib import Path

NETWORK = frozenset(
    [
        *("9p", "acfs", "afs", "beegfs", "ceph", "cifs", "daos", "gfs2", "glusterfs", "gpfs"),
        *("lustre", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "wekafs"),
        *("fuse.ceph", "fuse.daos", "fuse.glusterfs", "fuse.juicefs", "fuse.sshfs"),
    ]
)
"""Types, as in /proc/mounts, that several machines can mount."""
LOCAL = frozenset(
    ["btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "vfat", "xfs", "zfs"]
)
"""Types that lie on one machine's own disk or in its memory."""
_TRIAL_FILES = 20
_TRIAL_MIB = 64


def type_of(path: Path) -> str | None:
    """The type of the file system that holds `path`, such as `lustre`; None if unknown."""
    import psutil

    mounts = {Path(m.mountpoint): m.fstype for m in psutil.disk_partitions(all=True)}
    real = path.resolve()
    return next((mounts[each] for each in (real, *real.parents) if each in mounts), None)


def small_file_s(directory: Path) -> float:
    """Median time to create, sync, rename and remove a small file. Raises OSError."""
    times = []
    for number in range(_TRIAL_FILES):
        started = time.perf_counter()
        _write_synced(directory / "small.tmp", b"fsdpkit\n")
        os.replace(directory / "small.tmp", directory / f"small-{number}")
        (directory / f"small-{number}").unlink()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2]


def large_file_mb_s(directory: Path) -> float:
    """10^6 bytes per second for a file of 64 MiB, written as a checkpoint is. Raises OSError."""
    block = os.urandom(2**20)  # zeros would make a compressing file system look fast
    started = time.perf_counter()
    _write_synced(directory / "large", *[block] * _TRIAL_MIB)
    return _TRIAL_MIB * 2**20 / (time.perf_counter() - started) / 1e6


def _write_synced(path: Path, *blocks: bytes) -> None:
    with open(path, "wb") as file:
        for block in blocks:
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
