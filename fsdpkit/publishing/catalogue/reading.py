"""Everything that a catalogue shows, read as a person's command line would read it.

A file that is broken is a `CatalogueProblem`, named on the page and on standard error; the
rest goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fsdpkit.config import assets
from fsdpkit.config.job_loading import LoadedJob, load_job
from fsdpkit.config.layers import AssetLayer
from fsdpkit.config.published.index import Announcement
from fsdpkit.config.site import LoadedSite, load_site
from fsdpkit.config.spelling import nearest
from fsdpkit.config.surroundings import Surroundings, of_this_process, stand_in
from fsdpkit.config.template import Template, load_template
from fsdpkit.errors import FsdpkitError, NotFoundError
from fsdpkit.publishing.catalogue.released import Released, announced, released

T = TypeVar("T")
NOBODYS = ("generic", "local")
"""Profiles that are no centre's."""


@dataclass(frozen=True)
class CatalogueProblem:
    """Something that is left out of the catalogue, and why."""

    kind: str
    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.why}"


@dataclass(frozen=True)
class Catalogue:
    """What is shown. Order: by name."""

    surroundings: Surroundings
    """What the form says of a shell until somebody says otherwise; `$HOME` is not set."""
    centres: Sequence[Path]
    sites: Sequence[LoadedSite]
    templates: Sequence[Template]
    jobs: Sequence[tuple[str, LoadedJob]]
    layers: dict[tuple[str, str], str]
    """By kind and name: `packaged`, `centre`, or both."""
    own: Sequence[LoadedSite]
    """The centre's clusters; the others come with fsdpkit."""
    released: Sequence[Released]
    announcements: Sequence[Announcement]
    """Also those of days to come."""
    problems: Sequence[CatalogueProblem]

    def released_as(self, kind: str, name: str) -> Released | None:
        """How the centre published it; None for what is in no signed index."""
        found = (one for one in self.released if (one.kind, one.name) == (kind, name))
        return next(found, None)


def read_catalogue(
    centres: Sequence[Path],
    packaged: str | None = None,
    clusters: Sequence[str] = (),
) -> Catalogue:
    """All of the packaged ones and of the folders of `centres`, the nearest first.

    packaged: where fsdpkit's own lie on the cluster, if not where they do here; clusters: those
    that are the centre's, if not the ones of its folders. Nothing of the person who calls is read.
    Raises UsageError if a folder is missing, NotFoundError for a cluster that there is not.
    """
    here = of_this_process()
    variables = {"HOME": here.variables.get("HOME", "/"), "FSDPKIT_CONFIG_DIR": os.devnull}
    if centres:
        variables["FSDPKIT_SITE_PATH"] = os.pathsep.join(map(str, centres))
    surroundings = Surroundings(
        work_dir=here.work_dir, variables=variables, python=here.python, packaged=here.packaged
    )
    problems: list[CatalogueProblem] = []
    with stand_in(surroundings):
        assets.layers()  # one that is missing is no catalogue
        known = {kind: _known(kind, problems) for kind in ("site", "template", "job")}
        sites = _read("site", known["site"], load_site, problems)
        templates = _read("template", known["template"], load_template, problems)
        jobs = _read("job", known["job"], load_job, problems)
        own = _own([site for _, site in sites], clusters, known["site"])
        published = released(centres, [site for site in own if site.profile.kind == "slurm"])
    for one in published:
        damaged = [version for version in one.versions if version.damage]
        problems += [
            CatalogueProblem(one.kind, f"{one.name} {v.version}", v.damage) for v in damaged
        ]
    return Catalogue(
        surroundings=Surroundings(
            work_dir="",
            variables={k: v for k, v in variables.items() if k == "FSDPKIT_SITE_PATH"},
            python=here.python,
            packaged=packaged or here.packaged,
        ),
        centres=centres,
        sites=[site for _, site in sites],
        templates=[template for _, template in templates],
        jobs=jobs,
        layers={
            (kind, name): " and ".join(dict.fromkeys(layer.name for layer in places))
            for kind, names in known.items()
            for name, places in names.items()
        },
        own=own,
        released=published,
        announcements=announced(centres),
        problems=list(dict.fromkeys(problems)),
    )


def _own(
    sites: Sequence[LoadedSite], named: Sequence[str], layers: dict[str, list[AssetLayer]]
) -> list[LoadedSite]:
    """Those that were named, else those of the centre's folders, else all that are somebody's."""
    by_id = {site.id: site for site in sites}
    for name in named:
        if name not in layers:
            raise NotFoundError(
                f"there is no cluster named {name!r}.{nearest(name, layers)} "
                "fsdpkit sites lists them"
            )
    if named:
        return [by_id[name] for name in dict.fromkeys(named) if name in by_id]
    of_centre = [s for s in sites if "centre" in [layer.name for layer in layers[s.id]]]
    return of_centre or [site for site in sites if site.id not in NOBODYS]


def _known(kind: str, problems: list[CatalogueProblem]) -> dict[str, list[AssetLayer]]:
    """The layers of each name. What cannot be listed at all is a problem of its layer."""
    try:
        found = assets.available(kind)
        return {name: [layer for layer, _ in places] for name, places in found.items()}
    except (FsdpkitError, OSError) as error:
        problems.append(CatalogueProblem(kind, "(all)", _why(error)))
        return {}


def _read(
    kind: str,
    known: dict[str, list[AssetLayer]],
    load: Callable[[str], T],
    problems: list[CatalogueProblem],
) -> list[tuple[str, T]]:
    read = []
    for name in known:
        try:
            read.append((name, load(name)))
        except (FsdpkitError, OSError, RecursionError) as error:
            problems.append(CatalogueProblem(kind, name, _why(error)))
    return read


def _why(error: BaseException) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
    return str(error) or type(error).__name__
