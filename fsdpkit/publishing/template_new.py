"""A new template's folder, made from another one: manifest, script, README and golden scripts.

Nothing that is there is ever replaced, and of a folder that cannot be made whole nothing is left.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec

from fsdpkit.config.as_toml import inline
from fsdpkit.config.loading import toml_in
from fsdpkit.config.template import Template, TemplateManifest
from fsdpkit.errors import ConfigError, StorageError, UsageError
from fsdpkit.publishing import template_goldens as goldens

_VERSION = "1.0.0"
PLACEHOLDERS = ("say here what it does differently", "Say here, for the people who submit with it")
"""What a new template's description and README.md ask their author to replace."""


def new_template(name: str, source: Template, parent: Path) -> Path:
    """Make the folder `name` in `parent`. Raises UsageError for a name that no template can have,
    StorageError if it is there or cannot be written, ConfigError for a manifest unlike ours."""
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
    (folder / "template.toml").write_text(_manifest_text(manifest, source), encoding="utf-8")
    for name, content in source.parts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    helps = "".join(
        f"| `{name}` | {one.help.replace('|', '&#124;')} |\n"
        for name, one in manifest.parameters.items()
    )
    about = f"{source.manifest.name} {source.manifest.version}. {PLACEHOLDERS[1]}"
    readme = _README.format(name=manifest.name, about=about, helps=helps)
    (folder / "README.md").write_text(readme, encoding="utf-8")
    template = replace(source, manifest=manifest, dir=folder, layer="path")
    goldens.update(template, goldens.FIRST)


def _manifest_text(manifest: TemplateManifest, source: Template) -> str:
    """The source's own with its comments; three lines are new."""
    text = source.manifest_file.decode()
    for key in ("name", "version", "description"):
        if old := re.search(rf"^{key}[ \t]*=.*$", text, re.M):
            new = f"{key} = {inline(getattr(manifest, key))}"
            text = text[: old.start()] + new + text[old.end() :]
    with contextlib.suppress(ValueError, msgspec.ValidationError):
        if msgspec.convert(toml_in(text), TemplateManifest) == manifest:
            return text
    raise ConfigError(
        f"{source.dir / 'template.toml'}: name, version and description must each begin a line "
        "and end on it"
    )


_README = """\
# The template `{name}`

Made from {about}: what it does differently, on which
clusters it was tried, and whom to ask.

| parameter | meaning |
|---|---|
{helps}
After each change: raise `version` (a fix is 1.0.1, a new parameter 1.1.0, what may break a job that
worked 2.0.0), then `fsdpkit template lint .` and `fsdpkit template test . --update`.
"""
