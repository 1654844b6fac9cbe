"""`fsdpkit stacks` in words: what stands in a line, and which ranks share one."""

from __future__ import annotations

from typing import Any

import msgspec

from fsdpkit.reporting.stacks import places
from fsdpkit.runs.stack_requests import NodeStacks, RankStacks
from fsdpkit.scheduling.stacks import StacksAnswer

LIB = "/opt/env/lib/python3.11"


def stacks(*frames: tuple[str, int, str]) -> str:
    other = 'Thread 0x01 (most recent call first):\n  File "/x/loader.py", line 1 in run\n\n'
    lines = [f'  File "{file}", line {line} in {name}' for file, line, name in frames]
    return "\n".join([other + "Current thread 0x02 (most recent call first):", *lines]) + "\n"


def node(number: int, *texts: str | None) -> NodeStacks:
    first = number * len(texts)
    ranks = [
        RankStacks(rank=first + k, why_not="it sleeps")
        if text is None
        else RankStacks(rank=first + k, text=text, by="signal")
        for k, text in enumerate(texts)
    ]
    name = f"n{number}"
    return NodeStacks(id="0" * 16, node=number, name=name, launch=0, time_s=1.0, ranks=tuple(ranks))


WAITS = stacks(
    (f"{LIB}/site-packages/torch/distributed/c10d.py", 9, "all_reduce"),
    (f"{LIB}/runpy.py", 88, "_run_code"),
    ("/home/me/train.py", 20, "main"),
    ("/w/fsdpkit/launching/program.py", 5, "become"),
)
LOADS = stacks(("/home/me/data.py", 7, "load_batch"), ("/home/me/train.py", 19, "main"))


def test_ranks_at_one_place_share_a_line_and_the_odd_one_comes_first() -> None:
    odd, others = places([node(1, WAITS, None), node(0, WAITS, LOADS)])
    assert (odd.ranks, odd.nodes, odd.words, odd.caller) == (
        *((1,), ("n0",)),
        *("data.py:7 in load_batch", ""),
    )
    assert (others.ranks, others.nodes) == ((0, 2), ("n0", "n1"))
    assert others.words == "torch/distributed/c10d.py:9 in all_reduce"
    assert others.caller == "train.py:20 in main", "neither a library's frame nor the agent's"


def odd_one(*nodes: NodeStacks) -> int | None:
    nobody: Any = None
    return StacksAnswer(nobody, nodes, ()).odd_one


def test_who_the_others_wait_for_is_named_if_it_can_be_told() -> None:
    assert odd_one(node(0, WAITS, LOADS), node(1, WAITS, WAITS)) == 1
    assert odd_one(node(0, WAITS, WAITS)) is None
    assert odd_one(node(0, LOADS, LOADS)) is None, "all compute, or all hang in the same way"
    assert odd_one(node(0, LOADS)) is None, "alone"
    still = RankStacks(rank=1, text=WAITS, by="py-spy", state="stopped")
    there = node(0, WAITS, WAITS)
    assert odd_one(msgspec.structs.replace(there, ranks=(there.ranks[0], still))) == 1
    assert odd_one(msgspec.structs.replace(there, ranks=(still,))) is None, "alone, though stopped"
