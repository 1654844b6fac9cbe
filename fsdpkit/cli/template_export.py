"""`fsdpkit template export`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import complete, hanging

if TYPE_CHECKING:
    from fsdpkit.config.site import LoadedSite
    from fsdpkit.publishing.export.build import App, Portal
    from fsdpkit.publishing.export.script import ExportedScript

_PORTALS = ("ondemand", "open-composer")


@dataclass(frozen=True)
class ExportedCluster:
    """A cluster that the app submits to.

    site: its profile. name: what the portal calls it. places: what the form offers, partition and
    GPUs per node, as `gpu:4`. fields: variables in which the script finds what the form says.
    fixed, left_out: what the form does not ask for, partitions that it does not offer; with the
    reason.
    """

    site: str
    name: str
    places: list[str]
    fields: list[str]
    fixed: dict[str, str]
    left_out: list[str]


@answer("fsdpkit.template-export/1")
def _exported(
    dir: Path,
    to: str,
    release: str,
    template: str,
    version: str,
    sha256: str,
    files: Sequence[str],
    clusters: Sequence[ExportedCluster],
) -> None:
    """An app of a web portal that was made from a template, by the rules of its release."""


@click.command("export", short_help="Make an app of Open OnDemand or Open Composer from it.")
@click.argument("template", metavar="TEMPLATE", shell_complete=complete("template"))
@click.option(
    "--to",
    "portal",
    required=True,
    type=click.Choice(_PORTALS),
    help="Whose app: Batch Connect of Open OnDemand, or Open Composer.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory of the app; it is replaced at once when all is there.",
)
@click.option(
    "--cluster",
    "clusters",
    multiple=True,
    metavar="SITE[=NAME]",
    shell_complete=complete("site"),
    help="Profile of a cluster, and the portal's name of it (default: Slurm's); may be given "
    "several times (default: this machine's).",
)
@click.option(
    "--job", shell_complete=complete("job"), help="Job whose settings the form begins with."
)
@click.option(
    "--python",
    type=click.Choice(["venv", "conda"]),
    default="venv",
    show_default=True,
    help="The kind of environment that the form asks for, where the job names none.",
)
@click.option("--release", help="Release of the portal, such as 4.1 (default: the newest known).")
@click.option("--force", is_flag=True, help="Also replace an export that was changed by hand.")
@json_option(_exported)
def command(
    template: str,
    portal: Portal,
    output: Path,
    clusters: tuple[str, ...],
    job: str | None,
    python: str,
    release: str | None,
    force: bool,
    as_json: bool,
) -> int:
    """Make an app of a web portal from TEMPLATE: a folder, or a template's name.

    \b
      fsdpkit template export ours --to ondemand --cluster osc-cardinal --output fsdpkit-app
      fsdpkit template export ours --to open-composer --output training --release 2.0

    The form offers each partition with its limits; the script is the one that `submit` makes, and
    checks whatever a form says before it uses it. A README says how to install it. See
    docs/ondemand.md. Exit status 0; 65 if the template, the profile or the job cannot be exported;
    74 if the directory cannot be written.
    """
    import fsdpkit
    from fsdpkit.publishing.export.build import build
    from fsdpkit.publishing.replacing import EXPORT, write
    from fsdpkit.publishing.template_named import open_template

    found, named, spec = open_template(template), _clusters(clusters), None
    if job is not None:
        from fsdpkit.config.job_loading import load_job
        from fsdpkit.publishing.export.shared_job import of_hold

        spec = of_hold(load_job(job), [site for site, _ in named])
    app = build(found, named, portal, job=spec, python=python, release=release)
    manifest = found.manifest
    about = {
        "made_by": f"fsdpkit {fsdpkit.__version__}",
        "portal": app.portal,
        "release": app.release,
        "template": f"{manifest.name} {manifest.version}, sha256 {found.sha256}",
    }
    contents = {name: text.encode() for name, text in app.files.items()}
    made = write(EXPORT, contents, output, about=about, force=force)
    if as_json:
        return _exported(
            dir=made,
            to=app.portal,
            release=app.release,
            template=manifest.name,
            version=manifest.version,
            sha256=found.sha256,
            files=sorted(app.files),
            clusters=[_cluster(one) for one in app.exports],
        )
    click.echo(str(made))
    for note in _notes(app):
        click.echo("\n".join(hanging(note, "fsdpkit: ", "  ")), err=True)
    click.echo(f"  To install it: {made / 'README.md'}", err=True)
    return 0


def _clusters(words: tuple[str, ...]) -> list[tuple[LoadedSite, str]]:
    """Each profile with the portal's name of the cluster."""
    import re

    from fsdpkit.config.site import choose_site, load_site
    from fsdpkit.errors import UsageError

    found: list[tuple[LoadedSite, str]] = []
    for word in words or ("",):
        path, equals, name = word.rpartition("=")
        if equals and (not path or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name)):
            raise UsageError(
                f"--cluster {word[:120]!r}: behind the = stands the portal's name of the cluster, "
                "of letters, digits, dashes and underscores"
            )
        asked = path if equals else word
        site = load_site(asked) if asked else choose_site(None)[0]
        called = site.profile.slurm_clusters or site.id
        if not name or not equals:
            name = called if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", called) else "cluster"
        found.append((site, name))
    names = [name for _, name in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"--cluster: two clusters are called {name!r}; say how the portal calls them: "
                "--cluster SITE=NAME"
            )
    return found


def _notes(app: App) -> list[str]:
    notes: dict[str, None] = {}
    for exported in app.exports:
        for name, why in exported.fixed.items():
            notes[f"not asked for: {name}: {why}"] = None
        for why in exported.left_out:
            notes[f"{exported.portal}: not offered: {why}"] = None
    return list(notes)


def _cluster(exported: ExportedScript) -> ExportedCluster:
    return ExportedCluster(
        site=exported.site.id,
        name=exported.portal,
        places=[place.value for place in exported.places],
        fields=[field.variable for field in exported.fields],
        fixed=dict(exported.fixed),
        left_out=list(exported.left_out),
    )
