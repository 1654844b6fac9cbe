"""The JSON Schemas in site/schema are the model's, and every key has its sentence."""

from __future__ import annotations

import json

import pytest

from fsdpkit.config.schema import SCHEMAS, schema_dir, schema_text


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_schema_in_the_repository_is_current(kind: str) -> None:
    path = schema_dir() / f"{kind}.schema.json"
    assert path.read_text(encoding="utf-8") == schema_text(kind), (
        "the model changed: run python -m fsdpkit.config.schema"
    )


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_key_has_its_sentence_and_no_table_takes_unknown_keys(kind: str) -> None:
    for name, table in json.loads(schema_text(kind))["$defs"].items():
        assert table["additionalProperties"] is False, name
        for key, field in table["properties"].items():
            assert field.get("description"), f"{name}.{key}"
