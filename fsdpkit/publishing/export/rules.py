"""What a centre's template, profile or job can make of an export that its reader would not take.

What an export always holds is tested by its golden apps; here is what depends on names and words of
others. Written after OSC/ondemand v4.0.11, v4.1.6 and v4.2.3 (dynamic_forms.js) as they were on
2026-11-24: no distribution packages the portals, so nothing else says whether one reads an export.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

ONDEMAND = ("4.0", "4.1", "4.2")
OPEN_COMPOSER = ("2.0",)
"""The releases that are known."""
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+\.[a-z]{2,}\b")
_PLACE = re.compile(r"(?<![\w.$}\\-])/(?:home|users|scratch|work|projects?|gpfs|lustre)/")

Document = Mapping[str, Any]
Files = Mapping[str, str | Document]
"""By path: text, or what a YAML file holds."""
Problems = Iterator[str]


def problems(portal: str, release: str, files: Files) -> list[str]:
    """What the portal would not take, or should not be given; empty if all is well."""
    found = [*_for_everybody(files)]
    if portal == "ondemand":
        found += _selects(release, files)
    return found


def _for_everybody(files: Files) -> Problems:
    """An export is for every user of a centre, and shown in a browser."""
    for name, content in files.items():
        text = content if isinstance(content, str) else str(content)
        for number, line in enumerate(text.split("\n"), 1):
            if found := _PLACE.search(line):
                yield f"{name}:{number}: a person's or project's path: {line[found.start() :][:60]}"
            if found := _MAIL.search(line):
                yield f"{name}:{number}: an e-mail address: {found[0][:60]}"


def _selects(release: str, files: Files) -> Problems:
    """Options of the form's lists, which dynamic_forms.js looks up by their values."""
    form = files.get("form.yml")
    attributes = form["attributes"] if isinstance(form, Mapping) else {}
    for key, attribute in attributes.items():
        values = [option[1] for option in attribute.get("options", ())]
        folded = {re.sub(r"[-_]+", "_", value.lower()) for value in values}
        if release == "4.0" and any(re.search(r"['\\]", value) for value in values):
            yield f"{key}: OnDemand 4.0 finds no option with a quote or a backslash in it"
        if len(folded) < len(values):
            yield f"{key}: two options that the form cannot tell apart"
