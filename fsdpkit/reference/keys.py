"""Every key of a file that people write, with its type, its default and its sentence.

The JSON Schema that msgspec makes of the model is what is read, so a field that the model gains is
on the page.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from fsdpkit.reference import markdown

Schema = Mapping[str, Any]
_ONE, _BY_NAME, _LISTED = "table", "tables by name", "tables in a list"
_TABLES = (_ONE, _BY_NAME, _LISTED)


class Key(NamedTuple):
    """One key, as it is written with `--set`."""

    dotted: str
    kind: str
    default: str
    sentence: str


def keys_of(struct: type[msgspec.Struct]) -> Iterator[Key]:
    """Of the table and of all tables in it, in the order of the model."""
    schema = msgspec.json.schema(struct)
    yield from _of_table(_followed(schema, schema), schema, "")


def _of_table(table: Schema, whole: Schema, above: str) -> Iterator[Key]:
    required = table.get("required", ())
    for name, given in table.get("properties", {}).items():
        about = _followed(given, whole)
        dotted = f"{above}{name}"
        below, kind = _table_in(about, whole)
        default = "required" if name in required else _default(given, below)
        sentence = str(given.get("description") or about.get("description") or "")
        if below is None:
            yield Key(dotted, _kind(about, whole), default, sentence)
        else:
            yield Key(dotted, kind, "", sentence)
            yield from _of_table(
                below, whole, f"{dotted}.NAME." if kind == _BY_NAME else f"{dotted}."
            )


def _table_in(about: Schema, whole: Schema) -> tuple[Schema | None, str]:
    """The table that the value is or holds, and how: itself, by free names, or in a list."""
    for one in about.get("anyOf", [about]):
        found = _followed(one, whole)
        if "properties" in found:
            return found, _ONE
        inner = found.get("additionalProperties")
        if isinstance(inner, Mapping) and "properties" in _followed(inner, whole):
            return _followed(inner, whole), _BY_NAME
        items = _followed(found.get("items") or {}, whole)
        if "properties" in items:
            return items, _LISTED
    return None, ""


def _followed(about: Schema, whole: Schema) -> Schema:
    while "$ref" in about:
        about = whole["$defs"][str(about["$ref"]).rpartition("/")[2]]
    return about


def _default(given: Schema, below: Schema | None) -> str:
    if below is not None or "default" not in given or given["default"] is None:
        return "" if below is not None else "unset"
    value = given["default"]
    return "none" if value in ([], {}, "") else markdown.code(json.dumps(value, ensure_ascii=False))


_KINDS = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}


def _kind(about: Schema, whole: Schema) -> str:
    """The type in words, with its bounds."""
    about = _followed(about, whole)
    if "enum" in about:
        return ", ".join(markdown.code(json.dumps(value)) for value in about["enum"])
    if "anyOf" in about:
        kinds = (_kind(one, whole) for one in about["anyOf"] if one.get("type") != "null")
        return " or ".join(dict.fromkeys(kinds))
    if about.get("type") == "array":
        return f"list of {_kind(about.get('items') or {}, whole)}"
    if about.get("type") == "object":
        inner = about.get("additionalProperties")
        if not isinstance(inner, Mapping) or not inner:
            return "table of anything"
        return f"table of {_kind(inner, whole)}"
    kind = _KINDS.get(str(about.get("type")), "anything")
    return f"{kind}{_bounds(about)}"


def _bounds(about: Schema) -> str:
    least = about.get("minimum", about.get("exclusiveMinimum"))
    most = about.get("maximum", about.get("exclusiveMaximum"))
    above = "more than " if "exclusiveMinimum" in about else "from "
    below = "less than " if "exclusiveMaximum" in about else "to "
    joint = " and " if "exclusiveMaximum" in about else " "
    told = [f"{above}{least:.15g}"] if least is not None else []
    told += [f"{below}{most:.15g}"] if most is not None else []
    return f", {joint.join(told)}" if told else ""


def page(title: str, head: str, struct: type[msgspec.Struct]) -> str:
    """A section for each table, with the keys that stand in it directly."""
    sections: dict[str, list[Key]] = {"": []}
    told: dict[str, str] = {}
    listed: set[str] = set()
    for key in keys_of(struct):
        if key.kind in _TABLES:
            path = f"{key.dotted}.NAME" if key.kind == _BY_NAME else key.dotted
            sections[path], told[path] = [], key.sentence
            listed |= {path} if key.kind == _LISTED else set()
        elif key.dotted != "schema":
            sections[key.dotted.rpartition(".")[0]].append(key)
    return markdown.page(title, [head], *_sections(sections, told, listed))


def _sections(
    sections: Mapping[str, list[Key]], told: Mapping[str, str], listed: Collection[str]
) -> Iterator[list[str]]:
    for path, keys in sections.items():
        rows = [
            (f"`{key.dotted}`", markdown.escaped(key.sentence), key.kind, key.default)
            for key in keys
        ]
        name = f"[[{path}]]" if path in listed else f"[{path}]"
        head = [f"## `{name}`", "", markdown.escaped(told[path]), ""] if path else []
        if rows:
            yield [*head, *markdown.table(("key", "meaning", "type", "default"), rows)]
