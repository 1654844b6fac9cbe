"""Which version of something a person gets: by channel, or by the pin behind `@`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from fsdpkit.config.published.index import CHANNELS, Channel, IndexEntry, Kind, today
from fsdpkit.errors import ConfigError, UsageError

_NUMBERS = re.compile(r"\d{1,9}(\.\d{1,9}){0,2}")


def channel_of_user() -> Channel:
    """`$FSDPKIT_CHANNEL`, else `stable`. Raises UsageError."""
    chosen = os.environ.get("FSDPKIT_CHANNEL") or "stable"
    if chosen not in CHANNELS:
        raise UsageError(f"FSDPKIT_CHANNEL is {chosen!r}; the channels are {', '.join(CHANNELS)}")
    return "testing" if chosen == "testing" else "stable"


def check_pin(name: str, pin: str) -> None:
    """Raises UsageError for what is neither a version, nor the beginning of one, nor a channel."""
    if pin not in CHANNELS and not _NUMBERS.fullmatch(pin):
        raise UsageError(
            f"{name}@{pin}: behind @ stands a version (2, 2.1 or 2.1.0), stable or testing"
        )


def numbers(version: str) -> tuple[int, ...]:
    """For comparing: 2.10.0 comes after 2.9.0."""
    return tuple(map(int, version.split(".")))


def matches(version: str, pin: str) -> bool:
    wanted = numbers(pin)
    return numbers(version)[: len(wanted)] == wanted


def highest(versions: Iterable[str]) -> str | None:
    return max(versions, key=numbers, default=None)


def current(entry: IndexEntry, channel: Channel) -> str | None:
    """What the channel points to, past what was withdrawn; testing falls back to stable."""
    for version in reversed(entry.history(channel)):
        if entry.versions[version].withdrawn is None:
            return version
    return current(entry, "stable") if channel == "testing" else None


def chosen(entry: IndexEntry, pin: str | None, channel: Channel) -> str | None:
    """The version that `pin`, or without one the channel, stands for; None: there is none.

    A pin such as `2` means the highest version of the channel that begins so; what was rolled back
    is no longer in the channel. A whole version means that one, whatever its channel. Raises
    ConfigError for what was withdrawn.
    """
    if pin is None or pin in CHANNELS:
        wanted: Channel = channel if pin is None else "testing" if pin == "testing" else "stable"
        found = current(entry, wanted)
        if found is None and (gone := _newest_withdrawn(entry, entry.history(wanted))):
            raise ConfigError(why_withdrawn(entry, gone))
        return found
    if pin in entry.versions:
        if entry.versions[pin].withdrawn is not None:
            raise ConfigError(why_withdrawn(entry, pin))
        return pin
    open_to = {*entry.stable, *(entry.testing if channel == "testing" else ())}
    matching = [version for version in open_to if matches(version, pin)]
    left = [version for version in matching if entry.versions[version].withdrawn is None]
    if matching and not left:
        raise ConfigError(why_withdrawn(entry, highest(matching) or ""))
    return highest(left)


def _newest_withdrawn(entry: IndexEntry, history: list[str]) -> str | None:
    return next((v for v in reversed(history) if entry.versions[v].withdrawn is not None), None)


def passed_over(entry: IndexEntry, version: str) -> str | None:
    """Why whoever follows a channel gets `version`, where a newer one of it was withdrawn."""
    for history in (entry.testing, entry.stable):
        behind = history[history.index(version) + 1 :] if version in history else []
        if gone := [v for v in behind if entry.versions[v].withdrawn is not None]:
            return why_withdrawn(entry, gone[-1], instead=f"{version} is used")
    return None


def why_withdrawn(entry: IndexEntry, version: str, instead: str | None = None) -> str:
    gone = entry.versions[version].withdrawn
    assert gone is not None
    now = current(entry, "stable")
    instead = (
        instead
        or gone.instead
        or (
            f"use {entry.name}@{now}, or {entry.name} without a version"
            if now
            else f"nothing takes its place yet; ask {gone.by}"
        )
    )
    return (
        f"{entry.kind} {entry.name} {version} was withdrawn by {gone.by}: {gone.reason}; {instead}"
    )


_HOW: dict[Kind, str] = {
    "template": 'template = "{}"',
    "site": "--cluster {}",
    "job": "fsdpkit submit {}",
}


def why_deprecated(entry: IndexEntry, version: str) -> str | None:
    """What its users are told of its end; None: it has none."""
    if (ends := entry.versions[version].deprecated) is None:
        return None
    when = f"by {ends.until}"
    if today() > ends.until:
        when = f"now, for its last day was {ends.until} and it may be withdrawn at any time"
    return (
        f"{entry.kind} {entry.name} {version} is deprecated: change to {ends.successor} "
        f"({_HOW[entry.kind].format(ends.successor)}) {when}"
    )


def was_rolled_back(entry: IndexEntry, version: str) -> bool:
    """Whether a channel pointed to it and was put back: what is newer than the stable version
    leaves the channels in no other way but by being withdrawn."""
    if version in (*entry.stable, *entry.testing) or entry.versions[version].withdrawn is not None:
        return False
    now = current(entry, "stable")
    return now is None or numbers(version) > numbers(now)


def why_none(entry: IndexEntry, pin: str, channel: Channel) -> str:
    """What there is, where a pin stands for none of it; after a rollback what to do, too."""
    there, gone = in_words(entry), None
    if pin not in CHANNELS:
        gone = highest(v for v in entry.versions if matches(v, pin) and was_rolled_back(entry, v))
    if gone is None:
        return there
    now = current(entry, channel)
    instead = f"leave @{pin} out, which gives {now}, or " if now else ""
    return (
        f"{there}. {gone} was rolled back, so @{pin} stands for no version now: {instead}name it "
        f"whole ({entry.name}@{gone}) to use it all the same"
    )


def in_words(entry: IndexEntry) -> str:
    """`2.0.0 (stable), 2.1.0 (testing), 1.0.0 (withdrawn)`, the newest first."""
    words = []
    for version in sorted(entry.versions, key=numbers, reverse=True):
        marks: list[str] = [c for c in CHANNELS if version == current(entry, c)]
        if entry.versions[version].withdrawn is not None:
            marks = ["withdrawn"]
        elif was_rolled_back(entry, version):
            marks = ["rolled back"]
        elif version not in entry.stable:
            marks = ["testing" if version in entry.testing else "in no channel"]
        words.append(f"{version} ({', '.join(marks)})" if marks else version)
    return ", ".join(words)
