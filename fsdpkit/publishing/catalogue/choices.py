"""The templates that the form offers: each by its name, and the versions that somebody may pin.

Versions with the same parameters share the form's fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fsdpkit.config.template import Parameter, Template
from fsdpkit.publishing.catalogue.released import Released


@dataclass(frozen=True)
class FormChoice:
    """value: as in `template = "torchrun@3.4.0"`; group: whose fields its parameters are."""

    value: str
    label: str
    about: str
    group: str


Groups = Mapping[str, Mapping[str, Parameter]]


def template_choices(
    templates: Sequence[Template], published: Sequence[Released]
) -> tuple[list[FormChoice], Groups]:
    """All that can be chosen, and the parameters of each group by its id."""
    groups: dict[str, Mapping[str, Parameter]] = {}
    choices = []
    for value, label, template in _offered(templates, published):
        name, parameters = template.manifest.name, template.manifest.parameters
        same = (g for g, p in groups.items() if g.partition("@")[0] == name and p == parameters)
        group = next(same, value)
        groups.setdefault(group, parameters)
        choices.append(FormChoice(value, label, template.manifest.description, group))
    return choices, groups


def _offered(
    templates: Sequence[Template], published: Sequence[Released]
) -> Iterator[tuple[str, str, Template]]:
    versions = {one.name: one.versions for one in published if one.kind == "template"}
    for template in templates:
        name, current = template.manifest.name, template.manifest.version
        yield name, f"{name} {current}", template
        for one in versions.get(name, ()):
            if one.template is None or one.withdrawn or one.version == current:
                continue
            channel = ", ".join(one.channels) or "older"
            yield f"{name}@{one.version}", f"{name} {one.version} ({channel})", one.template
