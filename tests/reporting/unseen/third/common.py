"""How these cases are put together: a traceback, who printed it, what others said of it."""

from __future__ import annotations

from typing import Any

from tests.reporting.unseen.case import Case, Rank, wanted
from tests.reporting.unseen.words import QUIET, by

SITE = "/lustre/p7/env/lib/python3.12/site-packages"
HOME = "/home/k.meyer/proj"
STEP = (
    f"{HOME}/train.py:312 <module> | main(parse())",
    f"{HOME}/train.py:201 main | loss = step(model, batch)",
)


def stack(*frames: str) -> str:
    """Frames as `file:line function | code`, as Python prints them."""
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        where, _, code = frame.partition(" | ")
        place, _, function = where.partition(" ")
        file, _, line = place.rpartition(":")
        lines.append(f'  File "{file}", line {line}, in {function}')
        lines += [f"    {code}"] if code else []
    return "\n".join(lines) + "\n"


def shown(text: str, rank: int, prefix: str) -> str:
    """prefix: `rank` as torch's hook, else what stands before each line, with {rank}."""
    if prefix == "rank":
        return by(rank, text)
    start = prefix.format(rank=rank)
    return "".join(f"{start}{line}\n" for line in text.removesuffix("\n").split("\n"))


def failing(
    name: str,
    source: str,
    causes: str,
    end: str,
    *frames: str,
    rank: int = 5,
    everyone: bool = False,
    judged: bool = True,
    nodes: int = 2,
    gpus: int = 4,
    others: Rank = QUIET,
    more: dict[int, Rank] | None = None,
    status: int = 1,
    prefix: str = "rank",
    before: str = "",
    after: str = "",
    on_out: bool = False,
    forbid: str = "",
    retry: Any = "any",
    **fields: Any,
) -> Case:
    """A case in which one rank raised `end`, or everyone did. causes: accepted, the best first.

    frames: of the traceback, STEP if none; "-": `end` is all that was printed.
    """

    def one(number: int) -> Rank:
        told = end + "\n" if frames == ("-",) else stack(*(frames or STEP)) + end + "\n"
        text = before + shown(told, number, prefix) + after
        return Rank(**({"out": text} if on_out else {"err": text}), status=status)

    failed = range(nodes * gpus) if everyone else [rank]
    known = judged and not everyone
    best, *also = causes.split("|")
    return Case(
        name=name,
        source=source,
        nodes=nodes,
        gpus=gpus,
        ranks={**(more or {}), **{number: one(number) for number in failed}},
        others=others,
        want=wanted(
            best,
            *also,
            rank=rank if known else "any",
            node=f"node{rank // gpus + 1}" if known else "any",
            forbid=forbid,
            retry=retry,
        ),
        **fields,
    )


def before(
    name: str, source: str, causes: str, batch: str, node: Any = "any", **fields: Any
) -> Case:
    """A case that failed before there were ranks. batch: the job's log."""
    best, *also = causes.split("|")
    fields.setdefault("nodes", 2)
    return Case(
        name=name,
        source=source,
        gpus=4,
        batch=batch,
        before_ranks=True,
        want=wanted(best, *also, rank="any", node=node),
        **fields,
    )
