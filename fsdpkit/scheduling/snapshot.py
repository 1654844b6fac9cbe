"""`submit --snapshot`: the work tree as it is now, copied into the run, for the job to run there.

Which files those are says fsdpkit/worktree/files.py. Symbolic links stay what they are. What the
job names by a relative path and the copy lacks is either named by its whole path (settings) or
refused (arguments) before anything is queued.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from fsdpkit.errors import StorageError, UsageError
from fsdpkit.rendering.script import Plan
from fsdpkit.runs.checkpoints import sha256_of
from fsdpkit.runs.layout import make_directory
from fsdpkit.runs.provenance import Snapshot
from fsdpkit.runs.reading import open_regular
from fsdpkit.worktree.files import Limit, WorkTreeFiles, files_of, top_of

_MOST_FILES = 100_000


def read_tree(plan: Plan, runs: Path) -> WorkTreeFiles:
    """What a snapshot of the job's work tree copies, but nothing of `runs`.

    Raises UsageError where git does not answer, for a script that lies elsewhere, and for more
    than `source.limit_mb`.
    """
    entry, limit_mb = plan.job.entry, plan.job.source.limit_mb
    top = top_of(plan.work_dir)
    if entry.name == str(entry.file) and not entry.path.is_relative_to(top):
        raise UsageError(
            f"--snapshot copies {top}, but the script is {entry}: submit it from its own "
            f"directory, or leave out --snapshot"
        )
    limit = Limit(limit_mb * 1_000_000, _MOST_FILES, "raise source.limit_mb")
    return files_of(top, limit, without=runs)


def copy_tree(tree: WorkTreeFiles, destination: Path) -> Snapshot:
    """Copy the tree to `destination`, which is made. Raises StorageError."""
    lines = []
    total = 0
    try:
        make_directory(destination)
        for name in sorted(tree.sizes):
            target = destination / name
            _make_parents(destination, target.parent)
            size, mode, digest = _copy(tree.top / name, target)
            total += size
            lines.append(os.fsencode(f"{mode} {digest} {name}\0"))
    except OSError as error:
        raise StorageError(
            f"--snapshot: {error.filename or destination}: {error.strerror}; nothing was submitted"
        ) from error
    return Snapshot(
        source=str(tree.top),
        files=len(lines),
        bytes=total,
        sha256=hashlib.sha256(b"".join(lines)).hexdigest(),
        dangling=links_to_nowhere(tree),
    )


def _make_parents(top: Path, directory: Path) -> None:
    if not directory.is_dir() and directory != top:
        _make_parents(top, directory.parent)
        make_directory(directory)


def _copy(source: Path, target: Path) -> tuple[int, str, str]:
    """Size, mode and SHA-256 of a file, or of a symbolic link's target. The group may read the copy
    if it may read the directory and the source."""
    if source.is_symlink():
        to = os.readlink(source)
        os.symlink(to, target)
        return len(to), "120000", hashlib.sha256(os.fsencode(to)).hexdigest()
    with open_regular(source) as reading, open(target, "xb") as writing:
        shutil.copyfileobj(reading, writing, 1 << 20)
        mode = os.fstat(reading.fileno()).st_mode
        runs, opened = mode & 0o100, mode & os.stat(target.parent).st_mode & 0o040
        os.fchmod(writing.fileno(), 0o600 | opened | (runs and 0o100 | opened >> 2))
        size = writing.tell()
    return size, "100755" if runs else "100644", sha256_of(target)


# ---- What the job names


def check_arguments(plan: Plan, tree: WorkTreeFiles) -> None:
    """Raises UsageError for an argument that is the relative path of something that is here and
    will not be in the copy. A word without a slash or a dot may be anything, and passes."""
    for word in plan.job.spec.args:
        text = word.partition("=")[2] if word.startswith("-") else word
        if not text or not ("/" in text or "." in text) or os.path.isabs(text):
            continue
        path = Path(os.path.normpath(plan.work_dir.resolve() / text))
        if os.path.lexists(path) and not tree.holds(path):
            raise UsageError(
                f"--snapshot: args: {text} will not be in the copy that the job runs in (git "
                f"ignores it, or it is outside): give its absolute path, {path}"
            )


def links_to_nowhere(tree: WorkTreeFiles) -> list[str]:
    """Relative symbolic links that lead somewhere in the tree, and nowhere in the copy."""
    found = []
    for name in tree.sizes:
        path = tree.top / name
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
