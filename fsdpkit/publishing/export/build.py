"""An export as a folder's files, checked by its reader's rules before anybody gets it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fsdpkit.config.job import JobSpec
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.template import Template
from fsdpkit.errors import RenderError, UsageError
from fsdpkit.publishing.export import ondemand, open_composer, rules, texts, yaml_text
from fsdpkit.publishing.export.places import MINUTES, TimeUnit
from fsdpkit.publishing.export.script import ExportedScript, export_script

Portal = Literal["ondemand", "open-composer"]


@dataclass(frozen=True)
class _Target:
    """One kind of portal. files: by path. directory: whether its form asks for the job's."""

    program: str
    releases: tuple[str, ...]
    files: Callable[[Sequence[ExportedScript]], dict[str, str | dict[str, Any]]]
    directory: bool
    several_clusters: bool


_TARGETS: dict[Portal, _Target] = {
    "ondemand": _Target(
        "Open OnDemand",
        rules.ONDEMAND,
        ondemand.files,
        directory=True,
        several_clusters=True,
    ),
    "open-composer": _Target(
        "Open Composer",
        rules.OPEN_COMPOSER,
        open_composer.files,
        directory=False,
        several_clusters=False,
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
    if len(clusters) > 1 and not target.several_clusters:
        raise UsageError(
            f"--to {portal}: such an app is for one cluster; make one for each --cluster"
        )

    def exported(unit: TimeUnit | None = None) -> list[ExportedScript]:
        return [
            export_script(
                template, site, job, name, python=python, directory=target.directory, unit=unit
            )
            for site, name in clusters
        ]

    exports = exported()
    if len({each.unit for each in exports}) > 1:
        exports = exported(MINUTES)  # one field for the time, whichever cluster
    called = f"{target.program} {release}"
    files = target.files(exports)
    files["README.md"] = texts.readme(exports, portal, called)
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
