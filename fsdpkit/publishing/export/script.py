"""The exported script: the template, rendered once by the renderer of every submission.

There is no second template. Where a submission has a value that a form will say, the context holds
a `Variable`, which prints as `"$NAME"`; the checks that make it safe to use stand above. What the
template decides by cannot be left open: it is fixed, and `fixed` says so. A job of one node and a
job of several are different scripts, so both are in it and the number of nodes chooses.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

import fsdpkit
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.template import Template
from fsdpkit.errors import ConfigError, RenderError
from fsdpkit.publishing.export import checks
from fsdpkit.publishing.export.fields import (
    ARGUMENTS,
    PYTHON,
    SCRIPT,
    Field,
    Limits,
    gpus_field,
    limits_of,
    parameter_field,
)
from fsdpkit.publishing.template_cases import SHAPES, Case, fitting, plan_of
from fsdpkit.rendering.environment import trace_template
from fsdpkit.rendering.lint import lint
from fsdpkit.rendering.script import Plan, PythonEnvironment, context_of
from fsdpkit.rendering.statements import Traced
from fsdpkit.rendering.variables import Undecided, Variable

JOB_NAME = "train"
FORM_DECIDES = frozenset({"chdir", "output", "comment", "account"})
"""Directives that a portal sets itself, or that would name a person or a place."""


@dataclass(frozen=True)
class Exported:
    """One template for one cluster. head: shebang, comments and directives; body: from the checks'
    place to the end, with no value of a form but in variables."""

    template: Template
    site: LoadedSite
    fields: tuple[Field, ...]
    """Whose variables the script reads, in the form's order."""
    fixed: Mapping[str, str]
    """What the form does not ask for, and why."""
    limits: tuple[Limits, ...]
    nodes: int
    """Most nodes of any partition; the least is one."""
    directives: tuple[tuple[str, str | None], ...]
    head: str
    checks: str
    body: str

    def script(self, inputs: str, *, directives: bool = True) -> str:
        """The whole text. inputs: bash that sets the fields' variables, if the environment does not
        have them. directives: whether sbatch reads them from here."""
        head = self.head
        if not directives:
            lines = head.split("\n")
            head = "\n".join(line for line in lines if not line.startswith("#SBATCH"))
        return f"{head}\n{inputs}{self.checks}{self.body}"


def export_script(
    template: Template, site: LoadedSite, python: str, *, gpus_open: bool
) -> Exported:
    """Raises RenderError or ConfigError where the template or the profile cannot be exported.

    python: `venv` or `conda`. gpus_open: whether the portal can ask for GPUs.
    """
    if site.profile.kind != "slurm":
        raise ConfigError(f"{site.id} is no Slurm cluster, so no portal submits to it")
    plan = _plan(template, site, python)
    fixed: dict[str, str] = {}
    fields: list[Field] = [SCRIPT, ARGUMENTS, PYTHON[python]]
    gpus = gpus_field(site.profile)
    if gpus_open:
        fields.append(gpus)
    else:
        fixed["gpus"] = f"the portal cannot ask for GPUs: {plan.job.spec.resources.gpus} per node"
    for name, parameter in template.manifest.parameters.items():
        field = parameter_field(name, parameter)
        if isinstance(field, str):
            fixed[f"parameters.{name}"] = field
        else:
            fields.append(field)
    limits = limits_of(site.profile)
    most = max(each.nodes for each in limits)
    while True:
        try:
            parts = _parts(plan, fields, most)
            break
        except Undecided as error:
            blamed = [field for field in fields if _named(field) == error.variable.of]
            if not blamed or blamed[0].key in ("script", "arguments", "environment"):
                raise RenderError(f"template {template.manifest.name}: {error}") from error
            fields.remove(blamed[0])
            value = plan.job.spec.resources.gpus if blamed[0] is gpus else blamed[0].default
            fixed[_named(blamed[0])] = f"the script decides by it: {value}"
    head, body = _joined(parts)
    _refuse_quoted(body, fields)
    exported = Exported(
        template,
        site,
        tuple(fields),
        fixed,
        tuple(limits),
        most,
        _directives(plan),
        head,
        checks.check_lines(fields, 1, most) + _files(plan, fields),
        body,
    )
    problems = [
        f for f in lint(exported.script(""), plan.placement.select) if f.severity == "error"
    ]
    if problems:
        listed = "\n".join(f"  line {f.line}: {f.message}" for f in problems)
        raise RenderError(f"template {template.manifest.name}: not to be exported:\n{listed}")
    return exported


def _named(field: Field) -> str:
    """The field's name in the template's context."""
    if field.key.startswith("p_"):
        return f"parameters.{field.key[2:]}"
    names = {"script": "job.entry", "arguments": "job.args"}
    return names.get(field.key, field.key)


def _plan(template: Template, site: LoadedSite, python: str) -> Plan:
    case = fitting(site, SHAPES[0])
    if not isinstance(case, Case):
        case = fitting(site, SHAPES[1])
    if not isinstance(case, Case):
        raise ConfigError(f"{site.id}: its profile takes no job: {case}")
    plan = plan_of(case, template)
    kind = "conda" if python == "conda" else "venv"
    return replace(plan, python=PythonEnvironment(kind, "/"))  # type: ignore[arg-type]


def _parts(plan: Plan, fields: list[Field], most: int) -> list[Traced]:
    """The script of one node and that of more, or one for both. Raises Undecided."""
    try:
        return [_render(plan, fields, 1, most)]
    except Undecided as error:
        if error.variable.of != "nodes" or most == 1:
            raise
    return [_render(plan, fields, 1, 1), _render(plan, fields, 2, most)]


def _render(plan: Plan, fields: list[Field], low: int, high: int) -> Traced:
    context = context_of(plan, plan.work_dir / "runs" / "x")
    by_key = {field.key: field for field in fields}

    def text(key: str, of: str) -> Variable:
        return Variable(by_key[key].variable, "text", of)

    context["nodes"] = Variable(checks.NODES, "number", "nodes", low, high)
    context["run"] |= {
        "dir": Variable(checks.RUN_DIR, "text", "run.dir"),
        "id": Variable(checks.RUN_ID, "text", "run.id"),
    }
    context["job"] |= {
        "name": JOB_NAME,
        "entry": text("script", "job.entry"),
        "args": Variable(checks.WORDS, "words", "job.args"),
    }
    context["job_sha256"] = Variable(checks.SHA256, "text", "job_sha256")
    context["environment"]["python"]["path"] = text("environment", "environment.python.path")
    if "gpus" in by_key:
        gpus = by_key["gpus"]
        context["gpus"] = Variable(gpus.variable, "number", "gpus", gpus.low, gpus.high)
    for field in fields:
        if field.key.startswith("p_"):
            number = field.kind in ("int", "float") or (
                field.kind == "choice" and not isinstance(field.default, str)
            )
            context["parameters"][field.key[2:]] = Variable(
                field.variable, "number" if number else "text", _named(field), field.low, field.high
            )
    context["directives"] = [{"name": n, "value": v} for n, v in _directives(plan)]
    context["origins"] = [
        f"exported by fsdpkit {fsdpkit.__version__} for a portal; what its form says is checked"
    ]
    return trace_template(plan.template, context)


def _directives(plan: Plan) -> tuple[tuple[str, str | None], ...]:
    context = context_of(plan, plan.work_dir / "runs" / "x")
    pairs = ((d["name"], d["value"]) for d in context["directives"])
    return tuple(pair for pair in pairs if pair[0] not in FORM_DECIDES)


def _joined(parts: list[Traced]) -> tuple[str, str]:
    """The lines up to the last directive, and what follows them."""
    split = [_split(part.script) for part in parts]
    if len(split) == 1:
        return split[0]
    (head, one), (_, several) = split
    return head, (
        "\n# ---- One node: the template's script for it, which ends with its own exit ----------\n"
        f"if (( {checks.NODES} == 1 )); then\n{one}\nfi\n"
        "\n# ---- Several nodes -----------------------------------------------------------------\n"
        f"{several}"
    )


def _split(script: str) -> tuple[str, str]:
    lines = script.split("\n")
    last = max((n for n, line in enumerate(lines) if line.startswith("#SBATCH")), default=0)
    return "\n".join(lines[: last + 1]) + "\n", "\n".join(lines[last + 1 :])


def _refuse_quoted(body: str, fields: list[Field]) -> None:
    """A number that a template prints inside single quotes would not be expanded there."""
    for number, line in enumerate(body.split("\n"), 1):
        in_quotes = False
        for at, char in enumerate(line):
            if char == "'" and (at == 0 or line[at - 1] != "\\"):
                in_quotes = not in_quotes
            if in_quotes and line.startswith("${FSDPKIT_FORM_", at) and "#" not in line[:at]:
                raise RenderError(f"a value stands in single quotes (line {number}): {line[:80]}")


def _files(plan: Plan, fields: list[Field]) -> str:
    spec = msgspec.structs.replace(plan.job.spec, entry="x", name=JOB_NAME)
    job: dict[str, Any] = msgspec.to_builtins(spec)
    words = checks.Expanded("[$words]")
    gpus = next((f for f in fields if f.key == "gpus"), None)
    ranks = checks.number_of(gpus.variable) if gpus else plan.job.spec.resources.gpus
    job |= {"entry": checks.text_of(SCRIPT.variable), "args": words}
    job["resources"] = {
        **{k: v for k, v in job["resources"].items() if k != "account"},
        "nodes": checks.number_of(checks.NODES),
        "gpus": ranks,
    }
    for field in fields:
        if field.key.startswith("p_"):
            number = field.kind in ("int", "float") or not isinstance(field.default, str)
            make = checks.number_of if number else checks.text_of
            if field.kind in ("int", "float") or field.kind == "choice":
                job["parameters"][field.key[2:]] = make(field.variable)
    record = {
        "schema": "fsdpkit.run/1",
        "id": checks.text_of(checks.RUN_ID),
        "state": "submitted",
        "created_s": checks.Expanded("$(printf '%(%s)T' -1)"),
        "name": JOB_NAME,
        "site": plan.site.id,
        "kind": "slurm",
        "cluster": plan.site.profile.slurm_clusters,
        "job_id": checks.text_of("SLURM_JOB_ID"),
        "nodes": checks.number_of(checks.NODES),
        "ranks_per_node": ranks,
        "work_dir": checks.text_of("PWD"),
        "version": fsdpkit.__version__,
        "template": f"{plan.template.manifest.name} {plan.template.manifest.version}",
        "digests": plan.digests,
    }
    return checks.file_lines(JOB_NAME, SCRIPT, job, record)


def created_s() -> int:
    """For a launcher, which portals sort by it; SOURCE_DATE_EPOCH makes an export repeatable."""
    import os

    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    return int(given) if given.isascii() and given.isdigit() else int(time.time())
