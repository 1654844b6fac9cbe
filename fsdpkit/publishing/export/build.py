"""An export as a folder's files, checked by its reader's rules before anybody gets it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

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
from fsdpkit.publishing.export.script import ExportedScript, export_script

Portal = Literal["ondemand", "open-composer", "project-manager", "job-composer"]
PORTALS: tuple[Portal, ...] = get_args(Portal)
RELEASES = dict.fromkeys(PORTALS, rules.ONDEMAND) | {"open-composer": rules.OPEN_COMPOSER}
_ONE_CLUSTER = ("open-composer", "job-composer")


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
    release = release or newest(portal)
    if release not in RELEASES[portal]:
        known = ", ".join(RELEASES[portal])
        raise UsageError(f"--release {release}: --to {portal} knows the releases {known}")
    if len(clusters) > 1 and portal in _ONE_CLUSTER:
        raise UsageError(
            f"--to {portal}: such an app is for one cluster; make one for each --cluster"
        )

    def exported(unit: TimeUnit | None = None) -> list[ExportedScript]:
        return [
            export_script(
                template,
                site,
                job,
                name,
                python=python,
                places_open=portal in ("ondemand", "open-composer"),
                directory_open=portal == "ondemand",
                unit=unit,
            )
            for site, name in clusters
        ]

    exports = exported()
    if portal == "ondemand" and len({each.unit for each in exports}) > 1:
        exports = exported(MINUTES)  # one field for the time, whichever cluster
    if portal == "ondemand":
        files, asked = ondemand.files(exports), ondemand.asked(exports)
    elif portal == "project-manager":
        exports = [_without_time(each) for each in exports]
        files = project_manager.files(exports, release)
        asked = project_manager.asked(exports)
    elif portal == "open-composer":
        files, asked = open_composer.files(exports[0]), open_composer.asked(exports[0])
    else:
        files, asked = job_composer.files(exports[0]), job_composer.asked(exports[0])
    called = f"{'Open Composer' if portal == 'open-composer' else 'Open OnDemand'} {release}"
    files["README.md"] = texts.readme(exports, portal, called, asked)
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


def _without_time(exported: ExportedScript) -> ExportedScript:
    """Where a launcher cannot ask for it."""
    if project_manager.asks_for_time(exported):
        return exported
    time = exported.spec.resources.time
    why = f"the portal asks for whole hours, and the partition allows none: {time}"
    return replace(exported, fixed={**exported.fixed, "time": why})
