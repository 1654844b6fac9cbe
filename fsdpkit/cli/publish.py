"""`fsdpkit publish`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsdpkit.cli.groups import FirstWordOrCommand
from fsdpkit.cli.json_output import Answer, answer, json_option
from fsdpkit.cli.options import table

if TYPE_CHECKING:
    from datetime import date, datetime

    from fsdpkit.config.published.index import Announcement, Channel, IndexEntry, Kind
    from fsdpkit.publishing.changes import Change, PublishingStep
    from fsdpkit.publishing.drafts import VersionDraft
    from fsdpkit.publishing.signing import Signer

_CHANNEL = click.Choice(["stable", "testing"])


@answer("fsdpkit.publish/1")
def _changed(
    centre: Path, serial: int, signer: str, written: bool, steps: Sequence[PublishingStep]
) -> None:
    """A change to what a centre publishes; with --dry-run it was not written."""


@dataclass(frozen=True)
class ListedVersion:
    """A version that is or was published. channels: that point to it now. withdrawn: why.
    deprecated: what its users are told."""

    kind: Kind
    name: str
    version: str
    sha256: str
    channels: list[str]
    published_s: float
    by: str
    withdrawn: str | None
    deprecated: str | None


@answer("fsdpkit.publish-list/1")
def _published(
    centre: Path,
    serial: int,
    signer: str,
    signed_s: float,
    key_ends_s: float | None,
    versions: Sequence[ListedVersion],
    announcements: Sequence[Announcement],
) -> None:
    """All versions that a centre has published, as its signed index has them.

    key_ends_s: when the signer's key stops counting; null: not within the next sixty days.
    """


def _options(*which: str, prints: Answer[Any] = _changed) -> Callable[[Any], Any]:
    known = {
        "to": click.option(
            "--to", metavar="CENTRE", help="Folder of the centre (default: FSDPKIT_SITE_PATH's)."
        ),
        "channel": click.option(
            "--channel", type=_CHANNEL, default="stable", help="Who gets it (default: stable)."
        ),
        "key": click.option(
            "--key",
            metavar="FILE",
            help="SSH key to sign with, or the public one that an agent has the key of "
            "(default: FSDPKIT_SIGNING_KEY, then ~/.ssh/id_*).",
        ),
        "as": click.option(
            "--as", "name", metavar="NAME", help="Who signs, as allowed_signers names you."
        ),
        "dry": click.option("--dry-run", is_flag=True, help="Say what would change; sign nothing."),
    }

    def add(function: Any) -> Any:
        for name in reversed(which):
            function = known[name](function)
        return json_option(prints)(function)

    return add


def _date(*names: str, help: str) -> Callable[[Any], Any]:
    def day_of(context: click.Context, option: click.Parameter, at: datetime | None) -> date | None:
        return at.date() if at else None

    form = click.DateTime(["%Y-%m-%d"])
    return click.option(*names, type=form, callback=day_of, metavar="DATE", help=help)


@click.group("publish", cls=FirstWordOrCommand, first="DIR")
def command() -> None:
    """Publish templates, profiles and jobs to a centre's users: signed, each version for good.

    \b
      fsdpkit publish templates/torchrun --to /apps/fsdpkit
      fsdpkit publish templates/torchrun --to /apps/fsdpkit --channel testing
      fsdpkit publish rollback torchrun --to /apps/fsdpkit
      fsdpkit publish withdraw torchrun@2.1.0 --reason "asks for no GPUs" --to /apps/fsdpkit
      fsdpkit publish announce "Tuesday: maintenance" --until 2027-03-02 --to /apps/fsdpkit
      fsdpkit publish list --to /apps/fsdpkit

    DIR is a template's folder, a job's or a profile's file, or a folder with templates, jobs and
    site/profiles. Its options: fsdpkit publish DIR --help.
    """


@command.command("start")
@click.argument("source", metavar="DIR", type=click.Path())
@_options("to", "channel", "key", "as", "dry")
def start(source: str, channel: Channel, **about: Any) -> int:
    """Publish what lies at DIR."""
    from fsdpkit.publishing.changes import publish
    from fsdpkit.publishing.drafts import drafts_of

    drafts = drafts_of(Path(source))
    return _change([partial(publish, draft, channel) for draft in drafts], drafts, **about)


@command.command("promote")
@click.argument("version", metavar="NAME@VERSION")
@_options("to", "channel", "key", "as", "dry")
def promote_command(version: str, channel: Channel, **about: Any) -> int:
    """Point a channel to NAME@VERSION, which is published already."""
    from fsdpkit.publishing.changes import promote

    return _change([lambda index, by, at_s: promote(version, channel, index)], **about)


@command.command("rollback")
@click.argument("what", metavar="NAME")
@_options("to", "channel", "key", "as", "dry")
def rollback_command(what: str, channel: Channel, **about: Any) -> int:
    """Point a channel to the version of NAME that it pointed to before."""
    from fsdpkit.publishing.changes import rollback

    return _change([lambda index, by, at_s: rollback(what, channel, index)], **about)


@command.command("withdraw")
@click.argument("version", metavar="NAME@VERSION")
@click.option("--reason", metavar="TEXT", required=True, help="Why; users are shown it.")
@click.option("--instead", metavar="TEXT", help="What to use in its place (default: stable).")
@_options("to", "key", "as", "dry")
def withdraw_command(version: str, reason: str, instead: str | None, **about: Any) -> int:
    """Refuse NAME@VERSION to everybody from now on, with the reason."""
    from fsdpkit.publishing.changes import withdraw

    why = _words("--reason", reason)
    other = None if instead is None else _words("--instead", instead)
    return _change([partial(withdraw, version, why, other)], **about)


def _words(option: str, text: str) -> str:
    from fsdpkit.config.loading import CONTROL_CHARACTER

    if not text.strip() or len(text) > 500 or CONTROL_CHARACTER.search(text):
        raise click.UsageError(f"{option}: one line of text, of 500 characters at most.")
    return text.strip()


@command.command("deprecate")
@click.argument("version", metavar="NAME@VERSION")
@_date("--until", "until", help="Last day on which it should be used.")
@click.option("--successor", metavar="NAME@VERSION", help="What to use in its place.")
@click.option("--withdraw", is_flag=True, help="It is not deprecated any more.")
@_options("to", "key", "as", "dry")
def deprecate_command(
    version: str, until: date | None, successor: str | None, withdraw: bool, **about: Any
) -> int:
    """Tell users of NAME@VERSION until when to change, and to what; it works until withdrawn."""
    from fsdpkit.publishing.changes import deprecate

    if (until is None) is not withdraw or (successor is None) is not withdraw:
        raise click.UsageError("Say --until and --successor, or --withdraw alone.")
    return _change([partial(deprecate, version, until, successor or "")], **about)


@command.command("announce")
@click.argument("text", required=False)
@_date("--from", "since", help="First day (default: today).")
@_date("--until", "until", help="Last day (default: until it is withdrawn).")
@click.option("--partition", metavar="NAME", help="Only for jobs of this partition.")
@click.option("--withdraw", metavar="ID", help="Remove an announcement (fsdpkit publish list).")
@_options("to", "key", "as", "dry")
def announce_command(text: str | None, withdraw: str | None, **about: Any) -> int:
    """Show every user TEXT, one line, once."""
    from fsdpkit.config.published.index import today
    from fsdpkit.publishing.changes import announce, take_back

    said = {name: about.pop(name) for name in ("since", "until", "partition")}
    if (text is None) is (withdraw is None):
        raise click.UsageError("Say TEXT, or --withdraw ID.")
    if withdraw is not None:
        return _change([lambda index, by, at_s: take_back(withdraw, index)], **about)
    said |= {"text": _words("TEXT", text or ""), "since": said["since"] or today()}
    return _change([partial(announce, said)], **about)


@command.command("sign")
@_options("to", "key", "as")
def sign_command(**about: Any) -> int:
    """Sign the present index anew, after its signer's key has expired or was removed.

    You vouch for all that it names: look at it first (fsdpkit publish list).
    """
    return _change([], renew=True, **about)


@command.command("list")
@_options("to", prints=_published)
def list_command(to: str | None, as_json: bool) -> int:
    """List every version that is published, and what the channels point to."""
    from fsdpkit.publishing.signing import ends_at_s, warning
    from fsdpkit.publishing.writing import load

    centre = _centre(to)
    index = load(centre)
    ends_s = ends_at_s(centre)
    versions = [one for entry in index.entries for one in _versions(entry)]
    said = index.announcements
    if as_json:
        return _published(centre, index.serial, index.by, index.at_s, ends_s, versions, said)
    for one in said:
        click.echo(f"announcement {one.id}, by {one.by}, {one.days}: {one.told}")
    if not versions:
        click.echo("nothing is published yet")
        return 0
    click.echo(f"signed by {index.by} on {_day(index.at_s)}, serial {index.serial}")
    if ends_s is not None:
        click.echo(f"fsdpkit: warning: {warning(centre, index.by, ends_s)}", err=True)
    columns = {
        "NAME": [one.name for one in versions],
        "KIND": [one.kind for one in versions],
        "VERSION": [one.version for one in versions],
        "PUBLISHED": [_day(one.published_s) for one in versions],
        "SHA256": [one.sha256[:12] for one in versions],
    }
    if any(one.by != index.by for one in versions):
        columns["BY"] = [one.by for one in versions]
    columns["CHANNELS"] = [
        f"withdrawn: {one.withdrawn}"
        if one.withdrawn
        else ", ".join([*one.channels, *(["deprecated"] if one.deprecated else [])]) or "-"
        for one in versions
    ]
    table([*columns], [list(row) for row in zip(*columns.values(), strict=True)])
    return 0


def _versions(entry: IndexEntry) -> list[ListedVersion]:
    from fsdpkit.config.published.choosing import current, numbers, why_deprecated

    now = {"stable": current(entry, "stable"), "testing": current(entry, "testing")}
    return [
        ListedVersion(
            kind=entry.kind,
            name=entry.name,
            version=version,
            sha256=entry.versions[version].sha256,
            channels=[channel for channel, at in now.items() if at == version],
            published_s=entry.versions[version].at_s,
            by=entry.versions[version].by,
            withdrawn=gone.reason if (gone := entry.versions[version].withdrawn) else None,
            deprecated=why_deprecated(entry, version),
        )
        for version in sorted(entry.versions, key=numbers, reverse=True)
    ]


def _day(at_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at_s))


def _change(
    changes: Sequence[Change],
    drafts: Sequence[VersionDraft] = (),
    *,
    to: str | None,
    key: str | None,
    name: str | None,
    as_json: bool,
    dry_run: bool = False,
    renew: bool = False,
) -> int:
    from fsdpkit.publishing import writing
    from fsdpkit.publishing.changes import changed

    centre = _centre(to)
    for draft in drafts:
        if draft.personal:
            keys = ", ".join(draft.personal)
            click.echo(
                f"fsdpkit: warning: whoever uses {draft.kind} {draft.name} gets its {keys}: leave "
                f"out of {draft.source} what is yours alone",
                err=True,
            )
    if dry_run:
        index, steps = changed(changes, writing.load(centre), "you", time.time())
    else:
        index, steps = writing.change(centre, _signer(key, name), changes, drafts, renew=renew)
    if as_json:
        return _changed(centre, index.serial, index.by, not dry_run, steps)
    for step in steps:
        click.echo(("would be: " if dry_run else "") + _told(step))
    if not dry_run:
        click.echo(f"{centre}: signed by {index.by}, serial {index.serial}")
    return 0


def _told(step: PublishingStep) -> str:
    what = " ".join(filter(None, (step.kind, step.name, step.version)))
    if step.what == "withdrawn":
        return f"{what} withdrawn; stable is {step.now or 'nothing: users are refused'}"
    if step.channel is None:
        return f"{what} {step.what}"
    where = f"{step.channel} is {step.now or 'nothing'}"
    was = f", was {step.before or 'nothing'}" if step.before != step.now else ""
    return f"{what} {step.what}, sha256 {step.sha256[:12]}; {where}{was}"


def _signer(key: str | None, name: str | None) -> Signer:
    import re

    from fsdpkit.publishing.signing import Signer, key_file

    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._%+@-]{0,254}", name):
        raise click.UsageError(f"--as {name!r}: a name such as alex@centre.example.")
    return Signer(key_file(key), name)


def _centre(to: str | None) -> Path:
    path = os.environ.get("FSDPKIT_SITE_PATH", "")
    named = [to] if to else [each for each in path.split(os.pathsep) if each]
    if len(named) != 1:
        raise click.UsageError("Say with --to which centre's folder; FSDPKIT_SITE_PATH names none.")
    return Path(os.path.expanduser(named[0])).absolute()
