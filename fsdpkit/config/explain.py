"""What is wrong with a value, in words for the person who wrote it.

msgspec says "Expected `int`, got `str` - at `$.partitions[...].max_nodes`"; a person needs the key
with the partition's own name, what is allowed, and the nearest spelling.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from fsdpkit.config.spelling import nearest
from fsdpkit.listing import first_of

_WHERE = re.compile(r" - at `(?P<key>key` in `)?\$(?P<path>.*)`$", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>[^.\[\]]+)|\[(?P<index>\.\.\.|\d+)\]")
_LONGEST_SHOWN = 60


class KeyPlace(msgspec.Struct, frozen=True):
    """A key in a file: how a person writes it, its type, its sentence, and what stands there."""

    dotted: str
    annotation: Any
    description: str
    value: Any

    def below(self, name: str, annotation: Any, value: Any) -> KeyPlace:
        dotted = f"{self.dotted}.{name}" if self.dotted else name
        return KeyPlace(dotted, annotation, description_of(annotation), value)


def alternatives(annotation: Any) -> list[Any]:
    """The alternatives of a type, without Annotated, None and UNSET."""
    if hasattr(annotation, "__metadata__"):
        return alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [t for arg in get_args(annotation) for t in alternatives(arg)]
    return [] if annotation in (type(None), msgspec.UnsetType) else [annotation]


def is_optional(annotation: Any) -> bool:
    """May the value be None, that is: may a person unset it?"""
    if hasattr(annotation, "__metadata__"):
        return is_optional(get_args(annotation)[0])
    return type(None) in get_args(annotation)


def struct_in(annotation: Any) -> type[msgspec.Struct] | None:
    """The one table type among the alternatives."""
    kinds = alternatives(annotation)
    return next((t for t in kinds if isinstance(t, type) and issubclass(t, msgspec.Struct)), None)


def fields_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Annotations of a table's keys."""
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}


def description_of(annotation: Any) -> str:
    """The sentence beside a field, or nothing."""
    notes = getattr(annotation, "__metadata__", ())
    return next((n.description for n in notes if getattr(n, "description", None)), "")


def explain(kind: Any, message: str, values: Mapping[str, Any]) -> tuple[str, str]:
    """The dotted key that `message` (msgspec's, or ours from `__post_init__`) is about, and why."""
    where = _WHERE.search(message)
    text = message[: where.start()] if where else message
    place = _locate(kind, where["path"] if where else "", values)
    if where and where["key"]:
        return _wrong_name(place, text)
    struct = struct_in(place.annotation)
    known = fields_of(struct) if struct else {}
    if unknown := re.search(r"unknown field `(?P<name>.*?)`", text, re.DOTALL):
        name = unknown["name"]
        return place.below(name, Any, None).dotted, no_such_key(name, place.dotted, known, kind)
    if missing := re.search(r"missing required field `(?P<name>.*?)`", text):
        sentence = _aside(description_of(known.get(missing["name"])))
        return place.below(missing["name"], Any, None).dotted, f"is missing{sentence}"
    name, colon, reason = text.partition(": ")
    if colon and name in known:  # __post_init__ names the key it found wrong
        return place.below(name, known[name], None).dotted, reason
    return place.dotted or "the file", why(text, place.annotation, place.value)


def _keys(kind: Any, above: str = "") -> Iterator[str]:
    """The dotted keys of a file that are no table."""
    struct = struct_in(kind)
    for name, annotation in (fields_of(struct) if struct else {}).items():
        if struct_in(annotation) is None:
            yield f"{above}{name}"
        else:
            yield from _keys(annotation, f"{above}{name}.")


def no_such_key(name: str, table: str, known: Mapping[str, Any], whole: Any) -> str:
    """There is no such key, and which there are: of that name elsewhere in the whole file, else
    in the table."""
    within = f" in [{table}]" if table else ""
    if others := [key for key in _keys(whole) if key.rpartition(".")[2] == name]:
        return f"there is no key {name!r}{within}. Did you mean {' or '.join(others[:3])}?"
    near = nearest(name, known) or f" Known: {first_of(known, 8)}."
    return f"there is no key {name!r}{within}.{near}"


def why(text: str, annotation: Any, value: Any) -> str:
    """msgspec's `text` about `value`, as what the value must be."""
    sentence = _aside(description_of(annotation))
    words = [w for t in alternatives(annotation) if get_origin(t) is Literal for w in get_args(t)]
    if words:
        near = nearest(value, words) if isinstance(value, str) else ""
        listed = ", ".join(map(str, words))
        kinds = [t.__name__ for t in alternatives(annotation) if t in (int, float, bool)]
        numbers = "".join(f" or {_KINDS[kind]}" for kind in kinds)
        one_of = "one of " if len(words) > 1 else ""
        return f"must be {one_of}{listed}{numbers}, not {_shown(value)}.{near}"
    if expected := re.fullmatch(r"Expected `(?P<type>[^`]*)`, got .*", text):
        kinds = [k for k in expected["type"].split(" | ") if k != "null"]
        names = " or ".join(_KINDS.get(k, k) for k in kinds)
        return f"must be {names}, not {_shown(value)}{sentence}"
    if bound := re.fullmatch(r"Expected `\w+` (?P<how>[<>]=?) (?P<limit>\S+)", text):
        limit = bound["limit"].removesuffix(".0")
        return f"must be {_BOUNDS[bound['how']]} {limit}, not {_shown(value)}{sentence}"
    if pattern := re.fullmatch(r"Expected `str` matching regex '(?P<regex>.*)'", text, re.DOTALL):
        mended = re.sub(r"[^\w.+-]+", "-", str(value), flags=re.ASCII).strip("-")
        such = f"; {mended!r} would do" if re.fullmatch(pattern["regex"], mended) else ""
        return f"must match {pattern['regex']}, not {_shown(value)}{sentence}{such}"
    if length := re.fullmatch(r"Expected `str` of length (?P<how>[<>]=) (?P<limit>\d+)", text):
        if length["limit"] == "1":
            return f"must not be empty{sentence}"
        limit = f"{_BOUNDS[length['how']]} {length['limit']} characters"
        return f"must have {limit}, not {len(str(value))}{sentence}"
    return f"{text[:1].lower()}{text[1:]}{sentence}"


_KINDS = {
    "int": "a whole number",
    "str": "text",
    "bool": "true or false",
    "float": "a number",
    "array": "a list",
    "object": "a table",
}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


def _aside(sentence: str) -> str:
    return f" ({sentence.rstrip('.')})" if sentence else ""


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "a list"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _locate(kind: Any, path: str, values: Any) -> KeyPlace:
    """Follow msgspec's path; where it says `[...]`, find the entry that does not convert."""
    place = KeyPlace("", kind, "", values)
    for step in _STEP.finditer(path):
        if step["name"]:
            struct = struct_in(place.annotation)
            annotation = fields_of(struct).get(step["name"], Any) if struct else Any
            value = place.value.get(step["name"]) if isinstance(place.value, Mapping) else None
            place = place.below(step["name"], annotation, value)
        elif step["index"] == "..." and isinstance(place.value, Mapping):
            inner = _arguments(place.annotation)[-1]
            name = _first_wrong(place.value, lambda entry: entry[1], inner)
            place = place.below(name, inner, place.value.get(name))
        else:
            inner = _arguments(place.annotation)[0]
            items = place.value if isinstance(place.value, list) else []
            number = int(step["index"]) if step["index"].isdigit() else 0
            value = items[number] if number < len(items) else None
            place = KeyPlace(f"{place.dotted}[{number}]", inner, place.description, value)
    return place


def _wrong_name(place: KeyPlace, text: str) -> tuple[str, str]:
    """A table whose keys are names of the person's choice holds one that is no such name."""
    kind = _arguments(place.annotation)[0]
    name = _first_wrong(place.value, lambda entry: entry[0], kind)
    return place.below(name, Any, None).dotted, f"this name {why(text, kind, name)}"


def _arguments(annotation: Any) -> tuple[Any, ...]:
    return next((get_args(t) for t in alternatives(annotation) if get_args(t)), (Any,))


def _first_wrong(
    table: Mapping[str, Any], part: Callable[[tuple[str, Any]], Any], kind: Any
) -> str:
    for entry in table.items():
        try:
            msgspec.convert(part(entry), kind, strict=True)
        except msgspec.ValidationError:
            return entry[0]
    return "…"
