"""What a change to a template does to the scripts that it makes, not to its own text.

Both are rendered for every profile and every shape of job; the header's name, version and
checksums, which differ anyway, are made equal first. Equal differences are told once, with all
profiles and shapes that have them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from fsdpkit.config.site import LoadedSite
from fsdpkit.config.template import Template
from fsdpkit.errors import FsdpkitError
from fsdpkit.publishing.template_cases import RUN_DIR, SHAPES, Case, fitting, neutral, plan_of
from fsdpkit.rendering.script import render


@dataclass(frozen=True)
class ScriptDifference:
    """One change and where it shows. diff: the lines of `diff -u` for the first of the cases."""

    cases: tuple[str, ...]
    """Site and shape, as `osc-ascend, array`."""
    diff: tuple[str, ...]


@dataclass(frozen=True)
class ScriptsCompared:
    """differences: none if every script is the same. cases: how many were compared."""

    cases: int
    differences: tuple[ScriptDifference, ...]

    @property
    def changed(self) -> int:
        """How many of the cases differ."""
        return sum(len(each.cases) for each in self.differences)


def compare(old: Template, new: Template, found: Sequence[LoadedSite]) -> ScriptsCompared:
    """Raises nothing of a template: one that refuses a case has the refusal for a script."""
    manifest = msgspec.structs.replace(
        new.manifest, name=old.manifest.name, version=old.manifest.version
    )
    new = replace(new, manifest=manifest)
    groups: dict[tuple[str, ...], list[tuple[str, list[str]]]] = {}
    count = 0
    for case in _cases(found):
        count += 1
        before, after = _script(case, old), _script(case, new)
        if before == after:
            continue
        lines = list(
            difflib.unified_diff(before.splitlines(), after.splitlines(), "old", "new", lineterm="")
        )
        key = tuple(line for line in lines[2:] if line[:1] in "+-")
        groups.setdefault(key, []).append((f"{case.site.id}, {case.shape.name}", lines))
    differences = (
        ScriptDifference(tuple(name for name, _ in members), tuple(members[0][1]))
        for members in groups.values()
    )
    return ScriptsCompared(count, tuple(differences))


def _cases(found: Sequence[LoadedSite]) -> Iterator[Case]:
    for site in found:
        for shape in SHAPES:
            if isinstance(case := fitting(site, shape), Case):
                yield case


def _script(case: Case, template: Template) -> str:
    try:
        plan = plan_of(case, template)
        return neutral(render(plan, RUN_DIR), plan)
    except FsdpkitError as error:
        # Where the folder lies is no difference.
        told = re.sub(
            re.escape(f"template {template.manifest.name} ({template.dir})"), "", str(error)
        )
        return f"refused: {told.strip(': ')}\n"
