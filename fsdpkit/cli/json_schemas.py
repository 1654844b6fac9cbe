"""What each command prints with `--json`, and the JSON Schema of every such answer.

`python -m fsdpkit.cli.json_schemas FOLDER` writes them into a folder, as `make docs` does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from fsdpkit.cli import (
    json_answers,
    json_plans,
    json_reports,
    publish_answers,
    scale_answers,
    site_answers,
    sweep_answers,
    template_answers,
)
from fsdpkit.config.schema import in_one_line
from fsdpkit.reporting.comparison.compared import Comparison
from fsdpkit.reporting.diagnosis.diagnose import Diagnosis
from fsdpkit.reporting.status.status_record import Status

ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "plan": (json_plans.PrintedPlans, json_plans.TunedPlan, json_plans.Calibrated),
    "submit": (json_answers.Submitted, json_answers.Rendered, json_answers.Judged),
    "resume": (json_answers.Submitted, json_answers.Rendered),
    "sweep": (sweep_answers.Swept,),
    "sweep extend": (sweep_answers.Swept,),
    "sweep status": (sweep_answers.SweepStatus,),
    "sweep best": (sweep_answers.BestTrial,),
    "sweep report": (sweep_answers.SweepReport,),
    "sweep advance": (sweep_answers.Advanced,),
    "sweep cancel": (sweep_answers.SweepCancelled,),
    "scale": (scale_answers.ScaleStarted,),
    "scale status": (scale_answers.ScaleStatus,),
    "scale write": (scale_answers.ScaleWritten,),
    "status": (Status, json_reports.Statuses),
    "watch": (json_reports.Change, json_reports.WatchEnded),
    "diagnose": (Diagnosis,),
    "compare": (Comparison,),
    "stacks": (json_reports.Stacks,),
    "top": (json_reports.Usage,),
    "check": (json_reports.Checked, json_reports.NodesMeasured),
    "nodes": (json_reports.Nodes, json_answers.Forgiven),
    "logs": (json_answers.PrintedLine, json_reports.Failures),
    "report": (json_reports.Written,),
    "data prepare": (json_answers.Prepared,),
    "data show": (json_answers.PreparedData,),
    "cancel": (json_answers.Cancelled,),
    "checkpoint ls": (json_answers.Checkpoints,),
    "checkpoint save": (json_answers.Saved,),
    "checkpoint verify": (json_answers.Verification,),
    "checkpoint export": (json_answers.Exported,),
    "jobs": (json_answers.Jobs, json_answers.OneJob, publish_answers.FilesChecked),
    "sites": (json_answers.Sites, json_answers.OneSite, publish_answers.FilesChecked),
    "site draft": (site_answers.SiteDraft,),
    "site diff": (site_answers.SiteDiff,),
    "templates": (
        json_answers.Templates,
        template_answers.OneTemplate,
        publish_answers.FilesChecked,
    ),
    "template new": (template_answers.NewTemplate,),
    "template context": (template_answers.TemplateContext,),
    "template lint": (template_answers.Linted,),
    "template test": (template_answers.Tried,),
    "template diff": (template_answers.TemplatesCompared,),
    "template export": (template_answers.ExportedApp,),
    "track": (json_answers.Tracked,),
    "prune": (json_reports.Pruned,),
    "publish": (publish_answers.PublishChange,),
    "publish promote": (publish_answers.PublishChange,),
    "publish rollback": (publish_answers.PublishChange,),
    "publish withdraw": (publish_answers.PublishChange,),
    "publish sign": (publish_answers.PublishChange,),
    "publish list": (publish_answers.PublishedVersions,),
    "audit": (publish_answers.Audited,),
}
"""What each command prints, by its name."""


def name_of(answer: Any) -> str:
    """`fsdpkit.status/1`."""
    (field,) = (one for one in msgspec.structs.fields(answer) if one.name == "schema")
    (name,) = get_args(field.type)
    return str(name)


def file_of(answer: Any) -> str:
    """`status.schema.json`."""
    return name_of(answer).removeprefix("fsdpkit.").partition("/")[0] + ".schema.json"


def schemas() -> dict[str, str]:
    """The text of each JSON Schema, by its file's name."""
    return {file_of(answer): schema_of(answer) for answer in sorted(all_answers(), key=name_of)}


def all_answers() -> set[Any]:
    return {json_answers.Error, *(answer for kinds in ANSWERS.values() for answer in kinds)}


def schema_of(answer: Any) -> str:
    schema = in_one_line(msgspec.json.schema(answer, schema_hook=_path))
    # `schema` has a default in the struct, and is always printed.
    own = schema["$defs"][answer.__name__]
    own["required"] = ["schema", *(name for name in own.get("required", []) if name != "schema")]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name_of(answer)}
    return json.dumps({**head, **schema}, indent=2, ensure_ascii=False) + "\n"


def _path(kind: type) -> dict[str, str]:
    """Of the one type that msgspec does not know. Raises NotImplementedError for another."""
    if not issubclass(kind, Path):
        raise NotImplementedError
    return {"type": "string", "description": "Path."}


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m fsdpkit.cli.json_schemas FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
