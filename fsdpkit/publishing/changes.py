"""What can be done to an index: pure functions from one to the next.

Each leaves serial, time and signer to whoever writes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import msgspec
from msgspec.structs import replace

from fsdpkit.config.published.choosing import (
    current,
    highest,
    in_words,
    matches,
    numbers,
    why_withdrawn,
)
from fsdpkit.config.published.index import (
    KINDS,
    MOST_ANNOUNCEMENTS,
    Announcement,
    Channel,
    Deprecated,
    IndexEntry,
    PublishedIndex,
    PublishedVersion,
    Withdrawn,
    manifest_bytes,
    sha256,
    today,
)
from fsdpkit.config.spelling import nearest
from fsdpkit.errors import ConfigError, NotFoundError, UsageError
from fsdpkit.publishing.drafts import VersionDraft


@dataclass(frozen=True)
class PublishingStep:
    """What happened to one thing."""

    kind: str
    name: str
    version: str
    """That was published, withdrawn, or that the channel points to now."""
    sha256: str
    what: str
    """`published`, `as before`, `restored`, `promoted`, `rolled back`, `withdrawn`, `deprecated`,
    `not deprecated`; of an announcement, whose name is its id, `published` or `removed`."""
    channel: Channel | None
    now: str | None
    """What the channel (without one: stable) points to now; None: nothing."""
    before: str | None
    """And what it pointed to."""


Change = Callable[[PublishedIndex, str, float], tuple[PublishedIndex, PublishingStep]]
"""From an index, whoever makes the change, and the time."""


def changed(
    changes: Iterable[Change], index: PublishedIndex, by: str, at_s: float
) -> tuple[PublishedIndex, list[PublishingStep]]:
    """The index after all changes, in order, and what each did."""
    steps = []
    for change in changes:
        index, step = change(index, by, at_s)
        steps.append(step)
    return index, steps


def publish(
    draft: VersionDraft, channel: Channel, index: PublishedIndex, by: str, at_s: float
) -> tuple[PublishedIndex, PublishingStep]:
    """The index with the draft's version in it and, unless that is an older one, the channel at it.
    Raises ConfigError where the version is there with other files, or was withdrawn."""
    entry = index.entry(draft.kind, draft.name)
    version = draft.version_in(entry)
    digest = sha256(manifest_bytes(draft.manifest(version)))
    entry = entry or IndexEntry(kind=draft.kind, name=draft.name, versions={})
    there = entry.versions.get(version)
    if there is not None and there.sha256 != digest:
        raise ConfigError(
            f"{draft.kind} {draft.name} {version} is published already, with other files: a version"
            f" never changes. Give {draft.source} a new one, above {highest(entry.versions)}"
        )
    if there is not None and there.withdrawn is not None:
        raise ConfigError(
            f"{why_withdrawn(entry, version)}. What was withdrawn stays so: publish other files"
            + ("" if draft.version is None else ", under a new version")
        )
    before = current(entry, channel)
    published = there or PublishedVersion(sha256=digest, by=by, at_s=at_s)
    changed = replace(entry, versions={**entry.versions, version: published})
    changed = _pointed(changed, channel, version, ordered=draft.version is not None)
    now = current(changed, channel)
    what = "published" if there is None else "as before" if now == before else "promoted"
    step = PublishingStep(draft.kind, draft.name, version, digest, what, channel, now, before)
    return _with(index, changed), step


def _pointed(entry: IndexEntry, channel: Channel, version: str, *, ordered: bool) -> IndexEntry:
    """The entry with the channel at `version`; where versions are ordered, one that is below the
    channel's is put behind it, for those who pin its series."""
    history = list(entry.history(channel))
    now = current(entry, channel) if history else None
    if ordered and now is not None and numbers(version) < numbers(now):
        if version not in history:
            history.insert(0, version)
    elif not history or history[-1] != version:
        history = [*(v for v in history if v != version), version]
    if channel == "testing":
        return replace(entry, testing=history)
    # What was being tested and is no newer than this is not being tested any more.
    newer = [v for v in entry.testing if ordered and numbers(v) > numbers(version)]
    return replace(entry, stable=history, testing=newer)


def promote(
    name: str, channel: Channel, index: PublishedIndex
) -> tuple[PublishedIndex, PublishingStep]:
    """The channel at `NAME@VERSION`, whichever came before. Raises NotFoundError, ConfigError."""
    entry, version = _version(index, name)
    if entry.versions[version].withdrawn is not None:
        raise ConfigError(why_withdrawn(entry, version))
    before = current(entry, channel)
    changed = _pointed(entry, channel, version, ordered=False)
    if channel == "stable":
        changed = replace(changed, testing=[v for v in entry.testing if _above(v, version)])
    digest = entry.versions[version].sha256
    what = "as before" if before == version else "promoted"
    return _with(index, changed), PublishingStep(
        entry.kind, entry.name, version, digest, what, channel, version, before
    )


def _above(one: str, other: str) -> bool:
    return numbers(one) > numbers(other)


def rollback(
    name: str, channel: Channel, index: PublishedIndex
) -> tuple[PublishedIndex, PublishingStep]:
    """The channel at the version before the one that it points to. Raises NotFoundError."""
    entry = _entry(index, name)
    history = entry.history(channel)
    usable = [v for v in history if entry.versions[v].withdrawn is None]
    if len(usable) < 2:
        only = f"it points to {usable[0]} and has pointed to no other" if usable else "it is empty"
        raise NotFoundError(
            f"{entry.kind} {entry.name} has no version before on {channel}: {only} that was not "
            f"withdrawn. There is {in_words(entry)}"
        )
    left = history[: history.index(usable[-1])]
    changed = replace(entry, stable=left) if channel == "stable" else replace(entry, testing=left)
    version = usable[-2]
    digest = entry.versions[version].sha256
    step = PublishingStep(
        entry.kind, entry.name, version, digest, "rolled back", channel, version, usable[-1]
    )
    return _with(index, changed), step


def withdraw(
    name: str, reason: str, instead: str | None, index: PublishedIndex, by: str, at_s: float
) -> tuple[PublishedIndex, PublishingStep]:
    """`NAME@VERSION` marked as not to be used. Raises NotFoundError, UsageError."""
    entry, version = _version(index, name)
    published = entry.versions[version]
    before = current(entry, "stable")
    gone = Withdrawn(reason=reason, by=by, at_s=at_s, instead=instead)
    changed = replace(
        entry, versions={**entry.versions, version: replace(published, withdrawn=gone)}
    )
    now = current(changed, "stable")
    step = PublishingStep(
        entry.kind, entry.name, version, published.sha256, "withdrawn", None, now, before
    )
    return _with(index, changed), step


def deprecate(
    name: str,
    until: date | None,
    successor: str,
    index: PublishedIndex,
    by: str,
    at_s: float,
) -> tuple[PublishedIndex, PublishingStep]:
    """`NAME@VERSION` to be replaced by another by a day; None: not any more. Raises NotFoundError,
    UsageError, and ConfigError where either was withdrawn."""
    entry, version = _version(index, name)
    made = None
    if until is not None:
        other, next_one = _version(index, successor)
        for one, its in ((entry, version), (other, next_one)):
            if one.versions[its].withdrawn is not None:
                raise ConfigError(why_withdrawn(one, its))
        if other.kind != entry.kind or (other, next_one) == (entry, version):
            raise UsageError(f"{successor} cannot take the place of {entry.kind} {name}")
        made = Deprecated(until=until, successor=f"{other.name}@{next_one}", by=by)
    published = replace(entry.versions[version], deprecated=made)
    now = current(entry, "stable")
    what = "deprecated" if made else "not deprecated"
    step = PublishingStep(entry.kind, entry.name, version, published.sha256, what, None, now, now)
    return _with(index, replace(entry, versions={**entry.versions, version: published})), step


def announce(
    said: Mapping[str, Any], index: PublishedIndex, by: str, at_s: float
) -> tuple[PublishedIndex, PublishingStep]:
    """The index with an announcement, by its fields, and without those that are over. Raises
    UsageError."""
    own = sha256(msgspec.json.encode(said))[:8]
    left = [a for a in index.announcements if a.id != own and (a.until or today()) >= today()]
    try:
        made = msgspec.convert({**said, "id": own, "by": by}, Announcement)
    except msgspec.ValidationError as error:
        raise UsageError(f"the announcement is not as users could read it: {error}") from None
    if len(left) >= MOST_ANNOUNCEMENTS:
        raise UsageError(f"there are {len(left)} announcements: remove one first")
    return replace(index, announcements=[*left, made]), _announced(own, "published")


def take_back(own: str, index: PublishedIndex) -> tuple[PublishedIndex, PublishingStep]:
    """The index without the announcement of this id. Raises NotFoundError."""
    left = [a for a in index.announcements if a.id != own]
    if len(left) == len(index.announcements):
        known = ", ".join(a.id for a in left)
        raise NotFoundError(f"there is no announcement {own!r}. There is {known or 'none'}")
    return replace(index, announcements=left), _announced(own, "removed")


def _announced(own: str, what: str) -> PublishingStep:
    return PublishingStep("announcement", own, "", "", what, None, None, None)


def _entry(index: PublishedIndex, name: str) -> IndexEntry:
    """By `NAME`, or `KIND/NAME` where two kinds have it. Raises NotFoundError, UsageError."""
    kind, slash, bare = name.rpartition("/")
    if slash and kind not in KINDS:
        raise UsageError(f"{name}: before the slash stands one of {', '.join(KINDS)}")
    found = [e for e in index.entries if e.name == bare and kind in ("", e.kind)]
    if len(found) > 1:
        both = " or ".join(f"{entry.kind}/{bare}" for entry in found)
        raise UsageError(f"{bare} is the name of several: say {both}")
    if not found:
        known = [entry.name for entry in index.entries]
        raise NotFoundError(
            f"nothing named {name!r} is published.{nearest(bare, known)} "
            f"Published: {', '.join(known) or 'nothing'}."
        )
    return found[0]


def _version(index: PublishedIndex, name: str) -> tuple[IndexEntry, str]:
    """By `NAME@VERSION`, whole. Raises NotFoundError, UsageError."""
    bare, at, version = name.partition("@")
    entry = _entry(index, bare)
    if not at:
        raise UsageError(f"{name}: say which version, such as {bare}@{highest(entry.versions)}")
    if version not in entry.versions:
        near = [v for v in entry.versions if version[:1].isdigit() and _begins(v, version)]
        hint = f"; say {bare}@{highest(near)}" if near else ""
        raise NotFoundError(
            f"{entry.kind} {entry.name} has no version {version!r}{hint}: there is "
            f"{in_words(entry)}"
        )
    return entry, version


def _begins(version: str, start: str) -> bool:
    return all(part.isdecimal() for part in start.split(".")) and matches(version, start)


def _with(index: PublishedIndex, entry: IndexEntry) -> PublishedIndex:
    others = [e for e in index.entries if (e.kind, e.name) != (entry.kind, entry.name)]
    return replace(index, entries=sorted([*others, entry], key=lambda e: (e.kind, e.name)))
