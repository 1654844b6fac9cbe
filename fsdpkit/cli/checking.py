"""`--check` of `sites`, `templates` and `jobs`, and what lists say of files they leave out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fsdpkit.cli.json_output import answer
from fsdpkit.errors import ConfigError

if TYPE_CHECKING:
    from fsdpkit.config.checking import BrokenFile
    from fsdpkit.config.published.index import Kind

T = TypeVar("T")


@answer("fsdpkit.files-check/1")
def files_checked(kind: Kind, checked: int, problems: Sequence[BrokenFile]) -> None:
    """Whether every template, profile or job that can be found can be used."""


def check_option(what: str) -> Callable[[Any], Any]:
    return click.option(
        "--check",
        is_flag=True,
        help=f"List every {what} that cannot be used; exit status 65 if any.",
    )


def say_what_is_skipped(broken: Sequence[BrokenFile]) -> None:
    """What a list leaves out, once each, on standard error."""
    for why in dict.fromkeys(one.why for one in broken):
        click.echo(f"fsdpkit: skipped: {why}", err=True)


def listed(kind: Kind, load: Callable[[str], T]) -> Iterator[tuple[str, T, list[str]]]:
    """Each file of one kind that can be used: its name, what it says, and the layers it was found
    in, the strongest last. Standard error names the others."""
    from fsdpkit.config import assets
    from fsdpkit.config.checking import load_all

    good, broken = load_all(kind, load)
    say_what_is_skipped(broken)
    for name, places in assets.available(kind).items():
        if name in good:
            yield name, good[name], [layer.name for layer, _ in places]


def report_check(kind: Kind, as_json: bool) -> int:
    """Print what is wrong with the files of one kind; 65 if anything is."""
    from fsdpkit.config.checking import check_all

    checked, broken = check_all(kind)
    if as_json:
        files_checked(kind, checked, broken)
    else:
        for one in broken:
            click.echo(f"{one.layer} {kind} {one.name}: {one.why}")
        found = f"{len(broken)} cannot be used" if broken else "all can be used"
        click.echo(f"{checked} looked at, {found}")
    _warn_of_keys_that_end()
    return ConfigError.exit_code if broken else 0


def _warn_of_keys_that_end() -> None:
    from fsdpkit.config.assets import centre_layers
    from fsdpkit.config.published.centre import open_centre
    from fsdpkit.publishing.signing import ends_at_s, warning

    for layer in centre_layers():
        with contextlib.suppress(ConfigError, OSError):  # it was named among what is wrong
            centre = open_centre(layer.dir)
            ends_s = ends_at_s(layer.dir) if centre else None
            if centre and ends_s is not None:
                click.echo(
                    f"fsdpkit: warning: {warning(layer.dir, centre.index.by, ends_s)}", err=True
                )
