"""A Batch Connect app of Open OnDemand: a form per cluster and partition, and the script behind it.

OnDemand's own batch script sources `before.sh` in the session's directory. That hands over to the
exported script for good, so that the warning before the end reaches it and its status is the job's.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from fsdpkit.publishing.export import ruby_checks
from fsdpkit.publishing.export.fields import Field
from fsdpkit.publishing.export.parts import part
from fsdpkit.publishing.export.places import HOURS, PartitionPlace, told
from fsdpkit.publishing.export.script import ExportedScript, shared_fields

_OWN = "fsdpkit_"


def _time(exports: Sequence[ExportedScript]) -> str:
    """OnDemand's own field counts whole hours."""
    return "bc_num_hours" if exports[0].unit == HOURS else f"{_OWN}minutes"


def files(exports: Sequence[ExportedScript]) -> dict[str, str | dict[str, Any]]:
    """The app, by path."""
    first = exports[0]
    fields = shared_fields(exports)
    account = _account(exports)
    names = {field.key: f"{_OWN}{field.key}" for field in fields}
    names |= {
        ruby_checks.PLACE: f"{_OWN}place",
        ruby_checks.NODES: f"{_OWN}nodes",
        ruby_checks.TIME: _time(exports),
        ruby_checks.ACCOUNT: account,
    }
    made: dict[str, str | dict[str, Any]] = {
        "manifest.yml": manifest(first),
        "form.yml": form(exports, fields, account),
        "submit.yml.erb": _submit(exports, fields, names),
        "template/before.sh.erb": _before(exports, fields, names),
        "view.html.erb": part("view.html.erb"),
    }
    for exported in exports:
        made[f"template/{script_name(exported)}"] = exported.script(directives=False)
    return made


def script_name(exported: ExportedScript) -> str:
    return f"script-{exported.portal}.sh"


def manifest(exported: ExportedScript) -> dict[str, Any]:
    """manifest.yml, which the dashboard shows."""
    about = exported.template.manifest
    return {
        "name": title(exported),
        "category": "Interactive Apps",
        "subcategory": "Machine learning",
        "role": "batch_connect",
        "icon": "fas://network-wired",
        "description": f"{about.description}\n\nTemplate {about.name} {about.version}.\n",
    }


def title(exported: ExportedScript) -> str:
    return f"{exported.spec.name} ({exported.template.manifest.name})"


def _account(exports: Sequence[ExportedScript]) -> str:
    """A list of the person's own accounts where one is needed, else a field that may be empty."""
    needed = any(exported.site.profile.account.required for exported in exports)
    return "auto_accounts" if needed else "bc_account"


def form(
    exports: Sequence[ExportedScript], fields: Sequence[Field], account: str
) -> dict[str, Any]:
    """form.yml."""
    most_nodes = max(exported.most_nodes for exported in exports)
    most_time = max(exported.most_time for exported in exports)
    default = exports[0].place
    attributes: dict[str, Any] = {
        f"{_OWN}place": {
            "widget": "select",
            "label": "Partition and GPUs",
            "help": "As many ranks run on each node as it has GPUs for the job. Nodes and time go "
            "up to what stands behind the choice.",
            "value": f"{exports[0].portal}:{default.value}",
            "options": [
                _option(place, exported, exports)
                for exported in exports
                for place in exported.default_first
            ],
        },
        f"{_OWN}nodes": {
            "widget": "number_field",
            "label": "Nodes",
            "value": exports[0].nodes,
            "min": 1,
            "max": most_nodes,
            "step": 1,
            "required": True,
        },
        _time(exports): {
            **({} if exports[0].unit == HOURS else _MINUTES),
            "label": exports[0].unit.label,
            "value": exports[0].time,
            "min": min(exported.place.least_time for exported in exports),
            "max": most_time,
            "step": 1,
        },
        account: {"label": "Account"},
    }
    for field in fields:
        if field.key != "gpus":
            attributes[f"{_OWN}{field.key}"] = _attribute(field)
    clusters = [exported.portal for exported in exports]
    return {
        "title": title(exports[0]),
        "cluster": clusters if len(clusters) > 1 else clusters[0],
        "form": list(attributes),
        "attributes": attributes,
    }


_MINUTES = {
    "widget": "number_field",
    "help": "60 are an hour. The longest time stands behind each partition.",
    "required": True,
}


def _option(
    place: PartitionPlace, exported: ExportedScript, exports: Sequence[ExportedScript]
) -> list[Any]:
    limits: dict[str, Any] = {
        "data-min-fsdpkit-nodes": place.low_nodes,
        "data-max-fsdpkit-nodes": place.high_nodes,
        f"data-max-{_time(exports).replace('_', '-')}": place.most_time,
    }
    for other in exports:
        if other is not exported:
            limits[f"data-option-for-cluster-{other.portal.replace('_', '-')}"] = False
    # Only a dashboard with bc_dynamic_js leaves out the options of other clusters.
    cluster = f"{exported.portal}, " if len(exports) > 1 else ""
    return [f"{cluster}{place.label} ({told(place)})", f"{exported.portal}:{place.value}", limits]


def _attribute(field: Field) -> dict[str, Any]:
    widget = {"int": "number_field", "float": "number_field", "choice": "select"}
    made: dict[str, Any] = {
        "widget": widget.get(field.kind, "text_field"),
        "label": field.label,
        "help": field.help,
        "value": field.shown,
    }
    if field.kind in ("int", "float"):
        made |= {"min": field.low, "max": field.high}
        made["step"] = 1 if field.kind == "int" else "any"
    if field.kind == "choice":
        made["options"] = [[choice, choice] for choice in field.choices]
    if field.key == "directory":
        made |= {"widget": "path_selector", "show_files": False, "show_hidden": False}
    if not field.may_be_empty:
        made["required"] = True
    return made


def _submit(
    exports: Sequence[ExportedScript], fields: Sequence[Field], names: dict[str, str]
) -> str:
    places: dict[str, dict[str, Any]] = {}
    for exported in exports:
        for value, rule in ruby_checks.place_rules(exported).items():
            native = [
                f"--{name}" if text is None else f"--{name}={text}"
                for name, text in exported.options[value]
            ]
            rule |= {
                "cluster": exported.portal,
                "native": native,
                "ntasks": exported.site.profile.slurm.ntasks,
            }
            places[f"{exported.portal}:{value}"] = rule
    return part(
        "submit.yml.erb",
        checks=ruby_checks.ruby_checks(fields, exports, places, names),
        unit_s=exports[0].unit.seconds,
        **{key: names[key] for key in ("place", "nodes", "time", "account")},
    )


def _before(
    exports: Sequence[ExportedScript], fields: Sequence[Field], names: dict[str, str]
) -> str:
    values = [
        f"export {field.variable}=<%= quoted.call({names[field.key]!r}) %>"
        for field in fields
        if field.key != "gpus"
    ]
    if any(field.key == "gpus" for field in fields):
        values.append("export FSDPKIT_FORM_GPUS=${place##*:}")
    scripts = "\n".join(
        f"    {shlex.quote(exported.portal)}:*) script={script_name(exported)} ;;"
        for exported in exports
    )
    return part("before.sh.erb", place=names["place"], values="\n".join(values), scripts=scripts)
