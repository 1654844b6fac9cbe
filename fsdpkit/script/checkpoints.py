"""Which checkpoints of a trainer that is not ours can be gone on from: the newest whole one.

Such a trainer fills a directory file by file, or writes one file, and a job that ends meanwhile
leaves a part of it. So a checkpoint counts when it has been marked: after all ranks have written,
one of them leaves the names and sizes of its files, and of which run it is: in a directory, beside
a file. What was torn, changed since, copied from another run or saved without an optimizer is
passed over, and the one before it taken.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from fsdpkit.runs.layout import write_atomically
from fsdpkit.runs.reading import read_json
from fsdpkit.runs.saved_steps import MARK

_STEP = re.compile(r"step=(\d+)|(\d+)\D*$")
_FILE_SUFFIX = ".ckpt"
"""Of a checkpoint that is a single file, as Lightning writes it."""
_MOST_FILES = 100_000


def mark_whole(checkpoint: Path, step: int) -> None:
    """All ranks have written `checkpoint`. Raises OSError."""
    files = {name: size for name, size in _files(checkpoint) if name != MARK}
    content = {"run": _run(), "step": step, "files": files}
    write_atomically(_mark_of(checkpoint), json.dumps(content) + "\n")
    if not checkpoint.is_dir():
        _remove_lost_marks(checkpoint.parent)


def _remove_lost_marks(directory: Path) -> None:
    """Of files that their trainer has removed since."""
    for mark in directory.glob(f"*{_FILE_SUFFIX}.{MARK}"):
        if not mark.with_name(mark.name.removesuffix(f".{MARK}")).exists():
            with contextlib.suppress(OSError):
                mark.unlink()


def unmark(checkpoint: Path) -> None:
    """`checkpoint` is to be written anew, or is no more."""
    with contextlib.suppress(OSError):
        _mark_of(checkpoint).unlink(missing_ok=True)


def keep_newest(directory: Path, prefix: str, count: int) -> None:
    """Remove checkpoints whose names begin so, but for the newest; what cannot be, stays.

    Only whole ones of this run count and go: others are somebody else's.
    """
    found = [path for path in _by_step(directory) if path.name.startswith(prefix)]
    for checkpoint in [path for path in found if _why_not(path) is None][count:]:
        unmark(checkpoint)
        with contextlib.suppress(OSError):
            shutil.rmtree(checkpoint) if checkpoint.is_dir() else checkpoint.unlink()


def newest_whole(*directories: Path) -> tuple[Path | None, list[str]]:
    """The one with the most steps, and why others with more were passed over, a clause each."""
    refused: list[str] = []
    for checkpoint in _by_step(*directories):
        if (why := _why_not(checkpoint)) is None:
            return checkpoint, refused
        refused.append(f"{checkpoint.name} {why}")
    return None, refused


def step_of(checkpoint: Path) -> int | None:
    """Steps done in a checkpoint: as its mark says, else its name; None for what is none."""
    named = _STEP.search(checkpoint.stem)
    if not checkpoint.is_dir() and checkpoint.suffix != _FILE_SUFFIX:
        return None
    try:
        step = read_json(_mark_of(checkpoint))["step"]
        if isinstance(step, int) and not isinstance(step, bool):
            return step
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return int(named[1] or named[2]) if named else None


def _by_step(*directories: Path) -> list[Path]:
    """What is a checkpoint by its mark or name, the newest first; of one step, by its mark."""
    found = []
    for directory in dict.fromkeys(directories):
        with contextlib.suppress(OSError):
            for path in directory.iterdir():
                if not path.is_symlink() and (step := step_of(path)) is not None:
                    found.append((step, _marked_at(path), path))
    return [path for *_, path in sorted(found, reverse=True)]


def _marked_at(checkpoint: Path) -> int:
    try:
        return _mark_of(checkpoint).stat().st_mtime_ns
    except OSError:
        return 0


def _mark_of(checkpoint: Path) -> Path:
    if checkpoint.is_dir():
        return checkpoint / MARK
    return checkpoint.with_name(f"{checkpoint.name}.{MARK}")


def _why_not(checkpoint: Path) -> str | None:
    try:
        mark = read_json(_mark_of(checkpoint))
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
    """Every file of it, by its path from there, with its size in bytes. Raises OSError."""
    if not checkpoint.is_dir():
        yield checkpoint.name, checkpoint.lstat().st_size
        return

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
