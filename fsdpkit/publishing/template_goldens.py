"""A template's golden scripts: what it makes, committed beside it, so that a change shows.

`golden/SITE.sbatch` is a job of two nodes there, `golden/SITE.SHAPE.sbatch` one of another shape
(`generic.array`). Which ones a template has is its author's choice. The packaged template's are
made by `rendering.goldens`, which has names of its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from fsdpkit.config.site import load_site
from fsdpkit.config.template import Template
from fsdpkit.errors import FsdpkitError, NotFoundError, RenderError, StorageError
from fsdpkit.publishing.template_cases import RUN_DIR, SHAPES, Case, fitting, neutral, plan_of
from fsdpkit.rendering import goldens as packaged
from fsdpkit.rendering.script import render
from fsdpkit.runs.layout import write_atomically

FIRST = ("generic", "generic.one-node", "generic.array", "local")
"""Those of a new template."""
_SUFFIX = ".sbatch"
_MAX_BYTES = 4_000_000
_SHOWN = 40  # lines of a difference


def golden_dir(template: Template) -> Path:
    return template.dir / "golden"


def present(template: Template) -> list[str]:
    """The names of the golden scripts that a template has."""
    return sorted(path.stem for path in golden_dir(template).glob(f"*{_SUFFIX}"))


def golden_file(name: str, template: Template) -> tuple[str, str]:
    """The file of this golden script, and what it holds now. Raises FsdpkitError."""
    if _is_packaged(template):
        if name not in packaged.WHOLE:
            known = ", ".join(packaged.WHOLE)
            raise NotFoundError(f"golden/{name}: nothing makes it; there are {known}")
        return f"{name}{_SUFFIX}", packaged.golden_script(name)
    case = _case(name)
    plan = plan_of(case, template)
    return f"{name}{_SUFFIX}", neutral(render(plan, RUN_DIR), plan)


def _is_packaged(template: Template) -> bool:
    return template.dir == packaged.golden_dir().parent


def _case(name: str) -> Case:
    site, _, slug = name.partition(".")
    shapes = {shape.name.replace(" ", "-"): shape for shape in SHAPES}
    shape = shapes.get(slug or "two-nodes")
    if shape is None:
        known = ", ".join(shapes)
        raise NotFoundError(
            f"golden/{name}{_SUFFIX}: there is no shape {slug!r}; there are {known}"
        )
    found = fitting(load_site(site), shape)
    if isinstance(found, str):
        raise RenderError(f"golden/{name}{_SUFFIX}: {site} takes no such job: {found}")
    return found


def problem_of(name: str, template: Template) -> str | None:
    """How the golden script in the folder differs from what the template makes; None: not at
    all."""
    path = golden_dir(template) / f"{name}{_SUFFIX}"
    try:
        file, now = golden_file(name, template)
        path = golden_dir(template) / file
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _MAX_BYTES:
            return f"{path}: is not a plain file of a script's size"
        before = path.read_text(encoding="utf-8")
    except FsdpkitError as error:
        return str(error)
    except (OSError, UnicodeDecodeError) as error:
        return f"{path}: cannot be read: {error}"
    if before == now:
        return None
    lines = list(
        difflib.unified_diff(
            before.splitlines(), now.splitlines(), f"{path}", "now", lineterm="", n=1
        )
    )
    more = [f"… {len(lines) - _SHOWN} more lines"] if len(lines) > _SHOWN else []
    return "\n".join([*lines[:_SHOWN], *more])


def update(template: Template, names: Sequence[str]) -> list[str]:
    """Write these golden scripts; the names of those that changed. Raises FsdpkitError before
    anything is written if one cannot be made, StorageError if it cannot be written."""
    files = {name: golden_file(name, template) for name in names}
    changed = []
    directory = golden_dir(template)
    if directory.is_symlink():
        raise StorageError(f"{directory} is a symbolic link: nothing is written where it leads")
    try:
        directory.mkdir(exist_ok=True)
        for name, (file, text) in files.items():
            path = directory / file
            if not path.is_symlink() and path.is_file() and path.read_bytes() == text.encode():
                continue
            write_atomically(path, text, by_umask=True)
            changed.append(name)
    except OSError as error:
        raise StorageError(f"{directory} cannot be written: {error.strerror}") from error
    return changed
