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

PUBLISHED_AS: Mapping[str, str] = {
    "CheckResult": "Finding",
    "ChecklistPoint": "Finding",
    "CodePlace": "Place",
    "FirstFailure": "Failure",
    "GrantedDifference": "Difference",
    "LaunchSettings": "Launch",
    "ListedCheckpoint": "Checkpoint",
    "NodeVerdict": "Verdict",
    "NodesMeasured": "Measured",
    "PlannedMemory": "Memory",
    "PredictedFigure": "Figure",
    "PrintedLine": "Line",
    "PrintedPlans": "Plans",
    "PrintedSetting": "Setting",
    "ProfileSource": "Source",
    "ReportedNode": "Node",
    "RunDifference": "Difference",
    "ScriptDifference": "Difference",
    "TemplatesCompared": "Compared",
    "TrialStep": "Step",
    "WatchEnded": "Ended",
    "WorkTreeSource": "Source",
}
"""Classes whose definitions were published under another name: a generator of code from a schema
names its types by them, so they stay."""


def _text(key: str, value: object) -> str | None:
    """A description in one line, for Python keeps the indentation of docstrings up to 3.12."""
    return " ".join(value.split()) if key == "description" and isinstance(value, str) else None


def as_published(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with its definitions under their published names."""
    prefix = "#/$defs/"

    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [renamed(one) for one in value]
        if isinstance(value, dict):
            return {key: _text(key, one) or renamed(one) for key, one in value.items()}
        if isinstance(value, str) and value.startswith(prefix):
            name = value.removeprefix(prefix)
            return prefix + PUBLISHED_AS.get(name, name)
        return value

    named: dict[str, Any] = {}
    for name, definition in schema["$defs"].items():
        published = PUBLISHED_AS.get(name, name)
        if published in named:
            raise ValueError(f"two definitions of one schema would be called {published}")
        titled = {"title": published} if definition.get("title") == name else {}
        named[published] = {**definition, **titled}
    return renamed({**schema, "$defs": named})  # type: ignore[no-any-return]


def schema_dir() -> Path:
    return assets.packaged_dir() / "site" / "schema"


def schema_text(kind: str) -> str:
    """The JSON Schema of a `job`, `site` or `template` file."""
    schema = as_published(msgspec.json.schema(SCHEMAS[kind]))
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"fsdpkit {kind}"}
    return json.dumps({**head, **schema}, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    schema_dir().mkdir(exist_ok=True)
    for kind in SCHEMAS:
        (schema_dir() / f"{kind}.schema.json").write_text(schema_text(kind), encoding="utf-8")


if __name__ == "__main__":
    main()
