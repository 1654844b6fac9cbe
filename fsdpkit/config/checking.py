"""Everything of one kind that can be found: what can be used, and what cannot, with the reason.

One file that is wrong must not keep people from all others: lists leave it out and say so, and
`--check` is for whoever has to correct it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fsdpkit.config import assets
from fsdpkit.config.job_loading import load_job
from fsdpkit.config.layers import AssetLayer, Places
from fsdpkit.config.loading import read_place, read_toml
from fsdpkit.config.published.centre import content_of, open_centre
from fsdpkit.config.site import load_site
from fsdpkit.config.template import load_template, template_in
from fsdpkit.config.trust import rules_of_centres
from fsdpkit.errors import ConfigError, FsdpkitError, NotFoundError

T = TypeVar("T")
_LOADERS: dict[str, Callable[[str], Any]] = {
    "job": load_job,
    "site": load_site,
    "template": load_template,
}


@dataclass(frozen=True)
class BrokenFile:
    """Something that cannot be used; `why` names the file."""

    name: str
    layer: str
    path: Path
    why: str


def load_all(kind: str, load: Callable[[str], T]) -> tuple[dict[str, T], list[BrokenFile]]:
    """What `load` makes of each name, and what cannot be used. Raises ConfigError for defaults
    that are broken, for they lie beneath every job."""
    if kind == "job":
        for _, path in assets.defaults_files():
            read_toml(path)
    good: dict[str, T] = {}
    broken = []
    for name, places in assets.available(kind).items():
        try:
            good[name] = load(name)
        except (ConfigError, NotFoundError) as error:
            layer, path = _to_blame(kind, places)
            broken.append(BrokenFile(name, layer.name, path, str(error)))
    return good, broken


def _to_blame(kind: str, places: Places) -> tuple[AssetLayer, Path]:
    """The first place that cannot be read by itself, else the nearest."""
    wrong = (place for place in places if _why_not(kind, *place) is not None)
    return next(wrong, places[-1])


def check_all(kind: str) -> tuple[int, list[BrokenFile]]:
    """How many files were looked at, and all that is wrong: also what a nearer one hides, older
    versions that people may have pinned, and folders that cannot be looked into."""
    try:
        good, broken = load_all(kind, _LOADERS[kind])
    except ConfigError as error:
        return 1, [BrokenFile("defaults", "", assets.user_dir(), str(error))]
    checked = len(good) + len(broken)
    try:
        rules_of_centres()
    except ConfigError as error:
        broken.append(BrokenFile("trust.toml", "centre", Path("trust.toml"), str(error)))
    found = {(one.name, one.layer) for one in broken}
    for name, places in assets.available(kind).items():
        for layer, path in places if kind == "template" and name in good else ():
            if (name, layer.name) not in found and (why := _why_not(kind, layer, path)):
                broken.append(BrokenFile(name, layer.name, path, why))
    for layer in assets.centre_layers():
        for one in _of_centre(kind, layer):
            checked += 1
            if one is not None:
                broken.append(one)
        broken += _closed(kind, layer)
    return checked, broken


def _why_not(kind: str, layer: AssetLayer, path: Path) -> str | None:
    try:
        if kind == "template":
            template_in(path, layer)
        else:
            read_place(layer, path)
    except FsdpkitError as error:
        return str(error)
    return None


def _of_centre(kind: str, layer: AssetLayer) -> Iterator[BrokenFile | None]:
    """Each published version: None if it is as it was signed."""
    centre = open_centre(layer.dir)
    for entry in centre.index.entries if centre else ():
        for version in entry.versions if entry.kind == kind else ():
            assert centre is not None
            release = centre.release(entry, version, "pinned")
            try:
                content_of(release)
                yield None
            except ConfigError as error:
                yield BrokenFile(f"{entry.name}@{version}", layer.name, release.dir, str(error))


def _closed(kind: str, layer: AssetLayer) -> Iterator[BrokenFile]:
    """Folders of the centre that cannot be listed: what lies there is as if it were not."""
    for path in assets.closed_folders(kind, layer):
        yield BrokenFile(path.name, layer.name, path, f"{path} cannot be looked into")
