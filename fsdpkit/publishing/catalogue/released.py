"""What a centre published: every version with its channels, its signer, why it was withdrawn and
what it changed.

Signatures and checksums are verified here, where there is an ssh-keygen; a page has none. A version
whose files are not as signed is shown with the reason and used for nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fsdpkit.config.layers import AssetLayer
from fsdpkit.config.published.centre import Centre, content_of, open_centre
from fsdpkit.config.published.choosing import current, numbers, why_deprecated
from fsdpkit.config.published.index import Announcement, IndexEntry, main_file, today
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.template import Parameter, Template, template_in
from fsdpkit.errors import FsdpkitError
from fsdpkit.publishing.catalogue.facts import in_words
from fsdpkit.publishing.template_diff import ScriptsCompared, compare

MOST_COMPARED = 8
"""Versions whose scripts are compared with those before; each costs a second or two."""
MOST_CLUSTERS = 4


@dataclass(frozen=True)
class Withdrawal:
    reason: str
    by: str
    on: str
    instead: str


@dataclass(frozen=True)
class VersionChanges:
    """Between two versions of a template."""

    since: str
    parameters: Sequence[str]
    """In words, one each."""
    scripts: ScriptsCompared
    clusters: Sequence[str]
    """For which scripts were compared."""


@dataclass(frozen=True)
class Version:
    """One version. on: the day it was published, UTC."""

    version: str
    channels: Sequence[str]
    by: str
    on: str
    sha256: str
    withdrawn: Withdrawal | None
    deprecated: str
    """What its users are told of its end."""
    damage: str = ""
    """Why its files are not what was signed."""
    template: Template | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    """What its authors say of it: the text files beside the template, by name."""
    changes: VersionChanges | None = None


@dataclass(frozen=True)
class Released:
    """All versions of one template, profile or job, the newest first."""

    kind: str
    name: str
    centre: Path
    signer: str
    """Who signed the index that names them; verified."""
    signed: str
    """When, a date."""
    serial: int
    versions: Sequence[Version]

    @property
    def shown(self) -> Version | None:
        """The one that users get who ask for none."""
        return next((one for one in self.versions if "stable" in one.channels), None)


def released(centres: Sequence[Path], sites: Sequence[LoadedSite]) -> list[Released]:
    """Of the publishing centres. sites: for which versions of templates are compared."""
    found = []
    for centre in _opened(centres):
        for entry in centre.index.entries:
            newest_first = sorted(entry.versions, key=numbers, reverse=True)
            versions = [_version(centre, entry, version) for version in newest_first]
            if entry.kind == "template":
                versions = [*_with_changes(versions, sites)]
            found.append(
                Released(
                    entry.kind,
                    entry.name,
                    centre.dir,
                    centre.index.by,
                    day(centre.index.at_s),
                    centre.index.serial,
                    versions,
                )
            )
    return found


def announced(centres: Sequence[Path]) -> list[Announcement]:
    """What centres tell their users today or later, the newest first."""
    found = [one for centre in _opened(centres) for one in reversed(centre.index.announcements)]
    return [one for one in found if (one.until or today()) >= today()]


def _opened(centres: Sequence[Path]) -> Iterator[Centre]:
    for directory in centres:
        with contextlib.suppress(FsdpkitError):  # nothing of it is used; the catalogue says so
            if (centre := open_centre(directory)) is not None:
                yield centre


def day(at_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at_s))


def _version(centre: Centre, entry: IndexEntry, version: str) -> Version:
    published = entry.versions[version]
    gone = published.withdrawn
    release = centre.release(entry, version, "pinned")
    made = Version(
        version,
        _channels(entry, version),
        published.by,
        day(published.at_s),
        published.sha256,
        Withdrawal(gone.reason, gone.by, day(gone.at_s), gone.instead or "") if gone else None,
        why_deprecated(entry, version) or "",
    )
    try:
        content = content_of(release)
        if entry.kind != "template":
            return made
        layer = AssetLayer("centre", centre.dir, release)
        template = template_in(release.dir / main_file(entry.kind, entry.name), layer)
    except FsdpkitError as error:
        return replace(made, damage=str(error))
    texts = {
        name: content[path].decode("utf-8", "replace")
        for name in ("README.md", "CHANGES.md", "CHANGELOG.md")
        if (path := f"{entry.name}/{name}") in content
    }
    return replace(made, template=template, texts=texts)


def _channels(entry: IndexEntry, version: str) -> list[str]:
    """Those that lead to it; testing only where something else is tested than what is stable."""
    stable = version == current(entry, "stable")
    testing = not stable and version == current(entry, "testing")
    return [name for name, leads in (("stable", stable), ("testing", testing)) if leads]


def _with_changes(versions: Sequence[Version], sites: Sequence[LoadedSite]) -> Iterator[Version]:
    """Each beside the version before it that was not withdrawn."""
    for at, new in enumerate(versions):
        before = next(
            (one for one in versions[at + 1 :] if one.template and not one.withdrawn), None
        )
        if at < MOST_COMPARED and before and before.template and new.template:
            yield replace(new, changes=_changes(before, before.template, new.template, sites))
        else:
            yield new


def _changes(
    before: Version, old: Template, new: Template, sites: Sequence[LoadedSite]
) -> VersionChanges:
    sites = sites[:MOST_CLUSTERS]
    return VersionChanges(
        before.version,
        [*parameter_changes(old.manifest.parameters, new.manifest.parameters)],
        # The header's line about the release differs anyway.
        compare(replace(old, release=None), replace(new, release=None), sites),
        [site.profile.title for site in sites],
    )


def parameter_changes(old: Mapping[str, Parameter], new: Mapping[str, Parameter]) -> Iterator[str]:
    """In words: what jobs may set now, no longer, or otherwise."""
    for name in sorted(new.keys() - old.keys()):
        default = new[name].default
        worth = "no default" if default is None else f"default {in_words(default)}"
        yield f"new parameter {name} ({worth})"
    for name in sorted(old.keys() - new.keys()):
        yield f"parameter {name} is gone"
    for name in sorted(old.keys() & new.keys()):
        for key in Parameter.__struct_fields__:
            was, now = getattr(old[name], key), getattr(new[name], key)
            if was != now and key != "help":
                yield f"{name}: {key} {in_words(was) or 'unset'} → {in_words(now) or 'unset'}"
