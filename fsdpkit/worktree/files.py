"""Which files make up a work tree: what a snapshot copies, and what goes to a login node.

In git, what git knows or would add: tracked files and untracked ones that it does not ignore, with
the repositories inside. Without git the whole directory, but for what is hidden, caches and virtual
environments. Never what runs wrote. Data and results do not belong in either, so there is a limit.
"""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsdpkit.errors import UsageError
from fsdpkit.worktree.git import GitError, git_in

_WALK_S = 60.0
_LARGEST_NAMED = 3
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""What lies at the top of a virtual environment, and of conda's."""
_OF_A_RUN = frozenset({"run.json", "job.json"})
_SIZES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


@dataclass(frozen=True)
class Limit:
    """How much may be taken. `to_do` ends the sentence for a tree that is larger."""

    bytes: int
    files: int
    to_do: str


@dataclass(frozen=True)
class WorkTreeFiles:
    """Regular files and symbolic links of a work tree: names below `top` with sizes in bytes."""

    top: Path
    sizes: dict[str, int]

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())

    def holds(self, path: Path) -> bool:
        """Whether this file, link or directory is among them."""
        if not path.is_relative_to(self.top):
            return False
        name = path.relative_to(self.top).as_posix()
        return (
            name == "." or name in self.sizes or any(n.startswith(f"{name}/") for n in self.sizes)
        )


def top_of(directory: Path) -> Path:
    """Git's work tree around the directory, or the directory itself. Raises UsageError where there
    should be git and it does not answer: what it ignores may be secret."""
    directory = directory.resolve()
    if not _in_git(directory):
        return directory
    try:
        return git_in(directory).top
    except GitError as error:
        raise UsageError(
            f"{directory} is in a git repository, but git does not tell what it ignores there: "
            f"{error}"
        ) from error


def files_of(top: Path, limit: Limit, without: Path | None = None) -> WorkTreeFiles:
    """The files of the work tree, as they lie there now, but nothing below `without`. Raises
    UsageError for more than the limit, naming the largest; and for what cannot be listed."""
    sizes: dict[str, int] = {}
    total = 0
    deadline = time.monotonic() + _WALK_S
    for name in _names(top, without):
        try:
            found = os.lstat(top / name)
        except (FileNotFoundError, NotADirectoryError):
            continue  # deleted, but still in git's index
        if stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode):
            sizes[name] = found.st_size
            total += found.st_size
        # Far beyond the limit nobody needs the exact sum.
        late = time.monotonic() > deadline
        if late or total > 100 * limit.bytes or len(sizes) > 2 * limit.files:
            raise _too_large(top, sizes, limit, at_least=True)
    if total > limit.bytes or len(sizes) > limit.files:
        raise _too_large(top, sizes, limit, at_least=False)
    return WorkTreeFiles(top, sizes)


def _in_git(directory: Path) -> bool:
    return any((place / ".git").exists() for place in (directory, *directory.parents))


def _names(top: Path, without: Path | None) -> Iterator[str]:
    skipped = ""
    if without is not None and without != top and without.is_relative_to(top):
        skipped = f"{without.relative_to(top).as_posix()}/"
    if not _in_git(top):
        names = _names_below(top)
    else:
        listed = list(dict.fromkeys(_names_of_git(top)))
        runs = _runs_among(listed)
        names = (name for name in listed if not any(f"{p}/" in runs for p in _above(name)))
    return (name for name in names if not (skipped and name.startswith(skipped)))


def _above(name: str) -> Iterator[str]:
    parts = name.split("/")[:-1]
    return ("/".join(parts[: n + 1]) for n in range(len(parts)))


def _runs_among(names: list[str]) -> set[str]:
    """Directories that hold what a run holds."""
    marks = Counter(
        name[: -len(name.rpartition("/")[2])]
        for name in names
        if name.rpartition("/")[2] in _OF_A_RUN
    )
    return {directory for directory, count in marks.items() if count == len(_OF_A_RUN)}


def _names_of_git(top: Path, below: str = "") -> Iterator[str]:
    """Of a work tree and of those inside it: submodules, and repositories that lie about."""
    words = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    try:
        names = git_in(top / below).ask(*words).names
    except GitError as error:
        raise UsageError(f"git does not list the files of {top / below}: {error}") from error
    for name in names:
        path = top / below / name
        if path.is_dir() and not path.is_symlink():
            if (path / ".git").exists():
                yield from _names_of_git(top, f"{below}{name.rstrip('/')}/")
        else:
            yield f"{below}{name}"


def _names_below(top: Path) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}")

    for directory, directories, files in os.walk(top, onerror=refuse):
        here = Path(directory)
        links = [name for name in directories if (here / name).is_symlink()]
        directories[:] = [name for name in directories if _counts(here / name)]
        for name in (*files, *links):
            yield (here / name).relative_to(top).as_posix()


def _counts(directory: Path) -> bool:
    if directory.name.startswith(".") or directory.name == "__pycache__":
        return False
    if any((directory / mark).exists() for mark in _ENVIRONMENTS):
        return False
    return not all((directory / mark).exists() for mark in _OF_A_RUN)


def _too_large(top: Path, sizes: dict[str, int], limit: Limit, *, at_least: bool) -> UsageError:
    parts: Counter[str] = Counter()
    for name, size in sizes.items():
        parts[name.partition("/")[0]] += size
    named = ", ".join(f"{name} ({_size(size)})" for name, size in parts.most_common(_LARGEST_NAMED))
    least = "at least " if at_least else ""
    return UsageError(
        f"the work tree {top} has {least}{_size(sum(sizes.values()))} in {least}{len(sizes):,} "
        f"files; {_size(limit.bytes)} and {limit.files:,} files are allowed. The largest parts: "
        f"{named}. Name in .gitignore what the job does not need, and give data by its absolute "
        f"path; or {limit.to_do}"
    )


def _size(count: float) -> str:
    for unit, scale in _SIZES:
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} bytes"
