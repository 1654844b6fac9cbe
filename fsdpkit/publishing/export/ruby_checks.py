"""The checks that a portal's server makes before it submits, in Ruby, which portals are written in.

They are the script's own, a click earlier: whoever fills in the form reads the same words beside
it, and nothing is queued. The script does not rely on them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fsdpkit.publishing.export.fields import Field
from fsdpkit.publishing.export.parts import part
from fsdpkit.publishing.export.script import ExportedScript

PLACE, NODES, TIME, ACCOUNT = "place", "nodes", "time", "account"

_ACCOUNT = r"[A-Za-z0-9][A-Za-z0-9_.+@-]*"
_PRINTABLE = "[ -~]*"


def ruby_checks(
    fields: Sequence[Field],
    exports: Sequence[ExportedScript],
    places: dict[str, dict[str, Any]],
    names: dict[str, str],
    more: Sequence[dict[str, Any]] = (),
) -> str:
    """Ruby that defines `rules` and `refused`. names: what the form calls a field."""
    most_nodes = max(exported.most_nodes for exported in exports)
    least_time = min(exported.place.least_time for exported in exports)
    most_time = max(exported.most_time for exported in exports)
    needs_account = any(exported.site.profile.account.required for exported in exports)
    rules = [
        {
            "key": PLACE,
            "label": "Partition and GPUs",
            "allowed": "one of the list",
            "pattern": "[^[:cntrl:]]*",
            "longest": 200,
            "choices": list(places),
        },
        _count(NODES, "Nodes", 1, most_nodes),
        _count(TIME, exports[0].unit.label, least_time, most_time),
        {
            "key": ACCOUNT,
            "label": "Account",
            "allowed": "an account of yours",
            "pattern": _ACCOUNT,
            "longest": 64,
            "optional": not needs_account,
        },
        *(_rule(field) for field in fields if field.key != "gpus"),
    ]
    for rule in rules:
        rule["name"] = names[rule["key"]]
    lines = [
        '{"fields": [',
        ",\n".join(f"  {_json(rule)}" for rule in [*rules, *more]),
        '], "places": {',
        ",\n".join(f"  {_json(key)}: {_json(place)}" for key, place in places.items()),
        "}}",
    ]
    return part("checks.rb", rules="\n".join(lines))


def _count(key: str, label: str, least: int, most: int) -> dict[str, Any]:
    return {
        "key": key,
        "label": label,
        "allowed": f"a whole number from {least} to {most}",
        "pattern": "[1-9][0-9]{0,5}",
        "longest": 6,
        "low": least,
        "high": most,
    }


def _rule(field: Field) -> dict[str, Any]:
    # A pattern of a template's own is left to the script: Ruby reads some of bash's differently.
    own = field.kind == "text" and field.key.startswith("p_")
    rule: dict[str, Any] = {
        "key": field.key,
        "label": field.label,
        "allowed": field.allowed,
        "pattern": _PRINTABLE if own or field.kind == "choice" else field.pattern,
        "longest": field.longest,
    }
    if field.kind in ("int", "float"):
        rule |= {"low": field.low, "high": field.high}
    if field.kind == "choice":
        rule["choices"] = list(field.choices)
    if field.path:
        rule["path"] = True
    if field.may_be_empty:
        rule["optional"] = True
    return rule


def _json(value: Any) -> str:
    """Text that ends no ERB tag and no here-document, whatever a template's author wrote."""
    return json.dumps(value).replace("%", "\\u0025")


def place_rules(exported: ExportedScript) -> dict[str, dict[str, Any]]:
    """What the checks know of each place, by the place's value."""
    return {
        place.value: {
            "gpus": place.gpus,
            "nodes": [place.low_nodes, place.high_nodes],
            "least": place.least_time,
            "times": [list(step) for step in place.times],
        }
        for place in exported.places
    }
