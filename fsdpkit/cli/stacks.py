"""`fsdpkit stacks`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from fsdpkit.cli.json_output import answer, json_option
from fsdpkit.cli.options import hanging, on_run
from fsdpkit.listing import first_of, spans

if TYPE_CHECKING:
    from fsdpkit.reporting.stacks import CodePlace
    from fsdpkit.runs.stack_requests import NodeStacks
    from fsdpkit.scheduling.run import Run
    from fsdpkit.scheduling.stacks import StacksAnswer

_MOST_NODES = 3
"""Names of nodes in a line."""


@dataclass(frozen=True)
class SilentNode:
    """A node whose agent gave no answer."""

    node: int
    name: str
    ranks: Sequence[int]


@answer("fsdpkit.stacks/2")
def _stacks(
    run: str,
    job_id: str,
    places: Sequence[CodePlace],
    odd_one: int | None,
    nodes: Sequence[NodeStacks],
    silent: Sequence[SilentNode],
) -> None:
    """Where the ranks of a running job are.

    odd_one: the rank that the others wait for; null: none stands out. The `text` of each rank, all
    its threads, is empty without --full.
    """


@click.command("stacks")
@on_run(copied=False)
@click.option("--task", type=click.IntRange(0), help="Array task, where several run.")
@click.option("--full", is_flag=True, help="Print all threads of each rank.")
@json_option(_stacks)
def command(run: Run, task: int | None, full: bool, as_json: bool) -> int:
    """Show the current stack of each rank of RUN (its id or a part, path, job number; default:
    your newest).

    \b
      fsdpkit stacks fsdp-t5-20261121-101500-3f2a
      fsdpkit stacks 3f2a --full

    The ranks keep running. Ranks at the same place share a line; the rarest place comes first. A
    rank that cannot answer by itself is read with py-spy, if installed (pip install
    'fsdpkit[stacks]').

    Exit status: 2 if the run has ended, has not begun, or is another user's; 69 if a rank or a
    node did not answer.
    """
    from fsdpkit.scheduling.stacks import ask_for_stacks
    from fsdpkit.scheduling.visiting import running

    asked = ask_for_stacks(running(run, task))
    lacking = _lacking(asked)
    if as_json:
        _print_json(asked, full=full)
    else:
        for line in _full(asked) if full else _brief(asked):
            click.echo(line)
        for line in lacking:
            click.echo(line)
    return 69 if lacking else 0


def _brief(asked: StacksAnswer) -> list[str]:
    from fsdpkit.reporting.stacks import places

    found = places(asked.answers)
    if not found and not any(node.ranks for node in asked.answers) and asked.answers:
        return ["no ranks run: they are being started, or have just ended"]
    lines = [line for place in found for line in hanging(_line(place), "", "  ")]
    if (odd := asked.odd_one) is not None:
        lines.append(f"the others wait for rank {odd}, it seems")
    return lines


def _line(place: CodePlace) -> str:
    which = "rank" if len(place.ranks) == 1 else "ranks"
    names = first_of(place.nodes, _MOST_NODES)
    called = f", called from {place.caller}" if place.caller else ""
    state = f" ({place.state})" if place.state else ""
    return f"{which} {spans(place.ranks)} on {names}{state}: {place.words}{called}"


def _full(asked: StacksAnswer) -> list[str]:
    lines = []
    ranks = [(rank, node.name) for node in asked.answers for rank in node.ranks if rank.by]
    for rank, name in sorted(ranks, key=lambda one: one[0].rank):
        lines += [f"=== rank {rank.rank} on {name}", rank.text.rstrip("\n"), ""]
    return lines


def _lacking(asked: StacksAnswer) -> list[str]:
    """Who gave no answer, and why."""
    lines = [
        f"rank {rank.rank} on {node.name}: no answer"
        f"{f', the process is in state {rank.state}' if rank.state else ''}: {rank.why_not}"
        for node in asked.answers
        for rank in node.ranks
        if rank.by is None
    ]
    for node in asked.silent:
        ranks = asked.ranks_of(node)
        who = f" (ranks {spans(ranks)})" if ranks else ""
        lines.append(f"node {node.name}{who}: no answer from its agent")
    return lines


def _print_json(asked: StacksAnswer, *, full: bool) -> None:
    from msgspec.structs import replace

    from fsdpkit.reporting.stacks import places

    def shown(node: NodeStacks) -> NodeStacks:
        return node if full else replace(node, ranks=tuple(replace(r, text="") for r in node.ranks))

    _stacks(
        run=asked.visited.run.id,
        job_id=asked.visited.job_id,
        places=places(asked.answers),
        odd_one=asked.odd_one,
        nodes=[shown(node) for node in asked.answers],
        silent=[SilentNode(one.number, one.name, asked.ranks_of(one)) for one in asked.silent],
    )
