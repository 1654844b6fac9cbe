"""`submit --snapshot`: the work tree as it is now, copied into the run, for the job to run there.

Which files those are says fsdpkit/worktree/files.py. Symbolic links stay what they are. What the
job names by a relative path and the copy lacks, because git ignores it, is either named by its
whole path (settings) or refused (arguments) before anything is queued. The script, the working
directory and what Python is told to import from the tree move into the copy.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.config.entry import Entry, environment_prefix
from fsdpkit.config.job import Environment
from fsdpkit.errors import StorageError, UsageError
from fsdpkit.rendering.script import Plan
from fsdpkit.runs.checkpoints import sha256_of
from fsdpkit.runs.layout import make_directory
from fsdpkit.runs.provenance import Snapshot
from fsdpkit.runs.reading import open_regular
from fsdpkit.worktree.files import Limit, WorkTreeFiles, files_of, top_of

_MOST_FILES = 100_000


def read_tree(plan: Plan, runs: Path) -> WorkTreeFiles:
    """What a snapshot of the job's work tree copies, but nothing of `runs`. Raises UsageError where
    git does not answer, for a script that lies elsewhere, and for more than `source.limit_mb`."""
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


def in_copy(plan: Plan, tree: WorkTreeFiles, copy: Path) -> Plan:
    """The plan for the job in `copy`, a copy of `tree`."""
    spec = plan.job.spec
    here = plan.work_dir.resolve()
    changes: dict[str, Any] = {"environment": _environment(spec.environment, here, tree, copy)}
    if spec.training is not msgspec.UNSET:
        changes["training"] = plan.job.trainer.moved(spec.training, _stays(here, tree))
    if spec.staged.data:
        data = [item.pattern for item in spec.staged.items(plan.work_dir)]
        changes["stage"] = msgspec.structs.replace(spec.staged, data=data)
    job = replace(
        plan.job,
        spec=msgspec.structs.replace(spec, **changes),
        entry=_moved_entry(plan.job.entry, tree.top, copy),
        steps={
            key: (*words[:-1], str(_file(Path(words[-1]), tree, copy)))
            for key, words in plan.job.steps.items()
        },
        accelerate_config=(file := plan.job.accelerate_config) and _file(file, tree, copy),
    )
    return replace(plan, job=job, work_dir=_moved(here, tree.top, copy))


def _moved_entry(entry: Entry, root: Path, copy: Path) -> Entry:
    if entry.root is None or entry.file is None:
        return entry
    file = _moved(entry.file, root, copy)
    name = str(file) if entry.name == str(entry.file) else entry.name
    return replace(entry, name=name, file=file, root=_moved(entry.root, root, copy))


def _moved(path: Path, root: Path, copy: Path) -> Path:
    return copy / path.relative_to(root) if path.is_relative_to(root) else path


def _file(path: Path, tree: WorkTreeFiles, copy: Path) -> Path:
    return _moved(path, tree.top, copy) if tree.holds(path) else path


def _stays(here: Path, tree: WorkTreeFiles) -> Callable[[str], str]:
    """The whole path of a file that the copy lacks; any other as it is."""

    def moved(value: str) -> str:
        path = Path(os.path.normpath(here / value))
        lacks = not os.path.isabs(value) and os.path.lexists(path) and not tree.holds(path)
        return str(path) if lacks else value

    return moved


def _environment(
    environment: Environment, here: Path, tree: WorkTreeFiles, copy: Path
) -> Environment:
    changes: dict[str, Any] = {}
    if (own := environment_prefix(environment, here)) is not None:
        changes["venv" if environment.venv is not None else "conda"] = str(own)
    if environment.container and os.path.lexists(here / environment.container):
        changes["container"] = str(here / environment.container)
    if path := _python_path(environment, own or Path(sys.prefix), tree.top, copy):
        changes["variables"] = {**environment.variables, "PYTHONPATH": path}
        changes["prepend"] = {k: v for k, v in environment.prepend.items() if k != "PYTHONPATH"}
    return msgspec.structs.replace(environment, **changes)


def _python_path(environment: Environment, prefix: Path, root: Path, copy: Path) -> str | None:
    """PYTHONPATH with what lies in the tree taken from the copy; None if it can stay as it is."""
    given = environment.variables.get("PYTHONPATH")
    if given is None:
        given = os.environ.get("PYTHONPATH", "")
        given = f"{environment.prepend.get('PYTHONPATH', '')}:{given}"
    entries = [Path(text) for text in given.split(os.pathsep) if text]
    moved = [_moved(p.resolve() if p.is_absolute() else p, root, copy) for p in entries]
    moved += [_moved(p, root, copy) for p in editable_dirs([prefix], root)]
    if moved == entries:
        return None
    return os.pathsep.join(map(str, dict.fromkeys(moved)))
