"""The part of an exported script that reads a form's values and refuses what is not allowed.

It stands above everything that uses them and needs bash's own commands alone until all are
checked. A value that is refused ends the job with status 65, naming the field and what is allowed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from fsdpkit.publishing.export.fields import Field
from fsdpkit.publishing.export.parts import part

RUN_ID, RUN_DIR = "FSDPKIT_FORM_RUN_ID", "FSDPKIT_FORM_RUN_DIR"
NODES, SHA256, WORDS = "FSDPKIT_FORM_NODES", "FSDPKIT_FORM_JOB_SHA256", "FSDPKIT_FORM_WORDS"
TIME = "FSDPKIT_FORM_TIME"
BIND_RUN, BIND_SCRIPT = "FSDPKIT_FORM_BIND_RUN", "FSDPKIT_FORM_BIND_SCRIPT"
"""Variables of the script, as the parts in bash have them."""


def check_lines(fields: Sequence[Field], low_nodes: int, high_nodes: int) -> str:
    """The functions, and a check for each field."""
    lines = [part("form.sh")]
    if any(field.kind == "float" for field in fields):
        lines.append(part("scaled.sh"))
    if any(is_free_text(field) for field in fields):
        lines.append(part("quoted.sh"))
    lines += [_check(field) for field in fields]
    lines.append(part("nodes.sh", low=low_nodes, high=high_nodes))
    return "".join(lines)


def is_free_text(field: Field) -> bool:
    """Whether a template's author decides what it may hold: quotes, too."""
    return field.kind == "text" and field.key.startswith("p_")


def _check(field: Field) -> str:
    name, q = field.variable, shlex.quote
    refusal = f'refuse {q(field.label)} "is ${name}" {q(field.allowed)}'
    check = f"check {name} {q(field.label)} {q(field.allowed)} {field.longest} {q(field.pattern)}\n"
    if field.kind == "choice":
        cases = " | ".join(q(choice) for choice in field.choices)
        check += f"case ${name} in\n    {cases}) ;;\n    *) {refusal} ;;\nesac\n"
    if field.kind == "words":
        check = f"if [[ -n ${{{name}-}} ]]; then\n    {check}fi\n"
        check += f"IFS=' ' read -ra {WORDS} <<<\"${{{name}-}}\"\n"
        return check
    if field.kind == "int":
        check += f"(( {name} >= {field.low} && {name} <= {field.high} )) || {refusal}\n"
    if field.kind == "float":
        low, high = (round((bound or 0) * 10**6) for bound in (field.low, field.high))
        check += f'scaled "${name}"\n'
        check += f"(( millionths >= {low} && millionths <= {high} )) || {refusal}\n"
    if field.path:
        check += f"case /${name}/ in */../*) {refusal} ;; esac\n"
    if field.key == "directory":
        check += (
            f'cd -- "${name}" 2>/dev/null || '
            f'refuse {q(field.label)} "cannot be entered: ${name}" {q(field.allowed)}\n'
        )
    return check + f"export {name}\n"


def file_lines(
    script: Field,
    job: dict[str, Any],
    record: dict[str, Any],
    *,
    time: str,
    settings: bool,
    container: bool,
) -> str:
    """What makes the run directory, with `job` as its job.json and `record` as its run.json. time:
    of the job, where Slurm does not say. settings: whether the training script is told where its
    settings are. container: whether the words that bind both directories are made."""
    text = "\n" + part(
        "files.sh",
        time=shlex.quote(time),
        job=shlex.quote(job["name"]),
        label=shlex.quote(script.label),
        allowed=shlex.quote(script.allowed),
        job_json=_here(job),
        run_json=_here(record),
    )
    if settings:
        text += part("settings.sh")
    if container:
        text += part("binds.sh")
    return text


class Expanded(str):
    """Text of a JSON document that bash puts in: `${NAME}` or `"${NAME}"`."""


def _here(value: Any) -> str:
    """JSON for an unquoted here-document: bash expands nothing of it but what is `Expanded`."""
    if isinstance(value, Expanded):
        return str(value)
    if isinstance(value, dict):
        pairs = (f"{_literal(key)}: {_here(inner)}" for key, inner in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_here, value)) + "]"
    return _literal(value)


def _literal(value: Any) -> str:
    text = json.dumps(value)
    return text.replace("\\", "\\\\").replace("$", "\\$").replace("`", "\\`")


def text_of(name: str) -> Expanded:
    return Expanded(f'"${{{name}}}"')


def quoted_text_of(name: str) -> Expanded:
    """Of a text that may hold quotes."""
    return Expanded(f"$(json {name})")


def number_of(name: str) -> Expanded:
    return Expanded(f"${{{name}}}")
