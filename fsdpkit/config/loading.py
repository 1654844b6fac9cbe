"""From TOML files and `--set` to a typed value, layer over layer, with messages for a person.

A value's origin (the file or "command line") travels beside it in `origins`, so that an error and
the script's header can say where it came from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from fsdpkit.config.assets import nearest
from fsdpkit.errors import ConfigError

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef,import-not-found,unused-ignore]

T = TypeVar("T", bound=msgspec.Struct)
_MAX_FILE_BYTES = 1_000_000
_MAX_STRING = 4096
# Everything below the space and DEL; a line break in a value would be a new line of the script.
# The line separators U+0085, U+2028 and U+2029 end a line for many tools.
_CONTROL = re.compile("[\x00-\x1f\x7f\x80-\x9f\u2028\u2029]")


@dataclass
class Layered:
    """A nested dictionary and, for each dotted key in it, where the value came from."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def overlay(self, values: Mapping[str, Any], origin: str) -> None:
        """Lay `values` over what is there: tables merge key by key, all else is replaced."""
        _merge(self.values, values, origin, "", self.origins)

    def origin(self, key: str) -> str:
        """Where `key` was set: its own origin, or that of the table around it."""
        while key:
            if key in self.origins:
                return self.origins[key]
            key = key.rpartition(".")[0]
        return "default"


def _merge(
    into: dict[str, Any], values: Mapping[str, Any], origin: str, path: str, origins: dict[str, str]
) -> None:
    for key, value in values.items():
        dotted = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            below = into.get(key)
            into[key] = below = dict(below) if isinstance(below, Mapping) else {}
            _merge(below, value, origin, dotted, origins)
        else:
            into[key] = value
            origins[dotted] = origin


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of one file. Raises ConfigError naming the file, and the line if known."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {_MAX_FILE_BYTES} bytes; this is no such file")
        with open(path, "rb") as file:
            return dict(tomllib.load(file))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 (byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from error


def build(kind: type[T], layered: Layered, what: str) -> T:
    """`layered` as a checked `kind`; `what` names the thing in messages ("job t5").

    Raises ConfigError with the origin, the key, what is allowed and the nearest spelling.
    """
    _refuse_control_characters(layered.values, layered, "", what)
    try:
        return msgspec.convert(layered.values, kind, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(kind, str(error), layered, what)) from error


def overrides(kind: type[msgspec.Struct], assignments: Iterable[str]) -> dict[str, Any]:
    """`--set a.b=c` texts as nested tables, each value read as the type its key has.

    Lists, tables and free-form values are read as TOML. Raises ConfigError.
    """
    result: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(
                f"--set {assignment!r}: write --set KEY=VALUE, e.g. training.steps=50"
            )
        parts = key.split(".")
        value = _read_value(_type_at(kind, parts, key), text, key)
        table = result
        for part in parts[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {key}: another --set gave a part of this key a value")
        table[parts[-1]] = value
    return result


def keys_of(kind: type[msgspec.Struct]) -> list[str]:
    return [f.encode_name for f in msgspec.structs.fields(kind)]


def _strip(annotation: Any) -> list[Any]:
    """The alternatives of a type, without Annotated and None."""
    args = get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return _strip(args[0])
    if get_origin(annotation) in (Union, UnionType):
        return [t for a in args for t in _strip(a) if t is not type(None)]
    return [annotation]


def _is_struct(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def _type_at(kind: Any, parts: list[str], key: str) -> Any:
    """The annotation of a dotted key; Any below a free-form table."""
    here: Any = kind
    for depth, part in enumerate(parts):
        struct = next((t for t in _strip(here) if _is_struct(t)), None)
        if struct is None:
            table = next((t for t in _strip(here) if (get_origin(t) or t) is dict), None)
            if table is None and here is not Any:
                where = ".".join(parts[:depth])
                raise ConfigError(f"--set {key}: {where!r} is a single value, it has no keys")
            here = get_args(table)[1] if table is not None and get_args(table) else Any
            continue
        fields = {f.encode_name: f.type for f in msgspec.structs.fields(struct)}
        if part not in fields:
            where = f" in [{'.'.join(parts[:depth])}]" if depth else ""
            raise ConfigError(
                f"--set {key}: there is no key {part!r}{where}."
                f"{nearest(part, fields)} Known: {', '.join(fields)}."
            )
        here = fields[part]
    return here


def _read_value(annotation: Any, text: str, key: str) -> Any:
    alternatives = _strip(annotation)
    scalar = all(t in (int, float, bool, str) or get_origin(t) is Literal for t in alternatives)
    if any(_is_struct(t) for t in alternatives):
        known = ", ".join(
            f"{key}.{name}" for t in alternatives if _is_struct(t) for name in keys_of(t)
        )
        raise ConfigError(f"--set {key}: is a table; set one of its keys: {known}")
    if scalar and annotation is not Any:
        try:
            return msgspec.convert(text, annotation, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"--set {key}={text}: {_allowed(str(error))}") from error
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        if annotation is Any or str in alternatives:
            return text
        raise ConfigError(
            f'--set {key}={text}: write the value as in TOML, e.g. ["a", "b"] or {{x = "1"}}'
        ) from None


def _refuse_control_characters(value: Any, layered: Layered, path: str, what: str) -> None:
    if isinstance(value, Mapping):
        for key, below in value.items():
            dotted = f"{path}.{key}" if path else str(key)
            _refuse_control_characters(str(key), layered, dotted, what)
            _refuse_control_characters(below, layered, dotted, what)
    elif isinstance(value, list):
        for below in value:
            _refuse_control_characters(below, layered, path, what)
    elif isinstance(value, str):
        if found := _CONTROL.search(value):
            raise ConfigError(
                f"{what}: {path} ({layered.origin(path)}): holds the control character "
                f"{found.group()!r}; a line break there would be a new line of the script"
            )
        if len(value) > _MAX_STRING:
            raise ConfigError(
                f"{what}: {path} ({layered.origin(path)}): {len(value)} characters; "
                f"at most {_MAX_STRING} are allowed"
            )


_AT = re.compile(r" - at `(?:key in )?\$(?P<path>.*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>.*?)`")


def _explain(kind: type[msgspec.Struct], message: str, layered: Layered, what: str) -> str:
    """msgspec's message, with the file, the dotted key and the nearest known key."""
    at = _AT.search(message)
    path = at["path"].lstrip(".") if at else ""
    text = message[: at.start()] if at else message
    if unknown := _UNKNOWN.search(text):
        name = unknown["name"]
        dotted = f"{path}.{name}" if path else name
        known = _keys_at(kind, path)
        table = f" in [{path}]" if path else ""
        return (
            f"{what}: {dotted} ({_first_origin(layered, dotted)}): there is no key {name!r}{table}."
            f"{nearest(name, known)} Known: {', '.join(known)}."
        )
    return f"{what}: {path or 'the file'} ({_first_origin(layered, path)}): {_allowed(text)}"


def _first_origin(layered: Layered, dotted: str) -> str:
    plain = re.sub(r"\[.*?\]", "", dotted)
    below = (o for k, o in layered.origins.items() if k.startswith(f"{plain}.") or not plain)
    found = layered.origin(plain)
    return next(below, "default") if found == "default" else found


def _keys_at(kind: Any, path: str) -> list[str]:
    here: Any = kind
    for part in re.sub(r"\[\.\.\.\]|\[\d+\]", "", path).split(".") if path else []:
        struct = next((t for t in _strip(here) if _is_struct(t)), None)
        if struct is None:
            args = get_args(next(iter(_strip(here)), None))
            here = args[-1] if args else Any
            continue
        here = next((f.type for f in msgspec.structs.fields(struct) if f.encode_name == part), Any)
    for t in _strip(here):
        if _is_struct(t):
            return keys_of(t)
        for arg in get_args(t):
            if _is_struct(arg):
                return keys_of(arg)
    return []


_PLAIN_WORDS = {
    "`int`": "a whole number",
    "`str`": "text",
    "`bool`": "true or false",
    "`float`": "a number",
    "`array`": "a list",
    "`object`": "a table",
    "`null`": "nothing",
}


def _allowed(text: str) -> str:
    for technical, plain in _PLAIN_WORDS.items():
        text = text.replace(technical, plain)
    text = text.replace("Object missing required field", "is missing the key")
    return text[:1].lower() + text[1:]
