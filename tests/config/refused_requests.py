"""Requests drawn at random over the limits of a profile, and what a refusal says, taken apart.

What a reason means is written here a second time, on purpose: a sentence that names a limit which
the request does not exceed, or one that this file does not know, fails the tests.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fsdpkit.config.job import Resources
from fsdpkit.config.partition import NodeType, Partition
from fsdpkit.config.site import LoadedSite
from fsdpkit.config.units import format_time, parse_time_s
from tests.config.limit_requests import Asked, keeps, node_hours_s, ways


def drawn(site: LoadedSite, count: int) -> Iterator[Resources]:
    """Always the same of one site: near its limits, and far from them."""
    rng = random.Random(site.id)
    profile = site.profile
    known = [*ways(profile)]
    nodes, gpus, times = {1, 2, 3, 10_000}, {1, 2, 4, 7, 8}, {300, 301, 3600, 86_400, 400 * 3600}
    for _, partition, node in known:
        for bound in (partition.max_nodes, partition.min_nodes, node.nodes):
            nodes |= {bound, bound + 1, max(1, bound - 1)} if bound else set()
        for bound in (partition.max_gpus_per_job, partition.min_gpus_per_job):
            nodes |= {max(1, bound // (node.gpus or 1)), bound} if bound else set()
        gpus |= {node.gpus, node.gpus + 1} if node.gpus else set()
        for text in (partition.max_time, partition.max_time_multinode):
            times |= {parse_time_s(text), parse_time_s(text) + 1} if text else set()
        for bin in partition.max_time_by_nodes:
            nodes |= {bin.nodes, bin.nodes + 1}
            times |= {parse_time_s(bin.time), parse_time_s(bin.time) + 60}
        if partition.max_node_hours:
            times |= {int(partition.max_node_hours * 3600 / n) for n in (1, 2, 4)}
    names = [None, None, *(name for name, _, _ in known if name), "gpuu"]
    account = profile.account.example or "project"
    for _ in range(count):
        yield Resources(
            nodes=rng.choice(sorted(nodes)),
            gpus=rng.choice(sorted(gpus)),
            time=_written(rng.choice(sorted(times)), rng),
            partition=rng.choice(names),
            account=rng.choice([account] * 8 + [None, "no such account"]),
            spare=rng.choice([0, 0, 0, 1, 7]),
            cpus_per_gpu=rng.choice([None, None, None, 8, 300]),
            memory=rng.choice([None, None, None, "64G", "9T"]),
        )


def _written(seconds: int, rng: random.Random) -> str:
    """In minutes, where they are whole, or as Slurm prints it."""
    return str(seconds // 60) if seconds % 60 == 0 and rng.random() < 0.5 else format_time(seconds)


@dataclass(frozen=True)
class At:
    """A request at one way to ask."""

    asked: Resources
    partition: Partition
    node: NodeType
    shortest_s: int

    @property
    def nodes(self) -> int:
        return self.asked.nodes + self.asked.spare

    def limits_s(self) -> dict[str, int | None]:
        """Each limit of time for so many nodes, by what a sentence calls it."""
        of, hours = self.partition, self.partition.max_node_hours
        plain = [of.max_time, of.max_time_multinode if self.nodes > 1 else None]
        plain += [bin.time for bin in of.max_time_by_nodes if bin.nodes >= self.nodes][:1]
        found = [parse_time_s(text) for text in plain if text]
        return {
            "plain": min(found, default=None),
            "node-hours": None if hours is None else node_hours_s(hours, self.nodes),
        }


def _time(at: At, limit: str, why: str | None) -> bool:
    """Whether the limit is the one named, and no other is shorter."""
    limit_s = 0 if limit == "shorter than a minute" else parse_time_s(limit)
    limits = at.limits_s()
    kind = "node-hours" if "node-hours" in (why or "") else "plain"
    return limits[kind] == limit_s == min(one for one in limits.values() if one is not None)


_N = r"(\d+)"
_LIMIT = r"(\d\S*|shorter than a minute)( for \d+ nodes?(?: \([\d.]+ node-hours a job\))?)?"
_SPARE = r"(?:, \d+ of them spare)?"
REASONS: Mapping[str, Callable[..., bool]] = {
    f"{_N} GPUs per node asked, a node has {_N}": lambda at, asked, most: (
        int(asked) == at.asked.gpus > at.node.gpus == int(most)
    ),
    f"at least {_N} GPUs per node must be asked for": lambda at, least: (
        at.asked.gpus < at.partition.min_gpus == int(least)
    ),
    f"{_N} GPUs per node asked, all {_N} of a node must be used": lambda at, asked, every: (
        int(asked) == at.asked.gpus < at.node.gpus == int(every)
        and at.partition.whole_nodes == "required"
    ),
    f"{_N} GPUs per node asked, all {_N} of a node must be used by a job on several nodes": (
        lambda at, asked, every: (
            int(asked) == at.asked.gpus < at.node.gpus == int(every)
            and at.partition.whole_nodes == "required-multinode"
            and at.nodes > 1
        )
    ),
    f"{_N} GPUs asked in all, a job may have at most {_N}": lambda at, asked, most: (
        int(asked) == at.nodes * at.asked.gpus > at.partition.max_gpus_per_job == int(most)
    ),
    f"{_N} GPUs asked in all, a job must have at least {_N}": lambda at, asked, least: (
        int(asked) == at.nodes * at.asked.gpus < at.partition.min_gpus_per_job == int(least)
    ),
    f"{_N} nodes asked{_SPARE}, at most {_N} allowed": lambda at, asked, most: (
        int(asked) == at.nodes > at.partition.max_nodes == int(most)
    ),
    f"{_N} nodes asked{_SPARE}, the cluster has {_N}": lambda at, asked, most: (
        int(asked) == at.nodes > at.node.nodes == int(most)
    ),
    f"{_N} nodes asked{_SPARE}, at least {_N} must be": lambda at, asked, least: (
        int(asked) == at.nodes < at.partition.min_nodes == int(least)
    ),
    rf"(\S+) asked, the limit is {_LIMIT}": lambda at, asked, limit, why: (
        parse_time_s(asked) == at.asked.time_s > parse_time_s(limit) and _time(at, limit, why)
    ),
    rf"the limit is {_LIMIT}, and a job here needs more than (\S+)": lambda at, limit, why, least: (
        parse_time_s(least) == at.shortest_s and _time(at, limit, why)
    ),
    f"{_N} cores per node asked, a node has {_N}": lambda at, asked, most: (
        int(asked) == at.asked.cpus_per_gpu * at.asked.gpus > at.node.cpus == int(most)
    ),
    f"{_N} MB per node asked, a node has {_N}": lambda at, asked, most: (
        int(asked) > at.node.memory_mb == int(most)
    ),
}


def untrue(reason: str, at: At) -> str | None:
    """What is wrong with a reason; None: the request really exceeds what it names."""
    for shape, holds in REASONS.items():
        if found := re.fullmatch(shape, reason):
            return None if holds(at, *found.groups()) else f"{reason!r} is not so"
    return f"{reason!r} is no reason that the tests know"


def reasons(message: str, names: Iterable[str]) -> dict[str, list[str]]:
    """Of a refusal by limits: against each of these ways to ask that it speaks of."""
    found = {}
    for name in names:
        line = _line(f"  {name} (", message)
        if line:
            found[name] = line.partition("): ")[2].split("; ")
    return found


def offered(message: str, asked: Resources) -> Iterator[Resources]:
    """The requests that a refusal proposes, each as a person would type it after reading."""

    def changed(**keys: Any) -> Resources:
        return msgspec.structs.replace(asked, **keys)

    for name in re.findall(
        r"--partition (\S+?)(?=[;.]|$)", _line("As asked it fits with", message)
    ):
        yield changed(partition=name)
    for line in ("What would fit", "Nearest that would fit"):
        for words in re.findall(r"(--nodes .+?) on ", _line(line, message)):
            found = re.findall(r"--(?:set resources\.)?(\w+)[ =](\S+)", words)
            yield changed(**{k: int(v) if v.isdigit() and k != "time" else v for k, v in found})


def _line(start: str, message: str) -> str:
    return next((line for line in message.splitlines() if line.startswith(start)), "")


def closest(asked: Resources, partition: Partition, node: NodeType, shortest_s: int) -> int | None:
    """Ranks of the nearest shape that keeps all limits, by trying them all up to 40 nodes."""
    found = []
    for nodes in range(1, 41):
        for gpus in range(1, node.gpus + 1) if node.gpus else [asked.gpus]:
            one = At(replace_shape(asked, nodes, gpus), partition, node, shortest_s)
            limits = [limit for limit in one.limits_s().values() if limit is not None]
            time_s = min([asked.time_s, *limits])
            counted = Asked(one.nodes, gpus, time_s)
            if time_s > shortest_s and keeps(counted, partition, node):
                found.append(nodes * gpus)
    return min(found, key=lambda ranks: abs(ranks - asked.ranks), default=None)


def replace_shape(asked: Resources, nodes: int, gpus: int) -> Resources:
    return msgspec.structs.replace(asked, nodes=nodes, gpus=gpus)
