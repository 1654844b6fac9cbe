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

RUN_ID, RUN_DIR = "FSDPKIT_FORM_RUN_ID", "FSDPKIT_FORM_RUN_DIR"
NODES, SHA256, WORDS = "FSDPKIT_FORM_NODES", "FSDPKIT_FORM_JOB_SHA256", "FSDPKIT_FORM_WORDS"
TIME = "FSDPKIT_FORM_TIME"
BIND_RUN, BIND_SCRIPT = "FSDPKIT_FORM_BIND_RUN", "FSDPKIT_FORM_BIND_SCRIPT"

_FUNCTIONS = r"""
# ---- What the form says --------------------------------------------------------------------------
# Everything below is the template's own script, made by the renderer that `fsdpkit submit` uses. In
# place of values it holds variables; here each is checked, and none is used before.
refuse() {    # which field, what is wrong, what is allowed
    printf 'fsdpkit: the form: %s: %s; allowed: %s\n' "$1" "$2" "$3" >&2
    exit 65
}
check() {    # variable, field, what is allowed, most characters, pattern
    local LC_ALL=C value=${!1-}
    [[ -n $value ]] || refuse "$2" "is empty" "$3"
    (( ${#value} <= $4 )) || refuse "$2" "has ${#value} bytes" "$3, at most $4 characters"
    [[ $value != *[![:print:]]* ]] ||
        refuse "$2" "is $(printf '%q' "${value:0:60}")" "$3, in printable ASCII"
    [[ $value =~ ^($5)$ ]] || refuse "$2" "is $(printf '%q' "${value:0:60}")" "$3"
}
"""
_QUOTED = r"""json() {    # a checked text as JSON has it
    local text=${!1//\\/\\\\}
    printf '"%s"' "${text//\"/\\\"}"
}
"""
_SCALED = r"""scaled() {    # a number with up to six decimals, in millionths
    local part=
    if [[ $1 == *.* ]]; then part=${1#*.}; fi
    part=${part}000000
    millionths=$(( 10#${1%%.*} * 1000000 + 10#${part:0:6} ))
}
"""


def check_lines(fields: Sequence[Field], low_nodes: int, high_nodes: int) -> str:
    """The functions, and a check for each field."""
    lines = [_FUNCTIONS.lstrip("\n")]
    if any(field.kind == "float" for field in fields):
        lines.append(_SCALED)
    if any(is_free_text(field) for field in fields):
        lines.append(_QUOTED)
    lines += [_check(field) for field in fields]
    lines.append(_NODES.format(name=NODES, low=low_nodes, high=high_nodes))
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


_NODES = """\
export {name}=${{SLURM_JOB_NUM_NODES-}}    # what Slurm gave, whatever was asked for
check {name} Nodes 'a job that Slurm has started' 5 '[1-9][0-9]*'
(( {name} >= {low} && {name} <= {high} )) || refuse Nodes "are ${name}" '{low} to {high} nodes'
"""

_FILES = r"""
# ---- The run's directory, as `fsdpkit submit` makes it -------------------------------------------
[[ ${{SLURM_JOB_ID-}} =~ ^[0-9]{{1,18}}$ ]] || refuse Job "has no number" 'a job of Slurm'
case $PWD in
    *[\"\\[:cntrl:]]*) refuse Directory "is $(printf '%q' "$PWD")" 'no quotes, no backslashes' ;;
esac
if [[ $FSDPKIT_FORM_SCRIPT != /* ]]; then FSDPKIT_FORM_SCRIPT=$PWD/$FSDPKIT_FORM_SCRIPT; fi
[[ -f $FSDPKIT_FORM_SCRIPT ]] || refuse {label} "is no file: $FSDPKIT_FORM_SCRIPT" \
    {allowed}
export {run_id}={job}-$SLURM_JOB_ID
export {run_dir}=$PWD/runs/${run_id}
# The time limit as Slurm has it, which `fsdpkit resume` asks for again; else the default.
export {time_name}={time}
# What its number means is told by the comment of a run's job; else by its cluster and submission.
told=$(SLURM_TIME_FORMAT=%s timeout 20 squeue --noheader --format='%l|%V|%k' \
    --jobs "$SLURM_JOB_ID" 2>/dev/null) || told=
IFS='|' read -r limit taken_s comment <<<"${{told//[[:space:]]/}}"
[[ $taken_s =~ ^[0-9]{{1,11}}$ ]] || taken_s=null
cluster=null
if [[ ${{SLURM_CLUSTER_NAME-}} =~ ^[A-Za-z0-9_.-]{{1,127}}$ ]]; then
    cluster=\"$SLURM_CLUSTER_NAME\"
fi
if [[ $comment == "(null)" ]]; then
    timeout 20 scontrol update JobId="$SLURM_JOB_ID" Comment="fsdpkit:${run_id}" 2>/dev/null || true
fi
if [[ $limit =~ ^([0-9]{{1,2}}-)?([0-9]{{1,2}}:){{1,2}}[0-9]{{2}}$ ]]; then {time_name}=$limit; fi
words=
for word in ${{{words}[@]+"${{{words}[@]}}"}}; do words+="${{words:+, }}\"$word\""; done
write_files() (    # only checked values and Slurm's own numbers are expanded in it
    umask 077
    mkdir -p "${{{run_dir}%/*}}" || return
    mkdir "${run_dir}" 2>/dev/null || [[ -O ${run_dir} && ! -L ${run_dir} ]] || return
    mkdir -p "${run_dir}/submitit" || return
    cat > "${run_dir}/.job.json.$$" <<JOB || return
{job_json}
JOB
    mv "${run_dir}/.job.json.$$" "${run_dir}/job.json" || return
    {sha256}=$(sha256sum < "${run_dir}/job.json") || return
    if [[ -e ${run_dir}/run.json ]]; then return 0; fi    # queued again
    cat "${{BASH_SOURCE[0]}}" > "${run_dir}/job.sbatch" 2>/dev/null || rm -f "${run_dir}/job.sbatch"
    : > "${run_dir}/submitit/${{SLURM_JOB_ID}}_submitted.pkl" || return    # only looked for
    cat > "${run_dir}/.run.json.$$" <<RUN || return
{run_json}
RUN
    mv "${run_dir}/.run.json.$$" "${run_dir}/run.json"
)
write_files || refuse Directory "cannot be written: $PWD" 'one of your own, with space'
{sha256}=$(sha256sum < "${run_dir}/job.json") ||
    refuse Directory "cannot be read: $PWD" 'one of your own'
export {sha256}=${{{sha256}%% *}}
"""
_SETTINGS = """\
{words}=(--job "${run_dir}/job.json" ${{{words}[@]+"${{{words}[@]}}"}})    # the trainer's settings
"""
_BINDS = """\
case ${run_dir}:$FSDPKIT_FORM_SCRIPT in
    *,* | *:*:*) refuse Directory "is $PWD, which a container cannot bind" 'no comma, no colon' ;;
esac
export {bind_run}=--bind=${run_dir} {bind_script}=--bind=${{FSDPKIT_FORM_SCRIPT%/*}}
"""


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
    names = {"run_id": RUN_ID, "run_dir": RUN_DIR, "sha256": SHA256, "words": WORDS}
    text = _FILES.format(
        **names,
        time_name=TIME,
        time=shlex.quote(time),
        job=shlex.quote(job["name"]),
        label=shlex.quote(script.label),
        allowed=shlex.quote(script.allowed),
        job_json=_here(job),
        run_json=_here(record),
    )
    if settings:
        text += _SETTINGS.format(**names)
    if container:
        text += _BINDS.format(**names, bind_run=BIND_RUN, bind_script=BIND_SCRIPT)
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
