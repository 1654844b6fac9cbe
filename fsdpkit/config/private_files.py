"""Files that fsdpkit keeps for one person: what they trust, which release of a centre they saw."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_private(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, whole or not at all, for its owner alone; makes the directory.
    Raises OSError; the old content then stands."""
    import tempfile

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
