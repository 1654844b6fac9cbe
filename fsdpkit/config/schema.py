"""`python -m fsdpkit.config.schema`: writes `site/schema/{job,site,template}.schema.json`.

For editors: with `#:schema …/job.schema.json` on the first line of a TOML file they complete keys
and mark mistakes. The sentences are those of the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fsdpkit.config import assets
from fsdpkit.config.profile import SiteProfile
from fsdpkit.config.template import TemplateManifest
from fsdpkit.config.trainers import job_type

SCHEMAS: Mapping[str, type[msgspec.Struct]] = {
    "job": job_type(),
    "site": SiteProfile,
    "template": TemplateManifest,
}


def schema_dir() -> Path:
    return assets.packaged_dir() / "site" / "schema"


def schema_text(kind: str) -> str:
    """The JSON Schema of a `job`, `site` or `template` file."""
    schema = in_one_line(msgspec.json.schema(SCHEMAS[kind]))
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"fsdpkit {kind}"}
    return json.dumps({**head, **schema}, indent=2, ensure_ascii=False) + "\n"


def in_one_line(schema: Any) -> Any:
    """Each description as one line: Python keeps the indentation of docstrings up to 3.12."""
    if isinstance(schema, list):
        return [in_one_line(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: " ".join(one.split())
        if key == "description" and isinstance(one, str)
        else in_one_line(one)
        for key, one in schema.items()
    }


def main() -> None:
    schema_dir().mkdir(exist_ok=True)
    for kind in SCHEMAS:
        (schema_dir() / f"{kind}.schema.json").write_text(schema_text(kind), encoding="utf-8")


if __name__ == "__main__":
    main()
