"""Where this node's own copy of a file is, in a job with [stage].

What was copied is told by `.staged.json` in $FSDPKIT_STAGE. Who opens a file asks here; what is put
on record stays the path that a person wrote, for the copy lies elsewhere on each node.
"""

from __future__ import annotations

import glob
import json
import os
from functools import lru_cache
from itertools import takewhile

LISTED = ".staged.json"


def local_path(path: str | os.PathLike[str]) -> str:
    """Where to open what a job's `[stage]` has copied to this node; elsewhere, `path` itself.

    It never raises, and costs a look at the node's own disk.

    Args:
        path: A file, directory or pattern as `stage.data` has it, or what is below such a
            directory, or a file of such a pattern. Relative to the working directory.

    Examples:
        Outside such a job:

        >>> import fsdpkit
        >>> fsdpkit.staged("/project/corpus/part-0.parquet")
        '/project/corpus/part-0.parquet'
    """
    given, stage = os.fspath(path), os.environ.get("FSDPKIT_STAGE")
    if not stage:
        return given
    whole = os.path.abspath(given)
    for name, source in _items(stage):
        top = _fixed(source)
        if whole == source or whole.startswith(f"{top}/"):
            copy = os.path.join(stage, name, whole[len(top) + 1 :]).rstrip("/")
            is_pattern = whole == source != top and os.path.isdir(os.path.join(stage, name))
            if is_pattern or os.path.exists(copy):
                return copy
    return given


def _fixed(pattern: str) -> str:
    """The part of it without wildcards."""
    parts = pattern.split("/")
    return "/".join(takewhile(lambda part: not glob.has_magic(part), parts))


@lru_cache(maxsize=4)
def _items(stage: str) -> list[tuple[str, str]]:
    """Name and source of each item; none where that cannot be read."""
    try:
        with open(os.path.join(stage, LISTED), encoding="utf-8") as file:
            items = json.load(file)["items"]
        return [(str(item["name"]), str(item["source"])) for item in items]
    except (OSError, ValueError, TypeError, KeyError):
        return []
