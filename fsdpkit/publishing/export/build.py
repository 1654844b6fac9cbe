"""An export as a folder's files, checked by its reader's rules before anybody gets it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fsdpkit.config.job import JobSpec
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.template import Template
from fsdpkit.errors import RenderError, UsageError
from fsdpkit.publishing.export import (
    job_composer,
    ondemand,
    open_composer,
    project_manager,
    rules,
    texts,
    yaml_text,
)
from fsdpkit.publishing.export.places import MINUTES, TimeUnit
from fsdpkit.publishing.export.script import ExportedScript, FormAsks, export_script

Portal = Literal["ondemand", "open-composer", "project-manager", "job-composer"]


@dataclass(frozen=True)
class _Target:
    """One kind of portal: what it can ask for, and who writes what it reads. files: by path, for
    clusters and a release of it. asked: what its form asks for, with what is allowed."""

    files: Callable[[Sequence[ExportedScript], str], dict[str, str | dict[str, Any]]]
    asked: Callable[[Sequence[ExportedScript]], list[tuple[str, str]]]
    asks: FormAsks
    program: str = "Open OnDemand"
    releases: tuple[str, ...] = rules.ONDEMAND
    clusters: Literal["one", "several", "several in one form"] = "several"
    fitted: Callable[[ExportedScript], ExportedScript] = lambda exported: exported
    """What of an export it can use."""


_TARGETS: dict[Portal, _Target] = {
    "ondemand": _Target(
        ondemand.files,
        ondemand.asked,
        FormAsks(places=True, directory=True),
        clusters="several in one form",
    ),
    "open-composer": _Target(
        open_composer.files,
        open_composer.asked,
        FormAsks(places=True),
        program="Open Composer",
        releases=rules.OPEN_COMPOSER,
        clusters="one",
    ),
    "project-manager": _Target(
        project_manager.files,
        project_manager.asked,
        FormAsks(places=False),
        fitted=project_manager.fitted,
    ),
    "job-composer": _Target(
        job_composer.files, job_composer.asked, FormAsks(places=False), clusters="one"
    ),
}
RELEASES = {portal: target.releases for portal, target in _TARGETS.items()}


@dataclass(frozen=True)
class App:
    """files: text by path. release: of the portal, whose rules they follow."""

    portal: Portal
    release: str
    files: dict[str, str]
    exports: tuple[ExportedScript, ...]


def newest(portal: Portal) -> str:
    return RELEASES[portal][-1]


def build(
    template: Template,
    clusters: Sequence[tuple[LoadedSite, str]],
    portal: Portal,
    *,
    job: JobSpec | None = None,
    python: str = "venv",
    release: str | None = None,
) -> App:
    """clusters: each with the portal's name for it. Raises UsageError, ConfigError, RenderError."""
    target = _TARGETS[portal]
    release = release or newest(portal)
    if release not in target.releases:
        known = ", ".join(target.releases)
        raise UsageError(f"--release {release}: --to {portal} knows the releases {known}")
    if len(clusters) > 1 and target.clusters == "one":
        raise UsageError(
            f"--to {portal}: such an app is for one cluster; make one for each --cluster"
        )

    def exported(unit: TimeUnit | None = None) -> list[ExportedScript]:
        asks = replace(target.asks, unit=unit)
        return [
            target.fitted(export_script(template, site, job, name, python=python, asks=asks))
            for site, name in clusters
        ]

    exports = exported()
    if target.clusters == "several in one form" and len({each.unit for each in exports}) > 1:
        exports = exported(MINUTES)  # one field for the time, whichever cluster
    called = f"{target.program} {release}"
    files = target.files(exports, release)
    files["README.md"] = texts.readme(exports, portal, called, target.asked(exports))
    files["CHECKLIST.md"] = texts.checklist(exports, called)
    if problems := rules.problems(portal, release, files):
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise RenderError(
            f"template {template.manifest.name}: {called} would not take the export:\n{listed}"
        )
    written = {
        name: content if isinstance(content, str) else yaml_text.document(content)
        for name, content in files.items()
    }
    return App(portal, release, written, tuple(exports))
