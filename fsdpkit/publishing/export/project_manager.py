"""A project template of Open OnDemand's Project Manager, with a launcher for each cluster.

A launcher's fields reach the job as variables of its environment, whatever anybody typed into them,
and none of them can ask for GPUs: partition and GPUs stand in the script.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fsdpkit.publishing.export import texts
from fsdpkit.publishing.export.fields import Field
from fsdpkit.publishing.export.places import HOURS
from fsdpkit.publishing.export.script import ExportedScript

_FIRST = 1_767_225_600  # launchers are sorted by this; the same in every export
_VARIABLE = "auto_environment_variable_"


def files(exports: Sequence[ExportedScript], release: str) -> dict[str, str | dict[str, Any]]:
    """The project, by path."""
    first = exports[0]
    about = first.template.manifest
    manifest = {
        "id": _id(about.name),
        "name": f"{first.spec.name} ({about.name})",
        "description": f"{about.description} Template {about.name} {about.version}.",
        "icon": "fas://network-wired",
    }
    made: dict[str, str | dict[str, Any]] = {".ondemand/manifest.yml": manifest}
    for number, exported in enumerate(exports):
        made[launcher_path(exported)] = form(exported, release, number)
        made[script_name(exported)] = exported.script()
    return made


def fitted(exported: ExportedScript) -> ExportedScript:
    """Says that the time is fixed where a launcher cannot ask for it."""
    if asks_for_time(exported):
        return exported
    time = exported.spec.resources.time
    why = f"the portal asks for whole hours, and the partition allows none: {time}"
    return replace(exported, fixed={**exported.fixed, "time": why})


def launcher_path(exported: ExportedScript) -> str:
    return f".ondemand/launchers/{_id(exported.portal)}/form.yml"


def script_name(exported: ExportedScript) -> str:
    return f"{exported.spec.name}-{exported.portal}.sh"


def _id(name: str) -> str:
    """Eight letters and digits, as Project Manager makes them itself."""
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def nodes_attribute(release: str) -> str:
    """OnDemand 4.0 has no bc_num_nodes, and later ones lose bc_num_slots in their editor."""
    return "bc_num_slots" if release == "4.0" else "bc_num_nodes"


def form(exported: ExportedScript, release: str, number: int = 0) -> dict[str, Any]:
    """A launcher's form.yml."""
    place = exported.place
    attributes: dict[str, Any] = {
        "auto_batch_clusters": {"value": exported.portal, "fixed": True},
        "auto_scripts": {"value": script_name(exported), "fixed": True},
    }
    needed = exported.site.profile.account.required
    attributes["auto_accounts" if needed else "bc_account"] = {"label": "Account"}
    nodes: dict[str, Any] = {
        "label": "Nodes",
        "value": str(exported.nodes),
        "min": place.low_nodes,
        "max": place.high_nodes,
    }
    if exported.site.profile.slurm.ntasks:  # the script's own --ntasks would contradict another
        nodes |= {"fixed": True}
    attributes[nodes_attribute(release)] = nodes
    if asks_for_time(exported):
        attributes["bc_num_hours"] = {
            "label": "Hours",
            "value": str(exported.time),
            "min": place.least_time,
            "max": place.most_time,
        }
    for field in exported.fields:
        attributes[f"{_VARIABLE}{field.variable}"] = _attribute(field)
    return {
        "title": f"{exported.spec.name} on {exported.portal}",
        "created_at": _FIRST + number,
        "form": list(attributes),
        "attributes": attributes,
    }


def asks_for_time(exported: ExportedScript) -> bool:
    """A launcher can only say whole hours; without them Slurm reads the time in the script."""
    return exported.unit == HOURS


def _attribute(field: Field) -> dict[str, Any]:
    return {
        "label": field.label,
        "help": f"{field.help} Allowed: {field.allowed}.",
        "value": field.shown,
        "required": not field.may_be_empty,
    }


def asked(exports: Sequence[ExportedScript]) -> list[tuple[str, str]]:
    """What the form asks for, with what is allowed, for the README."""
    rows = texts.limits(exports, [each for each in exports if asks_for_time(each)])
    seen = {field.label: field.allowed for exported in exports for field in exported.fields}
    return [*rows, *seen.items()]
