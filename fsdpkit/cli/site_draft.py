"""`fsdpkit site draft`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import write_file
from fsdpkit.errors import UsageError


@answer("fsdpkit.site-draft/1")
def _drafted(cluster: str, file: Path | None, text: str, unknown: Sequence[str]) -> None:
    """A profile that was drafted from the live cluster.

    cluster: as Slurm calls it. file: where it was written; null: nowhere. text: the profile, as
    TOML with comments. unknown: what remains to be found out, in words.
    """


@click.command("draft")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write to this file.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option(
    "--slurm-cluster", metavar="NAME", help="A cluster other than this login node's (scontrol -M)."
)
@json_option(_drafted)
def command(output: str | None, force: bool, slurm_cluster: str | None, as_json: bool) -> int:
    """Draft a profile of the cluster that this login node belongs to.

    \b
      fsdpkit site draft
      fsdpkit site draft --output ours.toml
      fsdpkit submit --cluster ./ours.toml --dry-run

    If Slurm does not answer, nothing is written and the exit status is 69.
    """
    import re
    import time

    from fsdpkit.publishing.draft import draft
    from fsdpkit.scheduling import login_node
    from fsdpkit.scheduling.slurm_answers import SlurmAnswers

    if slurm_cluster is not None and not re.fullmatch(r"\w[\w.-]*", slurm_cluster, re.ASCII):
        raise UsageError(f"--slurm-cluster {slurm_cluster[:60]!r} is not a cluster name")
    path = Path(output) if output is not None else None
    if path is not None:
        _refuse(path, force)
    live = SlurmAnswers(slurm_cluster).live()
    made = draft(live, login_node.see(), time.time(), slurm_cluster)
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
