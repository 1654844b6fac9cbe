"""`python -m fsdpkit.cli.json_schemas`: writes `site/schema/output/`, the JSON Schema of every
answer of `--json` and a README.md that lists them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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
from fsdpkit.config import assets
from fsdpkit.config.schema import as_published
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
    "scale": (ScaleStarted, ScaleStatus),
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

_README = """\
# What `--json` prints

One object, whose `schema` names its shape; of `watch`, `status --watch` and `logs` one a line.
Fields are only added to a shape. Where one changes its meaning or is removed, the number
changes. Paths are absolute, times are Unix time in seconds, `null` is "not known", also in place
of NaN or an infinity. An error is an object, too, unless the answer was printed before it; the
exit status is the same as without `--json`.

| command | `schema` | what it is |
|---|---|---|
"""


def schema_dir() -> Path:
    return assets.packaged_dir() / "site" / "schema" / "output"


def name_of(answer: Any) -> str:
    """`fsdpkit.status/1`."""
    (field,) = (one for one in msgspec.structs.fields(answer) if one.name == "schema")
    (name,) = get_args(field.type)
    return str(name)


def file_of(answer: Any) -> str:
    """`status.schema.json`."""
    return name_of(answer).removeprefix("fsdpkit.").partition("/")[0] + ".schema.json"


def files() -> dict[str, str]:
    """The text of each file in the folder, by its name."""
    answers = {file_of(answer): answer for kinds in ANSWERS.values() for answer in kinds}
    answers[file_of(Error)] = Error
    texts = {name: _schema(answer) for name, answer in sorted(answers.items())}
    return {**texts, "README.md": _README + "".join(_rows())}


def _schema(answer: Any) -> str:
    schema = msgspec.json.schema(answer, schema_hook=_path)
    # `schema` has a default in the struct, and is always printed.
    own = schema["$defs"][answer.__name__]
    own["required"] = ["schema", *(name for name in own.get("required", []) if name != "schema")]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name_of(answer)}
    return json.dumps({**head, **as_published(schema)}, indent=2, ensure_ascii=False) + "\n"


def _path(kind: type) -> dict[str, str]:
    """Of the one type that msgspec does not know. Raises NotImplementedError for another."""
    if not issubclass(kind, Path):
        raise NotImplementedError
    return {"type": "string", "description": "Path."}


def _rows() -> Iterator[str]:
    for command, answers in ANSWERS.items():
        for answer in answers:
            yield _row(f"`fsdpkit {command}`", answer)
    yield _row("any", Error)


def _row(command: str, answer: Any) -> str:
    what = " ".join((answer.__doc__ or "").split("\n\n")[0].split())
    return f"| {command} | [{name_of(answer)}]({file_of(answer)}) | {what} |\n"


def main() -> None:
    schema_dir().mkdir(exist_ok=True)
    for name, text in files().items():
        (schema_dir() / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
