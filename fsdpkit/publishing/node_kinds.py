"""Thousands of nodes put together to the few kinds that a profile describes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fsdpkit.listing import node_list
from fsdpkit.scheduling.live_cluster import LiveCluster, LiveNode


@dataclass(frozen=True)
class Kind:
    """Nodes that a job asks for alike: as many GPUs of one type, cores, architecture."""

    name: str
    gpus: int
    slurm_type: str | None
    """What Slurm calls the GPU, if anything."""
    must_say_type: bool
    """Whether a request without the type could get another GPU."""
    arch: str | None
    cpus: int | None
    memory_mb: int | None
    """Of the one with the least."""
    features: tuple[str, ...]
    """Of all of them."""
    nodes: tuple[LiveNode, ...]
    remarks: tuple[str, ...]

    @property
    def slices(self) -> bool:
        """Whether its GPUs are parts of one (MIG), by the names that NVIDIA gives those."""
        return bool(re.search(r"\d+g\.\d+gb", self.slurm_type or ""))


_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,60}", re.ASCII)


def gpu_kinds(live: LiveCluster) -> list[Kind]:
    """The kinds of a cluster's nodes, those with most GPUs first; nodes with two types of GPU are
    of two kinds."""
    groups: dict[tuple[int, str, str, int], list[LiveNode]] = {}
    for node in live.nodes:
        for kind, count in node.gpus or ((None, 0),):
            if kind is not None and not _TYPE.fullmatch(kind):
                kind, count = None, 0
            key = (-count, kind or "", node.arch or "", node.cpus or 0)
            groups.setdefault(key, []).append(node)
    groups = _with_unread_architecture(groups)
    typed = {kind for (_, kind, _, _) in groups if kind}
    several = len(typed) > 1
    found, taken = [], set[str]()
    for (less, kind, arch, cpus), nodes in sorted(groups.items()):
        stem = f"{kind or 'gpu'}x{-less}" if less else "cpu"
        name = next(n for n in _numbered(stem) if n not in taken)
        taken.add(name)
        ordered = tuple(sorted(nodes, key=lambda node: node.name))
        memory = [node.memory_mb for node in ordered if node.memory_mb is not None]
        features = set.intersection(*({*node.features} for node in ordered))
        found.append(
            Kind(
                name=name,
                gpus=-less,
                slurm_type=kind or None,
                must_say_type=bool(kind) and several,
                arch=arch or None,
                cpus=cpus or None,
                memory_mb=min(memory, default=None),
                features=tuple(sorted(features)),
                nodes=ordered,
                remarks=tuple(_remarks(ordered, kind, memory)),
            )
        )
    return found


def _numbered(stem: str) -> Iterator[str]:
    yield stem
    number = 2
    while True:
        yield f"{stem}-{number}"
        number += 1


def _mixed(nodes: tuple[LiveNode, ...]) -> bool:
    return any(len(node.gpus) > 1 for node in nodes)


def _with_unread_architecture(
    groups: dict[tuple[int, str, str, int], list[LiveNode]],
) -> dict[tuple[int, str, str, int], list[LiveNode]]:
    """A node that has not registered says no architecture; it is of the one kind like it."""
    merged: dict[tuple[int, str, str, int], list[LiveNode]] = {}
    for (less, kind, arch, cpus), nodes in groups.items():
        if not arch:
            like = [k for k in groups if (k[0], k[1], k[3]) == (less, kind, cpus) and k[2]]
            arch = like[0][2] if len(like) == 1 else ""
        merged.setdefault((less, kind, arch, cpus), []).extend(nodes)
    return merged


def _remarks(nodes: tuple[LiveNode, ...], kind: str, memory: list[int]) -> Iterator[str]:
    yield node_list([node.name for node in nodes])
    away = sum(not node.usable for node in nodes)
    if away:
        yield f"{away} of them down, drained or in maintenance when asked"
    if kind:
        yield f"Slurm calls the GPU {kind}"
    if memory and min(memory) != max(memory):
        yield f"{min(memory)} to {max(memory)} MB of memory"
    if _mixed(nodes):
        yield "with GPUs of more than one type in a node"
