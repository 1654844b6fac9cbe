"""`submit --snapshot`: the work tree as it is now, copied into the run, for the job to run there.

What is copied is what git knows or would add: tracked files and untracked ones that it does not
ignore, each as it lies in the work tree. Without git it is the whole directory, but for virtual
environments and caches. Symbolic links stay what they are. Data and results do not belong in it,
so there is a limit in size, and what the job names by a relative path and the copy lacks is either
named by its whole path (settings) or refused (arguments) before anything is queued.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fsdpkit.errors import StorageError, UsageError
from fsdpkit.rendering.script import Plan
from fsdpkit.runs.checkpoints import sha256_of
from fsdpkit.runs.provenance import Snapshot
from fsdpkit.runs.reading import open_regular
from fsdpkit.scheduling.git import GitError, git_in

_MOST_FILES = 100_000
_WALK_S = 60.0
_LARGEST_NAMED = 3
_LEFT_OUT = frozenset({".git", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"})
_OF_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""What lies at the top of a virtual environment, and of conda's."""
_SIZES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


@dataclass(frozen=True)
class Tree:
    """A work tree with what is to be copied of it: names relative to the root, with sizes."""

    root: Path
    sizes: dict[str, int]

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())

    def holds(self, path: Path) -> bool:
        """Whether the copy has this file, link or directory of the tree."""
        if not path.is_relative_to(self.root):
            return False
        name = path.relative_to(self.root).as_posix()
        return (
            name == "." or name in self.sizes or any(n.startswith(f"{name}/") for n in self.sizes)
        )


def tree_root(entry: Path, work_dir: Path) -> Path:
    """The tree that a snapshot copies: git's around `work_dir`, or that directory. Raises
    UsageError if git refuses, or if the script lies elsewhere."""
    root = work_dir.resolve()
    try:
        root = git_in(root).top
    except GitError as error:
        if any((above / ".git").exists() for above in (root, *root.parents)):
            raise UsageError(f"--snapshot: git does not say what to copy: {error}") from error
    if not entry.is_relative_to(root):
        raise UsageError(
            f"--snapshot copies {root}, but the script is {entry}: submit it from the directory "
            "that it lies in, or leave --snapshot out"
        )
    return root


def read_tree(root: Path, limit_bytes: int, without: Path) -> Tree:
    """What is to be copied of the tree, but nothing of `without`, the directory of runs.

    Raises UsageError for more than `limit_bytes`, naming the largest files.
    """
    in_git = any((above / ".git").exists() for above in (root, *root.parents))
    sizes: dict[str, int] = {}
    deadline = time.monotonic() + _WALK_S
    names = _names_of_git(root) if in_git else _names_below(root, without)
    skipped = f"{without.relative_to(root)}/" if without.is_relative_to(root) else None
    total = 0
    for name in names:
        if skipped is not None and f"{name}/".startswith(skipped):
            continue
        try:
            found = os.lstat(root / name)
        except (FileNotFoundError, NotADirectoryError):
            continue  # deleted, but still in git's index
        if stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode):
            sizes[name] = found.st_size
            total += found.st_size
        # Far beyond the limit nobody needs the exact sum.
        if total > 100 * limit_bytes or len(sizes) > _MOST_FILES or time.monotonic() > deadline:
            raise _too_large(root, sizes, limit_bytes, at_least=True)
    if total > limit_bytes:
        raise _too_large(root, sizes, limit_bytes, at_least=False)
    return Tree(root, sizes)


def _too_large(root: Path, sizes: dict[str, int], limit: int, *, at_least: bool) -> UsageError:
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:_LARGEST_NAMED]
    named = ", ".join(f"{name} ({_size(size)})" for name, size in largest)
    least = "at least " if at_least else ""
    return UsageError(
        f"--snapshot: {root} has {least}{_size(sum(sizes.values()))} in {least}{len(sizes):,} "
        f"files to copy; {_size(limit)} and {_MOST_FILES:,} files are allowed. The largest: "
        f"{named}. Let git ignore what is no source (.gitignore), or raise source.limit_mb"
    )


def _size(count: float) -> str:
    for unit, scale in _SIZES:
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} bytes"


def _names_of_git(root: Path, below: str = "") -> Iterator[str]:
    """Of a work tree and of those inside it: submodules, and repositories that lie about."""
    try:
        git = git_in(root / below)
        told = git.ask(
            *("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
        )
    except GitError as error:
        raise UsageError(f"--snapshot: git does not list {root / below}: {error}") from error
    for name in told.names:
        path = root / below / name
        if path.is_dir() and not path.is_symlink():
            if (path / ".git").exists():
                yield from _names_of_git(root, f"{below}{name.rstrip('/')}/")
        else:
            yield f"{below}{name}"


def _names_below(root: Path, without: Path) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise UsageError(f"--snapshot: {error.filename} cannot be read: {error.strerror}")

    for directory, directories, files in os.walk(root, onerror=refuse):
        here = Path(directory)
        links = [name for name in directories if (here / name).is_symlink()]
        directories[:] = [
            name
            for name in directories
            if name not in _LEFT_OUT
            and here / name != without
            and not any((here / name / mark).exists() for mark in _OF_ENVIRONMENTS)
        ]
        for name in (*files, *links):
            yield (here / name).relative_to(root).as_posix()


def copy_tree(tree: Tree, destination: Path) -> Snapshot:
    """Copy the tree to `destination`, which is made. Raises StorageError."""
    lines = []
    total = 0
    try:
        _make(destination)
        for name in sorted(tree.sizes):
            target = destination / name
            _make_parents(destination, target.parent)
            size, mode, digest = _copy(tree.root / name, target)
            total += size
            lines.append(os.fsencode(f"{mode} {digest} {name}\0"))
    except OSError as error:
        raise StorageError(
            f"--snapshot: {error.filename or destination}: {error.strerror}; nothing was submitted"
        ) from error
    return Snapshot(
        source=str(tree.root),
        files=len(lines),
        bytes=total,
        sha256=hashlib.sha256(b"".join(lines)).hexdigest(),
        dangling=links_to_nowhere(tree),
    )


def _make(directory: Path) -> None:
    """As open as the directory above, and written by its owner alone."""
    directory.mkdir(mode=0o700)
    directory.chmod(0o700 | os.stat(directory.parent).st_mode & 0o2050)


def _make_parents(top: Path, directory: Path) -> None:
    if not directory.is_dir() and directory != top:
        _make_parents(top, directory.parent)
        _make(directory)


def _copy(source: Path, target: Path) -> tuple[int, str, str]:
    """Size, mode and SHA-256 of a file, or of a symbolic link's target."""
    if source.is_symlink():
        to = os.readlink(source)
        os.symlink(to, target)
        return len(to), "120000", hashlib.sha256(os.fsencode(to)).hexdigest()
    with open_regular(source) as reading, open(target, "xb") as writing:
        shutil.copyfileobj(reading, writing, 1 << 20)
        runs = os.fstat(reading.fileno()).st_mode & 0o100
        opened = os.stat(target.parent).st_mode & 0o040
        os.fchmod(writing.fileno(), 0o600 | opened | (runs and 0o100 | opened >> 2))
        size = writing.tell()
    return size, "100755" if runs else "100644", sha256_of(target)


# ---- What the job names


def check_arguments(plan: Plan, tree: Tree) -> None:
    """Raises UsageError for an argument that is the relative path of something that is here and
    will not be in the copy. A word without a slash or a dot may be anything, and passes."""
    for word in plan.job.spec.args:
        text = word.partition("=")[2] if word.startswith("-") else word
        if not text or not ("/" in text or "." in text) or os.path.isabs(text):
            continue
        path = Path(os.path.normpath(plan.work_dir.resolve() / text))
        if os.path.lexists(path) and not tree.holds(path):
            raise UsageError(
                f"--snapshot: args: {text} will not be in the copy, in which the job runs (git "
                f"ignores it, or it lies outside): give its whole path, {path}"
            )


def links_to_nowhere(tree: Tree) -> list[str]:
    """Relative symbolic links that lead somewhere in the tree, and nowhere in the copy."""
    found = []
    for name in tree.sizes:
        path = tree.root / name
        if not path.is_symlink() or os.path.isabs(to := os.readlink(path)):
            continue
        if path.exists() and not tree.holds(Path(os.path.normpath(path.parent / to))):
            found.append(name)
    return found


def editable_dirs(prefixes: Iterable[Path], root: Path) -> list[Path]:
    """Where `pip install -e` found packages below `root`: a job would import them from there."""
    import json
    from urllib.parse import unquote, urlsplit

    found = []
    for prefix in prefixes:
        for file in prefix.glob("lib/python3*/site-packages/*.dist-info/direct_url.json"):
            try:
                said = json.loads(file.read_bytes())
                url = urlsplit(said["url"])
                if url.scheme != "file" or not said["dir_info"]["editable"]:
                    continue
            except (OSError, ValueError, KeyError, TypeError):
                continue
            project = Path(unquote(url.path)).resolve()
            if project.is_relative_to(root):
                found.append(project / "src" if (project / "src").is_dir() else project)
    return found
