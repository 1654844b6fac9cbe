"""A typed record as facts for people: each field that is known, with its own sentence.

Nothing here names a field, so a field that the schema gains is shown as soon as it is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from markupsafe import Markup, escape

from fsdpkit.config.explain import description_of, fields_of
from fsdpkit.publishing.personal import default_of


@dataclass(frozen=True)
class ProfileFact:
    """`words`: the value as a person reads it; `given`: it is not the schema's default."""

    name: str
    meaning: str
    words: str
    given: bool


@dataclass(frozen=True)
class Table:
    """Records of one kind side by side; `columns` are the fields that any of them gives."""

    columns: Sequence[tuple[str, str]]
    """Each with its meaning."""
    rows: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True)
class Section:
    """A part of a record: plain facts, or a table of several."""

    title: str
    meaning: str
    facts: Sequence[ProfileFact]
    table: Table | None = None


def named(key: str) -> str:
    """`max_time` as `max time`; units and abbreviations as people write them."""
    words = key.strip("_").split("_")
    return re.sub(r"(Gbit|GB) \(s\)", r"\1/s", " ".join(_WRITTEN.get(word, word) for word in words))


def coded(text: str) -> Markup:
    """What stands between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


_WRITTEN = {
    "gpus": "GPUs",
    "gpu": "GPU",
    "cpus": "CPUs",
    "gb": "GB",
    "mb": "MB",
    "gbit": "Gbit",
    "qos": "QOS",
    "s": "(s)",
    "h": "(h)",
    "ip": "IP",
    "env": "variables",
}


def in_words(value: Any) -> str:
    """A value of a profile: `yes`, `12`, `a, b`, `A=1, B=2`."""
    if value is None or value is msgspec.UNSET:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={in_words(below)}" for key, below in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(in_words, value))
    if isinstance(value, msgspec.Struct):
        return ", ".join(f"{named(f.name)} {f.words}" for f in facts_of(value) if f.given)
    return str(value)


def facts_of(record: msgspec.Struct) -> list[ProfileFact]:
    """Of all plain fields that have a value."""
    found = []
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        words = in_words(value)
        if words:
            given = bool(value != default_of(field))
            found.append(ProfileFact(field.encode_name, description_of(field.type), words, given))
    return found


def sections(record: msgspec.Struct, leave_out: Sequence[str] = ()) -> list[Section]:
    """The record's own tables, and first what it says outside of any."""
    plain: list[ProfileFact] = []
    tables: list[Section] = []
    by_name = {fact.name: fact for fact in facts_of(record)}
    for name, annotation in fields_of(type(record)).items():
        value = getattr(record, name, None)
        if name in leave_out:
            continue
        title, meaning = named(name), description_of(annotation)
        if isinstance(value, msgspec.Struct):
            if facts := [fact for fact in facts_of(value) if fact.given]:
                tables.append(Section(title, meaning, facts))
        elif isinstance(value, Mapping) and any(
            isinstance(below, msgspec.Struct) for below in value.values()
        ):
            tables.append(Section(title, meaning, [], table_of(value)))
        elif name in by_name and by_name[name].given:
            plain.append(by_name[name])
    return [Section("in general", "", plain), *tables] if plain else tables


def table_of(records: Mapping[str, msgspec.Struct]) -> Table:
    """One row a record."""
    given = {name: {f.name: f for f in facts_of(record)} for name, record in records.items()}
    columns: dict[str, str] = {}
    for record in records.values():
        for field in msgspec.structs.fields(record):
            if any(field.encode_name in f and f[field.encode_name].given for f in given.values()):
                columns.setdefault(field.encode_name, description_of(field.type))
    rows = [
        (name, [facts[column].words if column in facts else "" for column in columns])
        for name, facts in given.items()
    ]
    return Table([*columns.items()], rows)
