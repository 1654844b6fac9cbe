"""What `--json` printed, held to the JSON Schema that its `schema` names."""

from __future__ import annotations

import json
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
