"""Thousands of nodes put together to the few kinds that a profile describes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from fsdpkit.listing import node_list
from fsdpkit.scheduling.live_cluster import LiveCluster, LiveNode, is_slice, whole_of


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
    """Of the one with the least; as the cores, the share of these GPUs where a node has others."""
    features: tuple[str, ...]
    """Of all of them."""
    constraint: str | None
    """The feature that tells it from other GPUs without a type; None: none does, or need not."""
    nodes: tuple[LiveNode, ...]
    remarks: tuple[str, ...]

    @property
    def shares_nodes(self) -> bool:
        """Whether a node has GPUs of other types, too."""
        return _mixed(self.nodes)

    @property
    def slices(self) -> bool:
        """Whether its GPUs are parts of one (MIG)."""
        return is_slice(self.slurm_type)


_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,60}", re.ASCII)


def gpu_kinds(live: LiveCluster) -> list[Kind]:
    """The kinds of nodes, most GPUs first; a node with two types of GPU is of two kinds."""
    groups: dict[_Key, list[LiveNode]] = {}
    for node in live.all_nodes:
        for kind, count in node.gpus or ((None, 0),):
            if kind is not None and not _TYPE.fullmatch(kind):
                kind, count = None, 0
            model = "" if kind or not count else _model(node)
            cpus = int((node.cpus or 0) * _share(node, kind))
            key = _Key(-count, kind or "", model, node.arch or "", cpus)
            groups.setdefault(key, []).append(node)
    groups = _with_unread_architecture(groups)
    typed = {key.kind for key in groups if key.kind}
    several = len(typed) > 1
    found, taken = [], set[str]()
    for (less, kind, model, arch, cpus), nodes in sorted(groups.items()):
        stem = f"{kind or model.lower() or 'gpu'}x{-less}" if less else "cpu"
        names = itertools.chain([stem], (f"{stem}-{n}" for n in itertools.count(2)))
        name = next(one for one in names if one not in taken)
        taken.add(name)
        ordered = tuple(sorted(nodes, key=lambda node: node.name))
        memory = [int(n.memory_mb * _share(n, kind)) for n in ordered if n.memory_mb is not None]
        features = set.intersection(*({*node.features} for node in ordered))
        found.append(
            Kind(
                name=name,
                gpus=-less,
                slurm_type=kind or None,
                must_say_type=bool(kind) and (several or is_slice(kind)),
                arch=arch or None,
                cpus=cpus or None,
                memory_mb=min(memory, default=None),
                features=tuple(sorted(features)),
                constraint=_constraint(model, features, groups),
                nodes=ordered,
                remarks=tuple(_remarks(ordered, kind, memory)),
            )
        )
    return found


class _Key(NamedTuple):
    less: int
    kind: str
    model: str
    arch: str
    cpus: int


_MODEL = re.compile(
    r"(?<![a-z0-9])(?:a(?:10|16|30|40|100|800|2000|4000|4500|5000|5500|6000)[a-z]{0,2}|b[123]00"
    r"|g[bh][23]00|h(?:20|100|200|800)[a-z]?|k[48]0|l4|l40s?|p(?:40|100)|t4|v100[a-z]?"
    r"|mi\d{3}[a-z]?|(?:rtx|gtx|titan|quadro)[a-z0-9]*|[2345]0[789]0(?:ti)?)(?![a-z0-9])"
)
"""A GPU's model in a feature, by which nodes are told apart where their GPUs have no type: not any
letter with a number, as racks have."""


def _models(feature: str) -> list[str]:
    return _MODEL.findall(feature.lower().replace("_", " "))


def _model(node: LiveNode) -> str:
    found = {word for feature in node.features for word in _models(feature)}
    return max(found, key=lambda word: (bool(re.search(r"\d", word)), len(word), word), default="")


def _constraint(
    model: str, features: Set[str], groups: Mapping[_Key, Sequence[LiveNode]]
) -> str | None:
    """A feature that names the model and that no other node with GPUs has."""
    if not model or len({key.model or key.kind for key in groups if key.less}) < 2:
        return None
    others = {
        feature
        for key, nodes in groups.items()
        if key.less and key.model != model
        for node in nodes
        for feature in node.features
    }
    own = [f for f in sorted(features - others) if model in _models(f) and FEATURE.fullmatch(f)]
    return own[0] if own else None


FEATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=+-]{0,127}", re.ASCII)
"""Features that a script may hold."""


def _share(node: LiveNode, kind: str | None) -> float:
    """Of all GPUs of the node those of this type, slices by how much of one they are."""
    amounts = {name: count * whole_of(name) for name, count in node.gpus}
    return amounts.get(kind or None, 1.0) / (sum(amounts.values()) or 1.0)


def _mixed(nodes: tuple[LiveNode, ...]) -> bool:
    return any(len(node.gpus) > 1 for node in nodes)


def _with_unread_architecture(groups: dict[_Key, list[LiveNode]]) -> dict[_Key, list[LiveNode]]:
    """A node that has not registered says no architecture; it is of the one kind like it."""
    merged: dict[_Key, list[LiveNode]] = {}
    for key, nodes in groups.items():
        if not key.arch:
            like = [other for other in groups if other._replace(arch="") == key and other.arch]
            key = like[0] if len(like) == 1 else key
        merged.setdefault(key, []).extend(nodes)
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
