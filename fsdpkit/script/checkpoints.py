"""Which checkpoints of a trainer that is not ours can be gone on from: the newest whole one.

Such a trainer fills a directory file by file, and a job that ends meanwhile leaves a part of one.
So a checkpoint counts when it has been marked: after all ranks have written, one of them leaves the
names and sizes of its files, and of which run it is. What was torn, changed since, copied from
another run or saved without an optimizer is passed over, and the one before it taken.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from fsdpkit.runs.layout import write_atomically
from fsdpkit.runs.reading import read_json

MARK = "fsdpkit.json"
_STEP = re.compile(r"(\d+)\D*$")
_MOST_FILES = 100_000


def mark_whole(checkpoint: Path, step: int) -> None:
    """All ranks have written `checkpoint`. Raises OSError."""
    files = {name: size for name, size in _files(checkpoint) if name != MARK}
    content = {"run": _run(), "step": step, "files": files}
    write_atomically(checkpoint / MARK, json.dumps(content) + "\n")


def newest_whole(directory: Path) -> tuple[Path | None, list[str]]:
    """The one with the most steps, and why others with more were passed over, a clause each."""
    refused: list[str] = []
    for checkpoint in _by_step(directory):
        if (why := _why_not(checkpoint)) is None:
            return checkpoint, refused
        refused.append(f"{checkpoint.name} {why}")
    return None, refused


def _by_step(directory: Path) -> list[Path]:
    """What has a step for the end of its name, the newest first."""
    found = []
    try:
        for path in directory.iterdir():
            if (step := _STEP.search(path.stem)) and path.is_dir() and not path.is_symlink():
                found.append((int(step[1]), path))
    except OSError:
        return []
    return [path for _, path in sorted(found, reverse=True)]


def _why_not(checkpoint: Path) -> str | None:
    try:
        mark = read_json(checkpoint / MARK)
        files = dict(mark["files"])
        run = mark["run"]
    except FileNotFoundError:
        return "was not written to its end"
    except (OSError, ValueError, KeyError, TypeError):
        return f"has a {MARK} that cannot be read"
    if run != _run():
        return f"is another run's ({str(run)[:80]})"
    try:
        found = dict(_files(checkpoint))
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    for name, size in files.items():
        if found.get(name) != size:
            return f"lacks {name!r:.80}" if name not in found else f"has a changed {name!r:.80}"
    return None


def _files(checkpoint: Path) -> Iterator[tuple[str, int]]:
    """Every file below it, by its path from there, with its size in bytes. Raises OSError."""

    def refuse(error: OSError) -> None:
        raise error

    count = 0
    for directory, _, names in os.walk(checkpoint, onerror=refuse):
        for name in names:
            count += 1
            if count > _MOST_FILES:
                raise OSError(None, "too many files")
            path = Path(directory, name)
            yield str(path.relative_to(checkpoint)), path.lstat().st_size


def _run() -> str:
    """Of which run this process is, and which task of its array: the same over all attempts."""
    task, run = os.environ.get("FSDPKIT_TASK_DIR", ""), os.environ.get("FSDPKIT_RUN_DIR", "")
    name = Path(run or task).name
    return f"{name}/{Path(task).name}" if run and Path(task) != Path(run) else name
