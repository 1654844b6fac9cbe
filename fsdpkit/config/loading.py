"""From TOML files and `--set` to a typed value, layer over layer, with messages for a person.

A value's origin (the file or "command line") travels beside it in `origins`, so that an error and
the script's header can say where it came from.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import msgspec

from fsdpkit.bounded import TABLES, TEXT, TOML_BYTES, TOML_DOTS, read_bytes
from fsdpkit.config.explain import (
    alternatives,
    explain,
    fields_of,
    is_optional,
    no_such_key,
    struct_in,
    why,
)
from fsdpkit.config.key_changes import without_unknown
from fsdpkit.errors import ConfigError, storage_errors
from fsdpkit.listing import first_of

if TYPE_CHECKING:
    from fsdpkit.config.layers import AssetLayer
    from fsdpkit.config.published.centre import Release

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef,import-not-found,unused-ignore]

T = TypeVar("T", bound=msgspec.Struct)

_LARGEST = 2**63 - 1
CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""What no value may hold: a line break would be a new line of the script, and the line separators
U+0085, U+2028 and U+2029 are one to many tools; a lone surrogate (a file name that is no UTF-8)
cannot be written."""


FileKind = Literal["job", "site", "run", "sweep", "script"]


class FileTables(dict[str, Any]):
    """The tables of one file, with its path and the bytes that were read. release: as what it was
    published and verified. bound: what belongs to it and stands elsewhere, as the directory that a
    run was submitted from does; trust in the file is trust in both."""

    def __init__(
        self,
        tables: Mapping[str, Any],
        path: Path,
        content: bytes,
        release: Release | None = None,
        *,
        kind: FileKind = "job",
        bound: bytes = b"",
    ) -> None:
        super().__init__(tables)
        self.path = path
        self.content = content
        self.release = release
        self.kind = kind
        self.bound = bound

    @property
    def sha256(self) -> str:
        return hashlib.sha256(
            self.content + (b"\0" + self.bound if self.bound else b"")
        ).hexdigest()


class Layered(msgspec.Struct):
    """A nested dictionary and, for each dotted key in it, where the value came from."""

    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    files: dict[Path, FileTables] = {}
    """What was read of each file, so that trust in it is trust in just that."""
    warnings: list[str] = []
    """What was read otherwise than it stands in a file, or not at all, as sentences."""

    def overlay(self, tables: FileTables, origin: str) -> None:
        """Lay a file over what is there: tables merge key by key, all else is replaced."""
        self.files[tables.path] = tables
        self.say(tables, origin)

    def say(self, values: Mapping[str, Any], origin: str) -> None:
        """The same for what stands in no file: what was typed, or is built in."""
        _merge(self.values, values, origin, "", self.origins)

    def leave_out_unknown(self, kind: type[msgspec.Struct]) -> list[str]:
        """Forget keys that `kind` does not have. Returns them, dotted."""
        self.values, keys = without_unknown(kind, self.values)
        return keys

    @property
    def releases(self) -> list[Release]:
        """Of the files, those that were published and verified."""
        return [tables.release for tables in self.files.values() if tables.release is not None]

    def origin(self, key: str) -> str:
        """Where `key` was set: its own origin, or that of the table around it."""
        while key:
            if key in self.origins:
                return self.origins[key]
            key = key.rpartition(".")[0]
        return "default"

    def source(self, key: str) -> str:
        """Which file a person must open to correct `key`, even if the key is not in it."""
        table = re.sub(r"\[\d+\]", "", key)
        while (found := self.origin(table)) == "default" and table:
            below = [o for k, o in self.origins.items() if k.startswith(f"{table}.")]
            if below:
                return below[-1]
            table = table.rpartition(".")[0]
        return found if found != "default" else next(reversed(self.origins.values()), "default")


def _merge(
    into: dict[str, Any], values: Mapping[str, Any], origin: str, path: str, origins: dict[str, str]
) -> None:
    if path.count(".") > TABLES:
        raise ConfigError(f"{path[:80]}… ({origin}): tables in tables, {TABLES} deep")
    for key, value in values.items():
        dotted = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            below = into.get(key)
            into[key] = below = dict(below) if isinstance(below, Mapping) else {}
            _merge(below, value, origin, dotted, origins)
        else:
            into[key] = value
            origins[dotted] = origin


def read_toml(path: Path) -> FileTables:
    """The tables of one file. Raises ConfigError naming the file, and the line if known."""
    with storage_errors(path, "read", ConfigError):
        content = read_bytes(path, TOML_BYTES, links=True)
    return tables_of(content, path)


def read_place(layer: AssetLayer, path: Path) -> FileTables:
    """The tables of a file that was found; of a published one as signed. Raises ConfigError."""
    layer.refuse()
    if layer.release is None:
        return read_toml(path)
    from fsdpkit.config.published.centre import content_of

    content = content_of(layer.release)
    return tables_of(content[path.name], path, layer.release)


def tables_of(content: bytes, path: Path, release: Release | None = None) -> FileTables:
    """The tables that a file's bytes hold. Raises ConfigError."""
    try:
        return FileTables(toml_in(content.decode()), path, content, release)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 (byte {error.start})") from error
    except ValueError as error:  # TOMLDecodeError, or a number of thousands of digits
        raise ConfigError(f"{path}: is not valid TOML: {error}") from error


def toml_in(text: str) -> dict[str, Any]:
    """The tables that a text describes. Raises ValueError, also for what would take long to read:
    the time for a dotted key grows with the square of its parts."""
    if sum(line.count(".") ** 2 for line in text.split("\n")) > TOML_DOTS:
        raise ValueError("its keys have too many parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists in lists, too deep to read") from None


def dotted(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of a table and the tables in it, by its dotted key; an empty one is a value."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def build(kind: type[T], layered: Layered, what: str) -> T:
    """`layered` as a checked `kind`; `what` names the thing in messages ("job t5"). Raises
    ConfigError with the origin, the key, what is allowed and the nearest spelling."""
    _check_schema(kind, layered, what)
    _check_strings(layered.values, layered, "", what)
    try:
        return msgspec.convert(layered.values, kind, strict=True)
    except msgspec.ValidationError as error:
        key, reason = explain(kind, str(error), layered.values)
        raise ConfigError(f"{what}: {key} ({layered.source(key)}): {reason}") from error


def parsed(key: str, parse: Callable[[str], Any], text: str | None) -> None:
    """In a `__post_init__`: refuse a `text` that `parse` refuses, naming its key."""
    if text is not None:
        try:
            parse(text)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error


def _check_schema(kind: type[msgspec.Struct], layered: Layered, what: str) -> None:
    """A file of another kind or of a newer fsdpkit is told so before its keys are found strange."""
    given, annotation = layered.values.get("schema"), fields_of(kind).get("schema")
    if annotation is None or not isinstance(given, str):
        return
    wanted = next(iter(get_args(alternatives(annotation)[0])))
    name, _, version = wanted.rpartition("/")
    given_name, _, given_version = given.rpartition("/")
    if given == wanted or (given_name != name and not given_name.startswith("fsdpkit.")):
        return
    where = f"{what}: schema ({layered.source('schema')}): {given!r}"
    if given_name != name:
        raise ConfigError(f"{where} is another kind of file; this one must be {wanted!r}")
    if given_version.isdigit() and int(given_version[:9]) > int(version):
        raise ConfigError(
            f"{where} was written for a newer fsdpkit; this one reads {wanted!r}: update fsdpkit"
        )
    raise ConfigError(f"{where} is not a version that this fsdpkit reads; write {wanted!r}")


def _check_strings(value: object, layered: Layered, path: str, what: str) -> None:
    """No text, name or number that cannot stand in a script, wherever in the file it is."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            dotted = f"{path}.{key}" if path else str(key)
            _check_text(str(key), layered, path, what)
            _check_strings(below, layered, dotted, what)
    elif isinstance(value, list):
        for below in value:
            _check_strings(below, layered, path, what)
    elif isinstance(value, str):
        _check_text(value, layered, path, what)
    elif isinstance(value, int) and abs(value) > _LARGEST:
        where = _where(layered, path, what)
        raise ConfigError(f"{where}: a number of more than 64 bits, which TOML does not have")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{what}: {path} ({layered.source(path)}): {value} is not a number")


def _check_text(text: str, layered: Layered, path: str, what: str) -> None:
    if found := CONTROL_CHARACTER.search(text):
        raise ConfigError(
            f"{_where(layered, path, what)}: holds the control character {found.group()!r}; "
            "a line break there would be a new line of the script"
        )
    if len(text) > TEXT:
        raise ConfigError(
            f"{_where(layered, path, what)}: {len(text)} characters; at most {TEXT} are allowed"
        )


def _where(layered: Layered, path: str, what: str) -> str:
    """Where a mistake is; worked out for mistakes alone, for that looks at every key."""
    return f"{what}: {path or 'the file'} ({layered.source(path)})"


def overrides(kind: type[msgspec.Struct], assignments: Iterable[str]) -> dict[str, Any]:
    """`--set a.b=c` texts as nested tables, each value read as the type its key has. Lists, tables
    and free-form values are read as TOML; nothing after the `=` unsets a key that may be unset.
    Raises ConfigError."""
    result: dict[str, Any] = {}
    for assignment in assignments:
        if found := CONTROL_CHARACTER.search(assignment):
            raise ConfigError(
                f"--set {assignment[:60]!r}: holds the control character {found.group()!r}"
            )
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(
                f"--set {assignment[:60]!r}: write --set KEY=VALUE, e.g. training.steps=50"
            )
        parts = key.split(".")
        value = _read_value(_annotation_at(kind, parts, key), text, key)
        table = result
        for part in parts[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {key}: another --set gave a part of this key a value")
        table[parts[-1]] = value
    return result


def _annotation_at(kind: Any, parts: list[str], key: str) -> Any:
    """The annotation of a dotted key; Any below a free-form table."""
    here: Any = kind
    for depth, part in enumerate(parts):
        table = ".".join(parts[:depth])
        struct = struct_in(here)
        if struct is not None:
            known = fields_of(struct)
            if part not in known:
                raise ConfigError(f"--set {key}: {no_such_key(part, table, known, kind)}")
            here = known[part]
        elif here is not Any:
            free = next((t for t in alternatives(here) if (get_origin(t) or t) is dict), None)
            if free is None:
                raise ConfigError(f"--set {key}: {table!r} is a single value, it has no keys")
            here = (get_args(free) or (str, Any))[1]
    return here


def _read_value(annotation: Any, text: str, key: str) -> Any:
    kinds = alternatives(annotation)
    if struct := struct_in(annotation):
        known = first_of((f"{key}.{name}" for name in fields_of(struct)), 8)
        raise ConfigError(f"--set {key}: is a table; set one of its keys: {known}")
    if not text and is_optional(annotation):
        return None
    scalar = all(t in (int, float, bool, str) or get_origin(t) is Literal for t in kinds)
    if scalar and (str not in kinds or len(kinds) == 1) and annotation is not Any:
        if int in kinds and re.fullmatch(r"[0-9]+(_[0-9]+)+", text):  # as TOML and Python have it
            text = text.replace("_", "")
        try:
            return msgspec.convert(text.strip(), annotation, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"--set {key}: {why(str(error), annotation, text)}") from error
    try:
        value = toml_in(f"v = {text}")["v"]
    except ValueError:
        if annotation is Any or scalar:
            return text
        example = '["a", "b"]' if any(get_origin(t) is list for t in kinds) else '{x = "1"}'
        raise ConfigError(
            f"--set {key}: write the value as in TOML, such as {example}, not {text[:60]!r}"
        ) from None
    # What TOML reads as a date is text to a key that takes text.
    return text if scalar and not isinstance(value, bool | int | float | str) else value
