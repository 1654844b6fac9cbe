"""Whatever happens to nodes, a job that is queued again can run, as far as exclusions decide."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.launching.leaving_out import Exclusions, exclusions
from fsdpkit.launching.lost_nodes import maybe_gone, to_blame
from fsdpkit.runs.avoided_nodes import AvoidedNode
from fsdpkit.runs.exclusions import expand, nodes_of

AVOID_H = 6.0


@dataclass
class Cluster:
    """Its nodes, a job in it with what it excludes, and what fsdpkit has on record."""

    names: list[str]
    needed: int
    own: str
    draw: random.Random
    hour: float = 0.0
    up: set[str] = field(default_factory=set)
    present: str = ""
    ours: set[str] = field(default_factory=set)
    notes: dict[str, AvoidedNode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.up, self.present = set(self.names), self.own

    @property
    def startable(self) -> list[str]:
        """Nodes that Slurm may give the job."""
        return [n for n in self.names if n in self.up and n not in (expand(self.present) or ())]

    def sinfo(self) -> str:
        states = {name: "idle" if name in self.up else "down*" for name in self.names}
        return "\n".join(f"main*|{n}|{state}|8|1000|(null)|gpu:4" for n, state in states.items())

    def attempt(self, fault: str, *, sinfo_answers: bool) -> Exclusions:
        """The job runs, nodes fail it, and it is queued again."""
        had = self.draw.sample(self.startable, self.needed)
        head, *others = had
        victim = self.draw.choice(had)
        silent = tuple(others) if victim == head else (victim,)
        if fault == "switch":
            silent = tuple(others)
        sinfo = self.sinfo()  # which hears of a loss minutes later
        if fault in ("lost", "lost unseen"):
            self.up.discard(victim)
        if fault == "two lost unseen" and victim != head:
            silent = tuple({victim, others[-1]})
            self.up -= {*silent}
        if fault == "lost":
            sinfo = self.sinfo()
        accusers = silent if fault == "cut" else ()
        blamed = to_blame([silent], len(had), head, accusers=accusers)
        if fault == "cut" and self.needed > 2:
            assert blamed == (victim,)
        self.hour += self.draw.choice([0.01, 1.0, 4.0])
        for node in blamed:
            self.notes[node] = AvoidedNode(node, fault, "r-1", self.hour, self.hour + AVOID_H)
        gone = maybe_gone([silent], len(had), accusers=accusers)
        return self.requeue(had, sinfo=sinfo if sinfo_answers else "", gone=gone)

    def requeue(self, had: list[str], *, sinfo: str, gone: Collection[str] = ()) -> Exclusions:
        avoided = [note for note in self.notes.values() if note.until_s > self.hour]
        found = exclusions(
            avoided,
            present=self.present,
            own=self.own,
            before=self.ours,
            nodes=nodes_of(sinfo),
            had=had,
            gone=gone,
        )
        self.ours |= {*found.left_out}
        self.present = self.present if found.change is None else found.change
        return found


FAULTS = ["cut", "lost", "lost unseen", "two lost unseen", "switch", "crash", "heal"]
EVENTS = st.lists(
    st.tuples(st.sampled_from(FAULTS), st.integers(0, 9)),
    max_size=30,
)


@given(
    nodes=st.integers(2, 9),
    needed=st.integers(2, 5),
    excluded=st.sampled_from(["", "n1", "n[1-2]"]),
    events=EVENTS,
    seed=st.integers(0, 10_000),
)
def test_the_run_can_always_be_scheduled_and_uses_everything_again_in_the_end(
    nodes: int, needed: int, excluded: str, events: list[tuple[str, int]], seed: int
) -> None:
    own = set(expand(excluded) or ())
    names = [f"n{number}" for number in range(1, nodes + 1)]
    if nodes - len(own & set(names)) < needed:
        return
    cluster = Cluster(names, needed, excluded, random.Random(seed))
    for fault, luck in events:
        if fault == "heal":
            cluster.up = set(names)
            continue
        if len(cluster.startable) < needed:  # too many are down: it waits until they are mended
            assert len(cluster.up - own) < needed
            cluster.up = set(names)
            assert len(cluster.startable) >= needed
        cluster.attempt(fault, sinfo_answers=luck > 1)
        assert own <= {*(expand(cluster.present) or ())}
        if len(cluster.up - own) >= needed:
            assert len(cluster.startable) >= needed
    cluster.up, cluster.hour = set(names), cluster.hour + 2 * AVOID_H
    cluster.requeue(cluster.startable[:needed], sinfo=cluster.sinfo())
    assert set(cluster.startable) == set(names) - own


def test_what_is_excluded_already_is_not_asked_for_again() -> None:
    nodes = nodes_of(
        "\n".join(f"main*|n{number}|idle|8|1000|(null)|gpu:4" for number in range(1, 5))
    )
    note = AvoidedNode("n1", "cut", "r-1", 1.0, 2.0)
    found = exclusions(
        [note], present="n[1-2]", own="n2", before=["n1"], nodes=nodes, had=["n1", "n3"]
    )
    assert found == Exclusions(("n1",), None)
