"""`fsdpkit sites`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fsdpkit.cli.checking import check_option, report_check, say_what_is_skipped
from fsdpkit.cli.options import complete, json_option, say_what_is_not_read, table

if TYPE_CHECKING:
    from fsdpkit.cli.json_answers import ListedSite


@click.command("sites")
@click.argument("name", required=False, shell_complete=complete("site"))
@check_option("profile")
@json_option
def command(name: str | None, check: bool, as_json: bool) -> int:
    """List the cluster profiles and where each was found, or show one.

    \b
      fsdpkit sites
      fsdpkit sites osc-ascend
      fsdpkit sites --check
    """
    from fsdpkit.cli.json_answers import Sites
    from fsdpkit.cli.json_output import print_answer

    say_what_is_not_read()
    if check:
        return report_check("site", as_json)
    if name is not None:
        _show(name, as_json)
    elif as_json:
        print_answer(Sites(sites=_listed()))
    else:
        table(["SITE", "FOUND IN", "VERIFIED", "NODES"], [_row(site) for site in _listed()])
    return 0


def _listed() -> list[ListedSite]:
    from fsdpkit.cli.json_answers import ListedSite
    from fsdpkit.config import assets
    from fsdpkit.config.checking import load_all
    from fsdpkit.config.site import load_site

    sites = []
    good, broken = load_all("site", load_site)
    say_what_is_skipped(broken)
    for known, places in assets.available("site").items():
        if known not in good:
            continue
        profile = good[known].profile
        sites.append(
            ListedSite(
                name=known,
                title=profile.title,
                found_in=[layer.name for layer, _ in places],
                verified=profile.verified or None,
                gpus_per_node={n: k.gpus for n, k in profile.node_types.items() if k.gpus},
            )
        )
    return sites


def _row(site: ListedSite) -> list[str]:
    kinds = [f"{name} ({gpus} GPU{'s' * (gpus > 1)})" for name, gpus in site.gpus_per_node.items()]
    found = ", ".join(site.found_in)
    return [site.name, found, site.verified or "-", ", ".join(kinds) or site.title]


def _show(name: str, as_json: bool) -> None:
    import msgspec

    from fsdpkit.cli.json_answers import OneSite
    from fsdpkit.cli.json_output import print_answer
    from fsdpkit.config import assets
    from fsdpkit.config.site import load_site

    places = assets.find("site", name)
    if as_json:
        profile = msgspec.to_builtins(load_site(name).profile)
        files = [str(path) for _, path in places]
        print_answer(OneSite(name=name, files=files, profile=profile))
        return
    site = load_site(name)
    for layer, path in places:
        version = f" {layer.release.version}" if layer.release else ""
        click.echo(f"# {layer.name}{version}: {path}")
        click.echo(site.layered.files[path].content.decode())
