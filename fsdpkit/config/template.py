"""A template's manifest: its version and the typed parameters that jobs and sites may set."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fsdpkit.bounded import PARAMETERS, TEMPLATE_BYTES, TEMPLATE_FILES
from fsdpkit.config import assets
from fsdpkit.config.fields import Scalar, Text, doc
from fsdpkit.config.layers import AssetLayer
from fsdpkit.config.linear_regex import LinearRegex, matches
from fsdpkit.config.loading import Layered, build, parsed, read_toml, tables_of
from fsdpkit.config.published.centre import Release, content_of
from fsdpkit.config.spelling import nearest
from fsdpkit.errors import ConfigError, NotFoundError, storage_errors

PART_SUFFIX = ".j2"
_TYPES: dict[str, type[bool] | type[int] | type[float] | type[str]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
}


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One value a job or site may set, with the bounds an admin gives it."""

    type: Annotated[Literal["bool", "int", "float", "str"], doc("Type of the value.")]
    help: Annotated[str, doc("One plain sentence, with the unit.", min_length=1)]
    default: Annotated[Scalar | None, doc("Value when nobody sets one.")] = None
    choices: Annotated[list[Scalar], doc("The only values allowed.")] = []
    minimum: Annotated[float | None, doc("Least number allowed.")] = None
    maximum: Annotated[float | None, doc("Greatest number allowed.")] = None
    pattern: Annotated[
        str | None, doc("Regular expression, whole text; no lookaround, no references.")
    ] = None

    def __post_init__(self) -> None:
        parsed("pattern", LinearRegex, self.pattern)
        if self.pattern is not None and self.type != "str":
            raise ValueError(f"pattern: is for text, but the type is {self.type}")
        for key in ("minimum", "maximum"):
            if getattr(self, key) is not None and self.type not in ("int", "float"):
                raise ValueError(f"{key}: is for numbers, but the type is {self.type}")


class TemplateManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`template.toml`."""

    schema: Annotated[Literal["fsdpkit.template/1"], doc("Format of this file.")]
    name: Annotated[
        str, doc("Its name, the same as its folder's.", pattern=r"^[a-z][a-z0-9-]{0,40}$")
    ]
    version: Annotated[str, doc("Its version, such as 1.0.0.", pattern=r"^\d+\.\d+\.\d+$")]
    description: Annotated[Text, doc("One sentence for `fsdpkit templates`.")]
    parameters: Annotated[
        dict[Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*$")], Parameter],
        doc("What jobs and sites may set, by name.", max_length=PARAMETERS),
    ] = {}


@dataclass(frozen=True)
class Template:
    """A template as read: `sha256` covers what is rendered, whatever becomes of the files."""

    manifest: TemplateManifest
    dir: Path
    layer: str
    parts: Mapping[str, bytes]
    """Its `.j2` files, by their path in the folder."""
    manifest_file: bytes = b""
    release: Release | None = None
    """Of one that was published and verified."""

    @property
    def sha256(self) -> str:
        """The checksum of the manifest and of every part."""
        pieces = [msgspec.json.encode(self.manifest, order="deterministic")]
        for name, content in sorted(self.parts.items()):
            pieces += [os.fsencode(name), content]
        each = b"".join(hashlib.sha256(piece).digest() for piece in pieces)
        return hashlib.sha256(each).hexdigest()


def load_template(name: str) -> Template:
    """The nearest template of this name, which may be `NAME@PIN`, or the one in a directory (a name
    with a slash). Raises NotFoundError or ConfigError."""
    if "/" in name:
        directory = Path(os.path.abspath(name))
        if not directory.is_dir():
            raise NotFoundError(f"there is no folder {directory}")
        assets.refuse_behind_the_index(directory)
        return template_in(directory, AssetLayer("path", directory))
    layer, directory = assets.find("template", name)[-1]
    return template_in(directory, layer)


def template_in(directory: Path, layer: AssetLayer) -> Template:
    """The template in a folder that was found in `layer`. Raises ConfigError."""
    layer.refuse()
    layered, name = Layered(), directory.name
    path = directory / "template.toml"
    if layer.release is None:
        tables, parts = read_toml(path), _read_parts(directory)
    else:
        content = _below(name, content_of(layer.release))
        tables = tables_of(content.pop("template.toml", b""), path)
        parts = {file: part for file, part in content.items() if file.endswith(PART_SUFFIX)}
    layered.overlay(tables, str(path))
    manifest = build(TemplateManifest, layered, f"template {name}")
    if manifest.name != directory.name:
        raise ConfigError(
            f"{path}: name is {manifest.name!r}, but the directory is {directory.name!r}"
        )
    for key, parameter in manifest.parameters.items():
        if parameter.default is not None:
            _check(key, parameter.default, parameter, f"{path}: default")
    if layer.release is not None and manifest.version != layer.release.version:
        raise ConfigError(
            f"{path}: version is {manifest.version}, published as {layer.release.version}"
        )
    return Template(manifest, directory, layer.name, parts, tables.content, layer.release)


def _below(folder: str, content: Mapping[str, bytes]) -> dict[str, bytes]:
    start = f"{folder}/"
    return {n.removeprefix(start): part for n, part in content.items() if n.startswith(start)}


def parameter_values(
    manifest: TemplateManifest, *given: tuple[str, Mapping[str, Scalar]]
) -> dict[str, Scalar | None]:
    """Every parameter's value: its default under `given` (origin, values), the last one winning.
    Raises ConfigError naming origin, parameter and what is allowed."""
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
    elif isinstance(value, str):
        if parameter.pattern is not None and not matches(parameter.pattern, value):
            problem = f"does not match {parameter.pattern}"
    elif parameter.minimum is not None and value < parameter.minimum:
        problem = f"is below {parameter.minimum:g}"
    elif parameter.maximum is not None and value > parameter.maximum:
        problem = f"is above {parameter.maximum:g}"
    if problem:
        raise ConfigError(f"{origin}: parameter {key} = {value!r} {problem}. ({parameter.help})")


def _read_parts(directory: Path) -> dict[str, bytes]:
    """Every `.j2` file of the folder. Raises ConfigError for what is no plain file inside it."""
    top = directory.resolve()
    parts: dict[str, bytes] = {}
    left = TEMPLATE_BYTES
    for count, path in enumerate(directory.rglob("*")):
        if count == TEMPLATE_FILES:
            raise ConfigError(
                f"{directory}: a template's folder holds at most {TEMPLATE_FILES} files"
            )
        if path.name.endswith(PART_SUFFIX):
            content = _content(path, top, left)
            left -= len(content)
            parts[path.relative_to(directory).as_posix()] = content
    return parts


def _content(path: Path, top: Path, most: int) -> bytes:
    with storage_errors(path, "read", ConfigError):
        if path.is_file() and path.resolve().is_relative_to(top):
            with path.open("rb") as file:
                content = file.read(most + 1)
            if len(content) <= most:
                return content
    raise ConfigError(
        f"{path}: a template's file is a plain file inside its folder, and all of them together are"
        f" at most {TEMPLATE_BYTES} bytes"
    )
