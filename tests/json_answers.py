"""What `--json` printed, held to the JSON Schema that its `schema` names."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import jsonschema
import msgspec

from fsdpkit.cli.json_schemas import all_answers, name_of, schema_of, struct_of

BY_NAME = {name_of(answer): answer for answer in all_answers()}


@cache
def _validator(name: str) -> Any:
    return jsonschema.Draft202012Validator(json.loads(schema_of(BY_NAME[name])))


def checked(text: str) -> dict[str, Any]:
    """The one object in `text`, whose fields are those of its schema, no more and no fewer."""
    told = json.loads(text, parse_constant=_refuse)
    name = told["schema"]
    _validator(name).validate(told)
    read = msgspec.convert(
        told, struct_of(BY_NAME[name]), strict=True, dec_hook=lambda kind, value: kind(value)
    )
    assert json.loads(msgspec.json.encode(read, enc_hook=str)) == told
    return dict(told)


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def unmarked(told: dict[str, Any], word: str) -> list[str]:
    """Where `word` stands in an answer whose schema does not say that the run printed it; what
    backticks quote does not count."""
    schema = json.loads(schema_of(BY_NAME[told["schema"]]))

    def look(value: Any, ways: list[dict[str, Any]], place: str) -> list[str]:
        ways = [leaf for way in ways for leaf in _leaves(way, schema["$defs"])]
        if any(way.get("x-printed") for way in ways):
            return []
        if isinstance(value, dict):
            other = [way["additionalProperties"] for way in ways if "additionalProperties" in way]
            found = []
            for key, each in value.items():
                own = [way["properties"][key] for way in ways if key in way.get("properties", {})]
                found += look(each, own or other, f"{place}.{key}")
            return found
        if isinstance(value, list):
            items = [way["items"] for way in ways if isinstance(way.get("items"), dict)]
            return [found for each in value for found in look(each, items, f"{place}[]")]
        outside = re.sub(r"`[^`]*`", "", value) if isinstance(value, str) else ""
        return [place] if word in outside else []

    return look(told, [schema], "")


def _leaves(way: Any, definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """A schema, or each of those that it refers to; marks beside a reference stay."""
    if not isinstance(way, dict):
        return []
    if "$ref" in way:
        return [way, *_leaves(definitions[way["$ref"].rpartition("/")[2]], definitions)]
    return [way, *(leaf for one in way.get("anyOf", []) for leaf in _leaves(one, definitions))]


def fields_of(name: str) -> dict[str, bool]:
    """All fields in an answer, at any depth: whether it holds what a run printed."""
    found: dict[str, bool] = {}
    for about in json.loads(schema_of(BY_NAME[name]))["$defs"].values():
        for key, way in about.get("properties", {}).items():
            found[key] = found.get(key, False) or "x-printed" in json.dumps(way)
    return found
