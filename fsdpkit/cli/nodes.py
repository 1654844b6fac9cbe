"""`fsdpkit nodes`."""

from __future__ import annotations

import contextlib
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import runs_option

if TYPE_CHECKING:
    from fsdpkit.runs.avoided_nodes import AvoidedNode


@answer("fsdpkit.nodes/1")
def _nodes(nodes: Sequence[AvoidedNode]) -> None:
    """The nodes that later jobs avoid."""


@answer("fsdpkit.nodes-forgive/1")
def _forgiven(node: str, queued: Sequence[str], problems: Sequence[str]) -> None:
    """`nodes --forgive`: a node that jobs may use again.

    queued: what waits in the queue and no longer avoids it.
    """


@click.command("nodes")
@click.option("--forgive", metavar="NODE", help="Let jobs use NODE again, including queued ones.")
@runs_option
@json_option(_nodes, _forgiven)
def command(forgive: str | None, runs: str | None, as_json: bool) -> int:
    """Show the nodes that failed a run, which later jobs avoid for a few hours.

    \b
      fsdpkit nodes
      fsdpkit nodes --forgive node017
    """
    from fsdpkit.runs import avoided_nodes
    from fsdpkit.runs.record import now_s
    from fsdpkit.runs.store import runs_dir

    top = runs_dir(runs)
    if forgive is not None:
        _forgive(top, forgive, as_json)
        return 0
    found = avoided_nodes.avoided(top, now_s())
    if as_json:
        return _nodes(found)
    if not found:
        click.echo(f"no node is avoided by runs in {top}", err=True)
    for one in found:
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.until_s))
        click.echo(f"{one.node}  until {until}")
        why = f"{one.why} ({one.run_id})"
        click.echo(textwrap.fill(why, 80, initial_indent="  ", subsequent_indent="  "))
    return 0


def _forgive(top: Path, node: str, as_json: bool) -> None:
    """For jobs to come, and for those that wait in the queue already."""
    from fsdpkit.errors import FsdpkitError, NotFoundError
    from fsdpkit.runs import avoided_nodes
    from fsdpkit.runs.record import load, now_s
    from fsdpkit.scheduling.left_out import use_again

    cluster = None
    for note in avoided_nodes.avoided(top, now_s()):
        if note.node == node:
            with contextlib.suppress(FsdpkitError):
                cluster = load(top / note.run_id).cluster
    was_avoided = avoided_nodes.forgive(top, node)
    freed, problems = use_again(node, top, cluster)
    if not was_avoided and not freed:
        raise NotFoundError(f"{node} is not avoided by runs in {top}")
    if as_json:
        _forgiven(node, freed, problems)
        return
    too = f", also by queued jobs: {', '.join(freed)}" if freed else ""
    click.echo(f"{node} may be used again{too}")
    for problem in problems:
        click.echo(f"fsdpkit: warning: {problem}", err=True)
