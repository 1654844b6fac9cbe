"""A new template's folder, made from another one: manifest, script, README and golden scripts.

Nothing that is there is ever replaced, and of a folder that cannot be made whole nothing is left.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from fsdpkit.config.as_toml import inline
from fsdpkit.config.template import Parameter, Template, TemplateManifest
from fsdpkit.errors import StorageError, UsageError
from fsdpkit.publishing import template_goldens as goldens

_VERSION = "1.0.0"
PLACEHOLDERS = ("say here what it does differently", "Say here, for the people who submit with it")
"""What a new template's description and README.md ask their author to replace."""


def new_template(name: str, source: Template, parent: Path) -> Path:
    """Make the folder `name` in `parent`. Raises UsageError for a name that no template can have,
    StorageError if it is there or cannot be written."""
    try:
        manifest = msgspec.convert(
            msgspec.to_builtins(source.manifest)
            | {"name": name, "version": _VERSION, "description": _described(source.manifest)},
            TemplateManifest,
        )
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{name[:60]!r} is no template's name: small letters, digits and dashes, a letter in "
            "front, at most 41 characters"
        ) from error
    target = parent.absolute() / name
    try:
        target.mkdir()
    except FileExistsError as error:
        raise StorageError(f"{target} is there already, and nothing was changed") from error
    except OSError as error:
        raise StorageError(f"{target} cannot be made: {error.strerror}") from error
    try:
        _fill(target, manifest, source)
    except BaseException as error:
        shutil.rmtree(target, ignore_errors=True)
        if isinstance(error, OSError):
            raise StorageError(f"{target} cannot be made: {error.strerror}") from error
        raise
    return target


def _described(source: TemplateManifest) -> str:
    """Not the source's own sentence, which would be wrong with the first change."""
    return f"Made from {source.name} {source.version}; {PLACEHOLDERS[0]}."


def _fill(folder: Path, manifest: TemplateManifest, source: Template) -> None:
    (folder / "template.toml").write_text(manifest_text(manifest), encoding="utf-8")
    for name, content in source.parts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "README.md").write_text(_readme(manifest, source.manifest), encoding="utf-8")
    template = replace(source, manifest=manifest, dir=folder, layer="path")
    goldens.update(template, goldens.FIRST)


# ---- template.toml


_ABOUT = """\
# What jobs and sites may set of this template, and which version of it this is.
# Raise `version` with each change: a fix is 1.0.1, a new parameter 1.1.0, and what may break a job
# that worked is 2.0.0. Then: fsdpkit template lint . && fsdpkit template test .
"""
_ABOUT_PARAMETERS = """
# Each parameter has a type (bool, int, float, str), one sentence of help with the unit, and bounds:
# minimum and maximum for numbers, choices, or a pattern for text. A value outside is refused before
# anything is queued. Without a default it is unset, which the template tests with `is none`.
"""


def manifest_text(manifest: TemplateManifest) -> str:
    """`template.toml` of the manifest, with comments for whoever edits it."""
    lines = [f"{key} = {inline(getattr(manifest, key))}" for key in ("schema", "name", "version")]
    text = _ABOUT + "\n".join([*lines, f"description = {inline(manifest.description)}", ""])
    if manifest.parameters:
        text += _ABOUT_PARAMETERS
    for name, parameter in manifest.parameters.items():
        text += f"\n[parameters.{name}]\n" + "".join(_parameter_lines(parameter))
    return text


def _parameter_lines(parameter: Parameter) -> Iterator[str]:
    for field in ("type", "default", "choices", "minimum", "maximum", "pattern", "help"):
        value = getattr(parameter, field)
        if value is not None and value != []:
            if parameter.type == "int" and field in ("minimum", "maximum") and value == int(value):
                value = int(value)
            yield f"{field} = {inline(value)}\n"


# ---- README.md


def _readme(manifest: TemplateManifest, source: TemplateManifest) -> str:
    rows = "".join(_row(name, parameter) for name, parameter in manifest.parameters.items())
    parameters = _TABLE + rows if rows else "It has none.\n"
    return _README.format(
        name=manifest.name,
        source=f"{source.name} {source.version}",
        placeholder=PLACEHOLDERS[1],
        parameters=parameters,
    )


_TABLE = """\
A job sets them in `[parameters]` or with `--set parameters.NAME=VALUE`, a site in its
profile's `[parameters]`.

| name | type | default | meaning |
|---|---|---|---|
"""


def _row(name: str, parameter: Parameter) -> str:
    default = "unset" if parameter.default is None else f"`{inline(parameter.default)}`"
    meaning = parameter.help.replace("|", r"\|")
    return f"| `{name}` | {_kind(parameter)} | {default} | {meaning} |\n"


def _kind(parameter: Parameter) -> str:
    if parameter.choices:
        return " or ".join(f"`{inline(c)}`" for c in parameter.choices)
    bounds = [
        f"{word} {bound:.15g}"
        for word, bound in (("from", parameter.minimum), ("to", parameter.maximum))
        if bound is not None
    ]
    return " ".join([parameter.type, *bounds])


_README = """\
# The template `{name}`

Made from {source}. {placeholder}: what it does differently, on which
clusters it was tried, and whom to ask.

## Parameters

{parameters}
## For whoever changes it

| file | what it is |
|---|---|
| `template.toml` | name, version and parameters |
| `job.sbatch.j2` | the script; `fsdpkit template context {name}` lists the names it can use |
| `golden/` | the script for some sites and jobs, made by `fsdpkit template test . --update` |

1. Edit, and raise `version`.
2. `fsdpkit template lint .` prints the checklist.
3. `fsdpkit template test .` renders it for every profile and every edge of its parameters, and runs
   it on this machine; on a cluster, `--canary` runs a job of two nodes.
4. `fsdpkit template diff OLD .` shows what changes in the scripts.
"""
