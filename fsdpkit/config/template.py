"""A template's manifest: its version and the typed parameters that jobs and sites may set."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fsdpkit.config import assets
from fsdpkit.config.assets import nearest
from fsdpkit.config.loading import Layered, build, read_toml
from fsdpkit.errors import ConfigError

Scalar = bool | int | float | str
_TYPES: dict[str, type[bool] | type[int] | type[float] | type[str]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
}


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One value a job or site may set, with the bounds an admin gives it."""

    type: Literal["bool", "int", "float", "str"]
    help: Annotated[str, Meta(min_length=1, description="One plain sentence, with the unit.")]
    default: Scalar | None = None
    choices: list[Scalar] = []
    minimum: float | None = None
    maximum: float | None = None
    pattern: Annotated[str | None, Meta(description="Regular expression, whole value.")] = None


class TemplateManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`template.toml`."""

    schema: Literal["fsdpkit.template/1"]
    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,40}$")]
    version: Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+$")]
    description: str
    parameters: dict[Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*$")], Parameter] = {}


@dataclass(frozen=True)
class Template:
    """A template found on disk. `sha256` covers the manifest and every `.j2` file."""

    manifest: TemplateManifest
    dir: Path
    layer: str
    sha256: str


def load_template(name: str) -> Template:
    """The nearest template of this name. Raises NotFoundError or ConfigError."""
    layer, directory = assets.find("template", name)[-1]
    layered = Layered()
    path = directory / "template.toml"
    layered.overlay(read_toml(path), str(path))
    manifest = build(TemplateManifest, layered, f"template {name}")
    if manifest.name != name:
        raise ConfigError(f"{path}: name is {manifest.name!r}, but the directory is {name!r}")
    for key, parameter in manifest.parameters.items():
        if parameter.default is not None:
            _check(key, parameter.default, parameter, f"{path}: default")
    return Template(manifest, directory, layer.name, _digest(directory))


def parameter_values(
    manifest: TemplateManifest, *given: tuple[str, Mapping[str, Scalar]]
) -> dict[str, Scalar | None]:
    """Every parameter's value: its default under `given` (origin, values), the last one winning.

    Raises ConfigError naming origin, parameter and what is allowed.
    """
    values: dict[str, Scalar | None] = {k: p.default for k, p in manifest.parameters.items()}
    for origin, assignments in given:
        for key, value in assignments.items():
            if key not in manifest.parameters:
                raise ConfigError(
                    f"{origin}: template {manifest.name} has no parameter {key!r}."
                    f"{nearest(key, manifest.parameters)} Known: {', '.join(manifest.parameters)}."
                )
            _check(key, value, manifest.parameters[key], origin)
            values[key] = value
    return values


def _check(key: str, value: Scalar, parameter: Parameter, origin: str) -> None:
    wanted = _TYPES[parameter.type]
    # bool is an int to Python, never to a person; an int may stand for a float.
    fits = type(value) is wanted or (wanted is float and type(value) is int)
    problem = None
    if not fits:
        problem = f"is not of type {parameter.type}"
    elif parameter.choices and value not in parameter.choices:
        problem = f"is not one of {', '.join(map(str, parameter.choices))}"
    elif parameter.minimum is not None and float(value) < parameter.minimum:
        problem = f"is below {parameter.minimum:g}"
    elif parameter.maximum is not None and float(value) > parameter.maximum:
        problem = f"is above {parameter.maximum:g}"
    elif parameter.pattern is not None and not re.fullmatch(parameter.pattern, str(value)):
        problem = f"does not match {parameter.pattern}"
    if problem:
        raise ConfigError(f"{origin}: parameter {key} = {value!r} {problem}. ({parameter.help})")


def _digest(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted([directory / "template.toml", *directory.rglob("*.j2")]):
        digest.update(path.relative_to(directory).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()
