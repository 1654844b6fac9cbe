"""An Open Composer app: a page with the form and, beside it, the script that it fills in.

Open Composer writes what a field says into the script's text, in the visitor's browser. So the
values stand in quoted here-documents, which bash expands nothing of, and the server refuses a
hostile one (`check`) before the script is written.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from fsdpkit.errors import ConfigError
from fsdpkit.publishing.export import ruby_checks, yaml_text
from fsdpkit.publishing.export.fields import Field
from fsdpkit.publishing.export.parts import part
from fsdpkit.publishing.export.places import HOURS, PartitionPlace, told
from fsdpkit.publishing.export.script import ExportedScript

_DIRECTORY = r"/[A-Za-z0-9_./@%+,=:-]*"
_PLAIN = re.compile(r"--[a-z-]+(=[A-Za-z0-9_.,:=@%+/-]*)?")


def files(exports: Sequence[ExportedScript]) -> dict[str, str | dict[str, Any]]:
    """The app, by path."""
    (exported,) = exports
    about = exported.template.manifest
    manifest = {
        "name": f"{exported.spec.name} ({about.name})",
        "category": "Machine learning",
        "icon": "bi-diagram-3",
        "description": f"{about.description} Template {about.name} {about.version}.",
    }
    return {"manifest.yml": manifest, "form.yml.erb": _erb(form(exported))}


def _erb(made: dict[str, Any]) -> str:
    """The form's file. What is evaluated in it stands in comments, so that it is YAML as well."""
    lists = [
        [name, widget["label"], [label for label, *_ in widget["options"]]]
        for name, widget in made["form"].items()
        if widget["widget"] == "select"
    ]
    ruby = json.dumps(lists).replace("%", "\\u0025").replace("#", "\\u0023")
    before = part("open_composer.erb", place=_DIRECTORY, lists=ruby)
    return before + yaml_text.document(made).replace("<%", "<%%")


def form(exported: ExportedScript) -> dict[str, Any]:
    """What the form's file holds: its sections form, script and check."""
    asked = [field for field in exported.fields if field.key != "gpus"]
    options = {place.value: _options(exported, place) for place in exported.places}
    width = max(map(len, options.values()))
    time = _time(exported)
    widgets: dict[str, Any] = {
        "place": {
            "widget": "select",
            "label": "Partition and GPUs",
            "value": _label(exported.place),
            "required": True,
            "options": [
                [
                    _label(place),
                    [str(place.gpus), *_padded(options[place.value], width)],
                    {"set-min-nodes": place.low_nodes},
                    {"set-max-nodes": place.high_nodes},
                    {f"set-max-{time}": place.most_time},
                ]
                for place in exported.default_first
            ],
        },
        "nodes": _number("Nodes", exported.nodes, 1, exported.most_nodes),
        time: _number(
            exported.unit.label, exported.time, exported.place.least_time, exported.most_time
        ),
        "account": {
            "widget": "text",
            "label": "Account",
            "value": "",
            "required": exported.site.profile.account.required,
        },
    }
    for field in asked:
        widgets[_name(field)] = _widget(field)
    return {"form": widgets, "script": _script(exported, width), "check": _check(exported, asked)}


def _name(field: Field) -> str:
    """Open Composer takes a number at a name's end for the place in a list."""
    return f"{field.key}_" if re.search(r"_\d+$", field.key) else field.key


def _time(exported: ExportedScript) -> str:
    return exported.unit.label.lower()


def _label(place: PartitionPlace) -> str:
    return f"{place.label} ({told(place)})"


def _options(exported: ExportedScript, place: PartitionPlace) -> list[str]:
    """The directives of a place. The page hands them from Ruby to JavaScript as a list's text, so
    only what both read alike is let through."""
    found = []
    for name, value in exported.options[place.value]:
        option = f"--{name}" if value is None else f"--{name}={value}"
        if not _PLAIN.fullmatch(option):
            raise ConfigError(
                f"{exported.site.id}, {place.label}: Open Composer cannot hand on {option!r}; "
                "export this cluster for Open OnDemand instead"
            )
        found.append(option)
    return found


def _padded(options: list[str], width: int) -> list[str]:
    return options + [""] * (width - len(options))


def _number(label: str, value: int, least: int, most: int) -> dict[str, Any]:
    return {
        "widget": "number",
        "label": label,
        "value": value,
        "min": least,
        "max": most,
        "step": 1,
        "required": True,
    }


def _widget(field: Field) -> dict[str, Any]:
    kinds = {"int": "number", "float": "number", "choice": "select"}
    made: dict[str, Any] = {
        "widget": "path" if field.key == "script" else kinds.get(field.kind, "text"),
        "label": field.label,
        "value": field.shown,
        "help": f"{field.help} Allowed: {field.allowed}.",
        "required": not field.may_be_empty,
    }
    if field.kind in ("int", "float"):
        made |= {"min": field.low, "max": field.high}
        made["step"] = 1 if field.kind == "int" else "any"
    if field.kind == "choice":
        made["options"] = [[choice, choice] for choice in field.choices]
    return made


def _script(exported: ExportedScript, width: int) -> str:
    """A line that names a widget is left out by Open Composer where that says nothing."""
    head = [f"#SBATCH --job-name={exported.spec.name}"]
    head += [f"#SBATCH #{{place_{number}}}" for number in range(2, width + 2)]
    head += ["#SBATCH --nodes=#{nodes}"]
    if exported.site.profile.slurm.ntasks:
        head.append("#SBATCH --ntasks=#{nodes}")
    time = "#{hours}:00:00" if exported.unit == HOURS else "#{minutes}"
    head += [f"#SBATCH --time={time}", "#SBATCH --account=#{account}"]
    inputs = [
        "# What the form says, as text: bash expands nothing between the quoted words.",
        'said() { IFS= read -r -d \'\' "$1" || true; printf -v "$1" %s "${!1%$\'\\n\'}"; }',
    ]
    end = f"FSDPKIT-{hashlib.sha256(exported.body.encode()).hexdigest()[:16]}"
    for field in exported.fields:
        widget = "place_1" if field.key == "gpus" else _name(field)
        inputs += [f"said {field.variable} <<'{end}'", f"#{{{widget}}}", end]
    body = exported.script("\n".join(inputs) + "\n", directives=False)
    first, _, rest = body.partition("\n")
    clash = re.search(r"#\{", exported.checks + exported.body)
    if clash:
        raise ConfigError(f"template {exported.template.manifest.name}: Open Composer reads #{{")
    return "\n".join([first, *head, rest])


_OWN_FIELDS = (
    ("_script_location", "Script location", _DIRECTORY, "a directory's whole path"),
    ("_script_1", "Script name", r"[A-Za-z0-9_][A-Za-z0-9_.-]*", "letters, digits, _.-"),
    (
        "_script_2",
        "Job name",
        r"([A-Za-z0-9_][A-Za-z0-9_.-]*)?",
        "letters, digits, _.-, or nothing",
    ),
)
"""Fields that Open Composer itself puts above the form, and into its sbatch command."""


def _check(exported: ExportedScript, asked: Sequence[Field]) -> str:
    own = (ruby_checks.PLACE, ruby_checks.NODES, ruby_checks.ACCOUNT)
    names = {key: key for key in own} | {ruby_checks.TIME: _time(exported)}
    names |= {field.key: _name(field) for field in asked}
    rules = ruby_checks.place_rules(exported)
    places = {_label(place): rules[place.value] for place in exported.places}
    more = [
        {
            "key": name,
            "name": name,
            "label": label,
            "pattern": pattern,
            "allowed": allowed,
            "longest": 1000,
            "optional": name == "_script_2",
        }
        for name, label, pattern, allowed in _OWN_FIELDS
    ]
    checks = ruby_checks.ruby_checks(asked, [exported], places, names, more)
    return (
        "# Run by Open Composer before the script is written, on the texts that the form sent.\n"
        f"{checks}"
        "why = refused.call(lambda { |name| params[name] })\n"
        "oc_assert(why.nil?, ERB::Util.html_escape(why))  # its pages show it as it is\n"
    )
