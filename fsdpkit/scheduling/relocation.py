"""The plan of a job that runs in the copy of its work tree: the same, with other places.

The script, the working directory and what Python is told to import from the tree move into the
copy. What the copy does not have, because git ignores it, stays where it is and is named by its
whole path: a virtual environment, a container's image, data, models.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.config.entry import Entry
from fsdpkit.config.job import Environment
from fsdpkit.rendering.script import Plan
from fsdpkit.scheduling.snapshot import editable_dirs
from fsdpkit.worktree.files import WorkTreeFiles


def in_copy(plan: Plan, tree: WorkTreeFiles, copy: Path) -> Plan:
    """The plan for the job in `copy`, a copy of `tree`."""
    spec = plan.job.spec
    here = plan.work_dir.resolve()
    changes: dict[str, Any] = {"environment": _environment(spec.environment, here, tree, copy)}
    if spec.training is not msgspec.UNSET:
        changes["training"] = plan.job.trainer.moved(spec.training, _stays(here, tree))
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
    prefix = Path(sys.prefix)
    if environment.venv:
        prefix = here / os.path.expanduser(environment.venv)
        changes["venv"] = str(prefix)
    if environment.conda and "/" in environment.conda:
        prefix = here / os.path.expanduser(environment.conda)
        changes["conda"] = str(prefix)
    if environment.container and os.path.lexists(here / environment.container):
        changes["container"] = str(here / environment.container)
    if path := _python_path(environment, prefix, tree.top, copy):
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
