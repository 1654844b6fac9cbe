"""Files copied to a disk within one process, and what a second user may do there."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

from fsdpkit.staging.copying import StageCopy
from fsdpkit.staging.disk import StageStore
from fsdpkit.staging.listing import listed
from fsdpkit.staging.manifest import BlockSource, Manifest
from fsdpkit.staging.source import SharedFiles
from fsdpkit.staging.stream import sha256_of


def copy_some(copy: StageCopy, source: BlockSource, end: int | None = None) -> None:
    """Write the blocks that are missing before `end`."""
    for index in range(copy.done, copy.manifest.block_count if end is None else end):
        data = source.read(index)
        copy.write(index, data, sha256_of(data, copy.manifest.length(index)))


def copied(items: list[tuple[str, str]], store: StageStore) -> tuple[Path, Manifest]:
    """The tree that a job's items become."""
    manifest, sources = listed(items)
    manifest = Manifest.decode(manifest.encode())
    assert store.claim(manifest) is None
    copy = store.begin(manifest)
    copy_some(copy, SharedFiles(manifest, sources))
    return copy.finish(), manifest


def forked(act: Callable[[], object], uid: int | None = None) -> int:
    """A process that does this, as another user; it ends with 1 where that raises."""
    if child := os.fork():
        return child
    status = 1
    try:
        if uid is not None:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        act()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def ended(child: int) -> int:
    """How it ended: its exit status, or the negative signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
