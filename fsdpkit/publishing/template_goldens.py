"""A template's golden scripts: what it makes, committed beside it, so that a change shows.

`golden/SITE.sbatch` is a job of two nodes there, `golden/SITE.SHAPE.sbatch` one of another shape
(`generic.array`). Which ones a template has is its author's choice.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from fsdpkit.config.site import load_site
from fsdpkit.config.template import Template
from fsdpkit.errors import FsdpkitError, NotFoundError, RenderError, StorageError, storage_errors
from fsdpkit.publishing.template_cases import RUN_DIR, SHAPES, Case, fitting, neutral, plan_of
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


def golden_script(name: str, template: Template) -> str:
    """What this golden script is now. Raises FsdpkitError."""
    plan = plan_of(_case(name), template)
    return neutral(render(plan, RUN_DIR), plan)


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
    """How the folder's golden script differs from what the template makes; None: not at all."""
    path = golden_dir(template) / f"{name}{_SUFFIX}"
    try:
        now = golden_script(name, template)
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
    scripts = {name: golden_script(name, template) for name in names}
    changed = []
    directory = golden_dir(template)
    if directory.is_symlink():
        raise StorageError(f"{directory} is a symbolic link: nothing is written where it leads")
    with storage_errors(directory, "written"):
        directory.mkdir(exist_ok=True)
        for name, text in scripts.items():
            path = directory / f"{name}{_SUFFIX}"
            if not path.is_symlink() and path.is_file() and path.read_bytes() == text.encode():
                continue
            write_atomically(path, text, by_umask=True)
            changed.append(name)
    return changed
