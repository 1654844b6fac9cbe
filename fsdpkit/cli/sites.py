"""`fsdpkit sites`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fsdpkit.cli.checking import check_option, files_checked, listed, report_check
from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete, say_what_is_not_read, table


@dataclass(frozen=True)
class ListedSite:
    """A cluster with a profile. gpus_per_node: by kind of node, of those with GPUs."""

    name: str
    title: str
    found_in: list[str]
    verified: str | None
    gpus_per_node: dict[str, int]


@answer("fsdpkit.sites/1")
def _sites(sites: Sequence[ListedSite]) -> None:
    """All cluster profiles."""


@answer("fsdpkit.sites-show/1")
def _one_site(name: str, files: Sequence[Path], profile: dict[str, Any]) -> None:
    """A cluster's profile, its files laid over one another, by site/schema/site.schema.json."""


@click.command("sites")
@click.argument("name", required=False, shell_complete=complete("site"))
@check_option("profile")
@json_option(_sites, _one_site, files_checked)
def command(name: str | None, check: bool, as_json: bool) -> int:
    """List the cluster profiles and where each was found, or show one.

    \b
      fsdpkit sites
      fsdpkit sites osc-ascend
      fsdpkit sites --check
    """
    say_what_is_not_read()
    if check:
        return report_check("site", as_json)
    if name is not None:
        _show(name, as_json)
    elif as_json:
        _sites(_listed())
    else:
        table(["SITE", "FOUND IN", "VERIFIED", "NODES"], [_row(site) for site in _listed()])
    return 0


def _listed() -> list[ListedSite]:
    from fsdpkit.config.site import load_site

    sites = []
    for name, site, found_in in listed("site", load_site):
        profile = site.profile
        gpus = {kind: node.gpus for kind, node in profile.node_types.items() if node.gpus}
        sites.append(ListedSite(name, profile.title, found_in, profile.verified or None, gpus))
    return sites


def _row(site: ListedSite) -> list[str]:
    kinds = [f"{name} ({gpus} GPU{'s' * (gpus > 1)})" for name, gpus in site.gpus_per_node.items()]
    found = ", ".join(site.found_in)
    return [site.name, found, site.verified or "-", ", ".join(kinds) or site.title]


def _show(name: str, as_json: bool) -> None:
    import msgspec

    from fsdpkit.config import assets
    from fsdpkit.config.site import load_site

    places = assets.find("site", name)
    if as_json:
        profile = msgspec.to_builtins(load_site(name).profile)
        _one_site(name, [path for _, path in places], profile)
        return
    site = load_site(name)
    for layer, path in places:
        version = f" {layer.release.version}" if layer.release else ""
        click.echo(f"# {layer.name}{version}: {path}")
        click.echo(site.layered.files[path].content.decode())
