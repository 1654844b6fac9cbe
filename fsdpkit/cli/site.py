"""`fsdpkit site`: what an administrator does with the profile of a cluster."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.groups import Verbs
from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete, write_file
from fsdpkit.config import assets
from fsdpkit.errors import ConfigError, UsageError
from fsdpkit.listing import counted

if TYPE_CHECKING:
    from fsdpkit.publishing.drift import ProfileDifference


@click.group("site", cls=Verbs)
def command() -> None:
    """Draft a cluster profile, compare it with the live cluster, and build its pages.

    \b
      fsdpkit site draft --output ours.toml
      fsdpkit site diff osc-ascend
    """


@answer("fsdpkit.site-draft/1")
def _drafted(cluster: str, file: Path | None, text: str, unknown: Sequence[str]) -> None:
    """A profile that was drafted from the live cluster.

    cluster: as Slurm calls it. file: where it was written; null: nowhere. text: the profile, as
    TOML with comments. unknown: what remains to be found out, in words.
    """


@command.command("draft")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write to this file.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option(
    "--slurm-cluster", metavar="NAME", help="A cluster other than this login node's (scontrol -M)."
)
@json_option(_drafted)
def draft(output: str | None, force: bool, slurm_cluster: str | None, as_json: bool) -> int:
    """Draft a profile of the cluster that this login node belongs to.

    \b
      fsdpkit site draft
      fsdpkit site draft --output ours.toml
      fsdpkit submit --cluster ./ours.toml --dry-run

    If Slurm does not answer, nothing is written and the exit status is 69.
    """
    from fsdpkit.publishing import draft as drafting
    from fsdpkit.scheduling import login_node
    from fsdpkit.scheduling.slurm_answers import SlurmAnswers

    if slurm_cluster is not None and not re.fullmatch(r"\w[\w.-]*", slurm_cluster, re.ASCII):
        raise UsageError(f"--slurm-cluster {slurm_cluster[:60]!r} is not a cluster name")
    path = Path(output) if output is not None else None
    if path is not None:
        _refuse(path, force)
    live = SlurmAnswers(slurm_cluster).live()
    made = drafting.draft(live, login_node.see(), time.time(), slurm_cluster)
    if path is not None:
        write_file(made.text, path, force=force)
    if as_json:
        unknown = list(made.tables.get("unknown", []))
        return _drafted(made.profile.title, path and path.absolute(), made.text, unknown)
    if path is None:
        click.echo(made.text, nl=False)
    else:
        click.echo(f"{path}: {len(made.tables['unknown'])} facts remain unknown; they are listed")
    return 0


def _refuse(path: Path, force: bool) -> None:
    """Before anybody is asked. Raises UsageError."""
    if path.suffix != ".toml":
        raise UsageError(f"--output {path}: give it a name that ends in .toml, as profiles have")
    if not path.parent.is_dir():
        raise UsageError(f"--output {path}: there is no directory {path.parent}")
    if path.exists() and not force:
        raise UsageError(f"{path} already exists; --force replaces it")


@answer("fsdpkit.site-diff/1")
def _compared(
    name: str,
    same: bool,
    differ: Sequence[ProfileDifference],
    missing: Sequence[ProfileDifference],
    not_compared: Sequence[str],
    unread: Sequence[str],
) -> None:
    """A profile held against the live cluster.

    missing: what the profile does not say and the cluster does. unread: what of Slurm gave no
    answer, and why.
    """


@command.command("diff", short_help="Compare a profile with the live cluster.")
@click.argument("name", shell_complete=complete("site"))
@json_option(_compared)
def diff(name: str, as_json: bool) -> int:
    """Compare a profile with the live cluster: one line for each fact that differs.

    \b
      fsdpkit site diff osc-ascend
      fsdpkit site diff ./ours.toml --json

    Exit status: 0 if they agree, 1 if a fact differs, 69 if Slurm does not answer. A limit
    that the profile does not have is a difference; what else it does not say is listed separately.
    """
    from fsdpkit.config.site import load_site
    from fsdpkit.publishing.drift import drift, lines
    from fsdpkit.scheduling.login_node import host_name
    from fsdpkit.scheduling.slurm_answers import SlurmAnswers

    site = load_site(name)
    if site.profile.kind == "local":
        raise UsageError(f"{site.id} is this machine, not a cluster of Slurm's")
    live = SlurmAnswers(site.profile.slurm_clusters).live()
    found = drift(site.profile, live, host_name())
    if as_json:
        _compared(site.id, not found.differ, **vars(found), unread=live.not_read)
        return 1 if found.differ else 0
    for why in live.not_read:
        click.echo(f"fsdpkit: not read: {why}", err=True)
    for line in lines(found):
        click.echo(line)
    if not found.differ:
        click.echo(f"{site.id} agrees with the cluster in all that both say.")
    return 1 if found.differ else 0


@command.command(
    "build",
    short_help="Build pages of clusters, templates and jobs, with a form that writes scripts.",
)
@click.argument("centres", nargs=-1, type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the pages; it is replaced at once when all are there.",
)
@click.option("--name", help="The centre's name on the pages (default: that of its folder).")
@click.option(
    "--runtime",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory with the archives of the browser's Python (default: downloaded once).",
)
@click.option(
    "--installed",
    metavar="DIR",
    help="Where fsdpkit's own templates, jobs and profiles lie on the cluster, if not as here.",
)
@click.option(
    "--cluster",
    "clusters",
    multiple=True,
    metavar="NAME",
    help="A cluster of the centre's, shown first; several: repeat it (default: its folder's).",
)
def build(
    centres: tuple[Path, ...],
    output: Path,
    name: str | None,
    runtime: Path | None,
    installed: str | None,
    clusters: tuple[str, ...],
) -> int:
    """Build the pages of a centre: its clusters, templates and jobs, and a form that writes the
    very script of `fsdpkit submit`.

    \b
      fsdpkit site build /apps/fsdpkit/centre --output /srv/www/fsdpkit
      fsdpkit site build --output public

    CENTRES are folders as FSDPKIT_SITE_PATH lists them; without any, those that it does list. What
    is broken in them is named, and the rest is built: the exit status is then 65. See
    docs/catalogue.md.
    """
    from fsdpkit.publishing.catalogue.build import catalogue_files
    from fsdpkit.publishing.catalogue.engine import engine_of
    from fsdpkit.publishing.catalogue.reading import read_catalogue
    from fsdpkit.publishing.catalogue.runtime import cache_dir, fetch
    from fsdpkit.publishing.replacing import CATALOGUE, write

    folders = [centre.absolute() for centre in centres]
    folders = folders or [layer.dir for layer in reversed(assets.centre_layers())]
    catalogue = read_catalogue(folders, installed, clusters)
    shown = name or (folders[0].name if folders else "fsdpkit")
    engine = engine_of(fetch(cache_dir()) if runtime is None else runtime)
    pages = catalogue_files(catalogue, shown, engine.files)
    write(CATALOGUE, pages, output, force=True)
    made = [
        counted(catalogue.sites, "cluster"),
        counted(catalogue.templates, "template"),
        counted(catalogue.jobs, "job"),
    ]
    click.echo(f"{output}: {', '.join(made)}")
    if engine.note:
        click.echo(f"fsdpkit: the form starts some seconds later: {engine.note}", err=True)
    for problem in catalogue.problems:
        click.echo(f"fsdpkit: left out: {problem}", err=True)
    return ConfigError.exit_code if catalogue.problems else 0
