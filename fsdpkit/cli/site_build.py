"""`fsdpkit site build`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("build")
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
@click.option(
    "--plans",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Show these answers of `fsdpkit plan` in the form, such as ~/.cache/fsdpkit/plans.",
)
def command(
    centres: tuple[Path, ...],
    output: Path,
    name: str | None,
    runtime: Path | None,
    installed: str | None,
    clusters: tuple[str, ...],
    plans: Path | None,
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
    from fsdpkit.config import assets
    from fsdpkit.errors import ConfigError
    from fsdpkit.listing import counted
    from fsdpkit.publishing.catalogue.build import catalogue_files
    from fsdpkit.publishing.catalogue.engine import engine_of
    from fsdpkit.publishing.catalogue.plans import NO_PLANS, read_plans
    from fsdpkit.publishing.catalogue.reading import read_catalogue
    from fsdpkit.publishing.catalogue.runtime import cache_dir, fetch
    from fsdpkit.publishing.replacing import CATALOGUE, write

    folders = [centre.absolute() for centre in centres]
    folders = folders or [layer.dir for layer in reversed(assets.centre_layers())]
    carried = NO_PLANS if plans is None else read_plans(plans)
    catalogue = read_catalogue(folders, installed, clusters, carried)
    shown = name or (folders[0].name if folders else "fsdpkit")
    engine = engine_of(fetch(cache_dir()) if runtime is None else runtime)
    pages = catalogue_files(catalogue, shown, engine.files)
    write(CATALOGUE, pages, output, force=True)
    made = [
        counted(catalogue.sites, "cluster"),
        counted(catalogue.templates, "template"),
        counted(catalogue.jobs, "job"),
        *([] if plans is None else [counted(carried.files, "plan")]),
    ]
    click.echo(f"{output}: {', '.join(made)}")
    if engine.note:
        click.echo(f"fsdpkit: the form starts some seconds later: {engine.note}", err=True)
    for problem in catalogue.problems:
        click.echo(f"fsdpkit: left out: {problem}", err=True)
    return ConfigError.exit_code if catalogue.problems else 0
