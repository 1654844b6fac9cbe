"""The question whether a job, site or template of somebody else's is trusted, and `--trust`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.options import HOW, grouped
from fsdpkit.config import assets

if TYPE_CHECKING:
    from fsdpkit.config.trust import Consent, Item

_MAX_LINES = 2000  # of a file that is compared; comparing takes up to their square
_MAX_SHOWN = 400


def _digests(ctx: click.Context, option: click.Parameter, given: Sequence[str]) -> Sequence[str]:
    for digest in given:
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise click.BadParameter(f"{digest[:80]!r} is not a sha256 of 64 digits", ctx, option)
    return given


trust_option = grouped(
    HOW,
    "--trust",
    multiple=True,
    metavar="DIGEST",
    callback=_digests,
    help="Trust the file with this sha256 although others can write to it.",
)


def consent(trusted: Sequence[str] = (), *, submits: bool = True) -> Consent:
    """Of the person at the terminal: asked once, for it is remembered. trusted: checksums that need
    no question. submits: False if nothing is started; then what is not trusted is only named."""
    from fsdpkit.config.trust import Consent

    if not submits:
        return Consent(trusted, look=_name)

    return Consent(ask=lambda item: item.digest in trusted or _agrees(item), agreed_to=_remember)


def _name(item: Item) -> None:
    click.echo(f"fsdpkit: not yet trusted: {item}", err=True)


def _agrees(item: Item) -> bool:
    from fsdpkit.config.trust import not_trusted, printable

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise not_trusted(item)
    click.echo(f"fsdpkit: users other than you can write to the {item}.", err=True)
    click.echo(f"sha256 {item.digest}", err=True)
    shown = list(_difference(item))
    for line in shown[:_MAX_SHOWN]:
        click.echo(printable(line), err=True)
    if len(shown) > _MAX_SHOWN:  # a yes to what was not seen is none
        click.echo(f"… {len(shown) - _MAX_SHOWN} more lines", err=True)
        raise not_trusted(item)
    return click.confirm("Trust exactly this content from now on?", default=False, err=True)


def _difference(item: Item) -> Iterator[str]:
    """How it differs from the packaged one of this name, as `diff -u` says it."""
    import difflib  # only to show it to a person

    packaged = _packaged(item)
    if packaged is None:
        yield f"No {item.kind} of this name comes with fsdpkit. It says:"
        for content in item.files.values():
            yield from _lines(content)
        return
    for name in sorted({*item.files, *packaged}):
        theirs, ours = item.files.get(name), packaged.get(name)
        before, after = _lines(ours), _lines(theirs)
        if max(len(before), len(after)) > _MAX_LINES:
            yield f"{name}: {len(after)} lines, packaged {len(before)}: too long to compare"
            yield from after
            continue
        labels = f"packaged {name}", f"{item.kind} {item.name} {name}"
        yield from difflib.unified_diff(before, after, *labels, lineterm="")


def _lines(content: bytes | None) -> list[str]:
    return (content or b"").decode(errors="replace").split("\n")


def _packaged(item: Item) -> dict[str, bytes] | None:
    """The files of the packaged one of the same name."""
    if item.kind not in ("job", "site", "template"):
        return None
    found = assets.available(item.kind).get(item.name, [])
    place = next((path for layer, path in found if layer.name == "packaged"), None)
    if place is None:
        return None
    if item.kind != "template":
        return {next(iter(item.files)): place.read_bytes()}
    parts = [place / "template.toml", *place.rglob("*.j2")]
    return {str(part.relative_to(place)): part.read_bytes() for part in parts}


def _remember(item: Item) -> None:
    from fsdpkit.config.trust import remember

    if item.kind == "script":  # whose modules are not in its checksum
        return
    try:
        remember(item)
    except OSError as error:
        where = f" ({Path(error.filename)})" if isinstance(error.filename, str) else ""
        click.echo(f"fsdpkit: cannot remember what is trusted{where}: {error.strerror}", err=True)
