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

from fsdpkit.cli.json_answers import (
    Cancelled,
    Checkpoints,
    Error,
    Exported,
    Failures,
    Forgiven,
    Jobs,
    Judged,
    OneJob,
    OneSite,
    OneTemplate,
    Prepared,
    PreparedData,
    PrintedLine,
    Pruned,
    Rendered,
    Saved,
    Sites,
    Submitted,
    Templates,
    Tracked,
    Verification,
)
from fsdpkit.cli.json_plans import Calibrated, PrintedPlans, TunedPlan
from fsdpkit.cli.json_reports import (
    Change,
    Checked,
    Nodes,
    NodesMeasured,
    Stacks,
    Statuses,
    Usage,
    WatchEnded,
    Written,
)
from fsdpkit.cli.publish_answers import (
    Audited,
    FilesChecked,
    PublishChange,
    PublishedVersions,
)
from fsdpkit.cli.scale_answers import (
    ScaleAdvanced,
    ScaleCancelled,
    ScaleExpected,
    ScaleStarted,
    ScaleStatus,
    ScaleWritten,
)
from fsdpkit.cli.site_answers import SiteDiff, SiteDraft
from fsdpkit.cli.sweep_answers import (
    Advanced,
    BestTrial,
    SweepCancelled,
    SweepReport,
    SweepStatus,
    Swept,
)
from fsdpkit.cli.template_answers import (
    ExportedApp,
    Linted,
    NewTemplate,
    TemplateContext,
    TemplatesCompared,
    Tried,
)
from fsdpkit.reporting.comparison.compared import Comparison
from fsdpkit.reporting.diagnosis.diagnose import Diagnosis
from fsdpkit.reporting.status.status_record import Status

ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "plan": (PrintedPlans, TunedPlan, Calibrated),
    "submit": (Submitted, Rendered, Judged),
    "resume": (Submitted, Rendered),
    "sweep": (Swept,),
    "sweep extend": (Swept,),
    "sweep status": (SweepStatus,),
    "sweep best": (BestTrial,),
    "sweep report": (SweepReport,),
    "sweep advance": (Advanced,),
    "sweep cancel": (SweepCancelled,),
    "scale": (ScaleStarted, ScaleExpected),
    "scale status": (ScaleStatus,),
    "scale write": (ScaleWritten,),
    "scale advance": (ScaleAdvanced,),
    "scale cancel": (ScaleCancelled,),
    "status": (Status, Statuses),
    "watch": (Change, WatchEnded),
    "diagnose": (Diagnosis,),
    "compare": (Comparison,),
    "stacks": (Stacks,),
    "top": (Usage,),
    "check": (Checked, NodesMeasured),
    "nodes": (Nodes, Forgiven),
    "logs": (PrintedLine, Failures),
    "report": (Written,),
    "data prepare": (Prepared,),
    "data show": (PreparedData,),
    "cancel": (Cancelled,),
    "checkpoint ls": (Checkpoints,),
    "checkpoint save": (Saved,),
    "checkpoint verify": (Verification,),
    "checkpoint export": (Exported,),
    "jobs": (Jobs, OneJob, FilesChecked),
    "sites": (Sites, OneSite, FilesChecked),
    "site draft": (SiteDraft,),
    "site diff": (SiteDiff,),
    "templates": (Templates, OneTemplate, FilesChecked),
    "template new": (NewTemplate,),
    "template context": (TemplateContext,),
    "template lint": (Linted,),
    "template test": (Tried,),
    "template diff": (TemplatesCompared,),
    "template export": (ExportedApp,),
    "track": (Tracked,),
    "prune": (Pruned,),
    "publish": (PublishChange,),
    "publish promote": (PublishChange,),
    "publish rollback": (PublishChange,),
    "publish withdraw": (PublishChange,),
    "publish sign": (PublishChange,),
    "publish list": (PublishedVersions,),
    "audit": (Audited,),
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
    return {Error, *(answer for kinds in ANSWERS.values() for answer in kinds)}


def schema_of(answer: Any) -> str:
    schema = msgspec.json.schema(answer, schema_hook=_path)
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
