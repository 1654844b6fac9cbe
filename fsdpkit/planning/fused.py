"""Which values of a traced graph lie in memory once Inductor has fused it, and from when to when.

The rule, kept simple so that it errs upwards. A value is stored that

- leaves the graph, or is what a kernel outside of Inductor makes or takes: a matrix product, an
  attention, and whatever else is neither pointwise, a reduction nor a view;
- is the result of a reduction;
- reads more than MOST_READS stored values, or has several uses and either reads more than READS or
  has one of HEAVY in it.

All else is computed inside the kernel of the stored value that needs it. A value is freed after its
last use. Inductor chooses the order of the kernels; here the one counts, of two, that takes more:
that of the graph, or the same with gradients of weights last. It also writes over what it reads for
the last time, which is not counted.

READS and MOST_READS are Inductor's (`realize_reads_threshold`, `realize_acc_reads_threshold`);
HEAVY is its list for a CPU, which errs upwards on a GPU.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._functorch.partitioners import get_default_op_list
from torch.utils._pytree import tree_iter

from fsdpkit.planning.calls import flops_of

READS, MOST_READS = 4, 8
HEAVY = frozenset({"exp", "log", "log10", "log1p", "log2", "sigmoid", "tanh"})
_aten, _prims = torch.ops.aten, torch.ops.prims
_REDUCTIONS = frozenset({
    _aten.sum, _aten.mean, _aten.amax, _aten.amin, _aten.argmax, _aten.argmin, _aten.any, _aten.all,
    _aten.max, _aten.min, _aten.var, _aten.std, _aten.var_mean, _aten.sum_to_size, _aten.prod,
    _aten._grad_sum_to_size, _prims.sum, _prims.var, _prims.prepare_softmax_online,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Store:
    """A storage that a kernel makes: dense, of a tensor with this shape."""

    node: fx.Node
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Kernel:
    """What is made by one launch, and which stores nobody needs after it. Bytes move in it."""

    name: str
    makes: tuple[Store, ...]
    frees: tuple[fx.Node, ...]
    flops: int
    bytes_read: int
    bytes_written: int
    again: bool
    """Whether a checkpoint has it computed a second time, in backward."""


@dataclass(frozen=True, slots=True)
class Returned:
    """A result of the graph: a store or an input, seen as `like` is; or, without one, `like`."""

    home: fx.Node | None
    like: Any
    offset: int = 0
    """Of its first number from the first of `home`."""


@dataclass(frozen=True)
class FusedGraph:
    inputs: tuple[fx.Node, ...]
    unused: tuple[fx.Node, ...]
    """Inputs that no kernel reads and that are not returned."""
    kernels: tuple[Kernel, ...]
    outputs: tuple[Returned, ...]


def fused(graph: fx.Graph, *, backward: bool = False) -> FusedGraph:
    """Raises ValueError for a graph with values that are not known without running it."""
    return _Fusion(graph, backward).result()


class _Launch(NamedTuple):
    node: fx.Node
    made: tuple[fx.Node, ...]
    """`node`, or those of its results that somebody uses."""
    reads: frozenset[fx.Node]


class _Fusion:
    def __init__(self, graph: fx.Graph, backward: bool) -> None:
        self._backward = backward
        self._graph, self._kinds = graph, get_default_op_list()
        self._home: dict[fx.Node, fx.Node] = {}
        """Of stored values and their views: the node whose storage it is."""
        self._heavy: set[fx.Node] = set()
        """Values not stored that take one of HEAVY."""
        self._reads: dict[fx.Node, frozenset[fx.Node]] = {}
        """Stored values that computing it, or looking at it, reads."""

    def result(self) -> FusedGraph:
        launches, inputs = [], []
        for node in self._graph.nodes:
            if node.op == "placeholder":
                inputs.append(node)
                self._is_stored(node)
            elif node.op == "get_attr":
                self._is_stored(node)
            elif node.op == "call_function":
                reads = self._reads_of(node)
                if self._looks_only(node):
                    self._looks(node, reads)
                elif not isinstance(node.meta.get("val"), Tensor) or self._stays(node, reads):
                    made = self._made_by(node)
                    for each in made:
                        self._is_stored(each)
                    self._reads[node] = frozenset({node})
                    launches.append(_Launch(node, made, reads))
                else:
                    self._reads[node] = reads
                    if self._is_heavy(node):
                        self._heavy.add(node)
        return self._timed(inputs, launches)

    def _is_stored(self, node: fx.Node) -> None:
        self._home[node] = node
        self._reads[node] = frozenset({node})

    def _reads_of(self, node: fx.Node) -> frozenset[fx.Node]:
        return frozenset().union(
            *(self._reads[n] for n in node.all_input_nodes if n in self._reads)
        )

    def _looks_only(self, node: fx.Node) -> bool:
        if node.target is operator.getitem:
            return True
        value = node.meta.get("val")
        schema = getattr(node.target, "_schema", None)
        alias = schema is not None and any(
            r.alias_info and not r.alias_info.is_write for r in schema.returns
        )
        tensors = isinstance(value, Tensor | list | tuple)
        return tensors and (self._kinds.is_view(node) or alias or _packet(node) in _VIEWS)

    def _looks(self, node: fx.Node, reads: frozenset[fx.Node]) -> None:
        base = node.args[0]
        if node in self._home:
            return  # one of several results, stored already
        if isinstance(base, fx.Node) and base in self._home:
            self._home[node] = self._home[base]
            self._reads[node] = frozenset({self._home[base]})
            return
        self._reads[node] = reads
        if base in self._heavy:
            self._heavy.add(node)

    def _is_heavy(self, node: fx.Node) -> bool:
        return _name(node) in HEAVY or any(n in self._heavy for n in node.all_input_nodes)

    def _stays(self, node: fx.Node, reads: frozenset[fx.Node]) -> bool:
        if self._is_outside(node):
            return True
        if _packet(node) in _REDUCTIONS or len(reads) > MOST_READS:
            return True
        users = list(self._users(node))
        if any(user.op == "output" or self._is_outside(user) for user in users):
            return True
        return len(users) > 1 and (len(reads) > READS or self._is_heavy(node))

    def _is_outside(self, node: fx.Node) -> bool:
        """A kernel that takes tensors from memory, and is none of Inductor's."""
        tags = getattr(node.target, "tags", ())
        fused = self._kinds.is_fusible(node) or torch.Tag.pointwise in tags
        return not fused and _name(node) not in _FUSED_TOO

    def _users(self, node: fx.Node) -> Iterator[fx.Node]:
        for user in node.users:
            if user.op == "call_function" and self._looks_only(user):
                yield from self._users(user)
            else:
                yield user

    def _made_by(self, node: fx.Node) -> tuple[fx.Node, ...]:
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            return (node,)
        return tuple(
            user
            for user in node.users
            if user.target is operator.getitem and isinstance(user.meta.get("val"), Tensor)
        )

    def _timed(self, inputs: Sequence[fx.Node], launches: Sequence[_Launch]) -> FusedGraph:
        """In the order that takes more: as traced, or what nobody reads within the graph last."""
        (output,) = self._graph.find_nodes(op="output")
        returned = [self._returned(value) for value in tree_iter(output.args[0])]
        kept = {each.home for each in returned}
        read = {node for each in launches for node in each.reads}
        late = sorted(launches, key=lambda each: read.isdisjoint(each.made))
        orders = [self._kernels(each, kept) for each in (launches, late)]
        used = read | kept
        return FusedGraph(
            inputs=tuple(inputs),
            unused=tuple(node for node in inputs if node not in used),
            kernels=max(orders, key=_peak),
            outputs=tuple(returned),
        )

    def _kernels(
        self, launches: Sequence[_Launch], kept: Set[fx.Node | None]
    ) -> tuple[Kernel, ...]:
        last = {node: n for n, each in enumerate(launches) for node in (*each.reads, *each.made)}
        frees: list[list[fx.Node]] = [[] for _ in launches]
        for node, number in last.items():
            if node not in kept:
                frees[number].append(node)
        return tuple(
            _kernel(each, gone, again=self._backward and "recompute" in each.node.meta)
            for each, gone in zip(launches, frees, strict=True)
        )

    def _returned(self, value: Any) -> Returned:
        if not isinstance(value, fx.Node):
            return Returned(None, value)
        like = value.meta.get("val")
        if not isinstance(like, Tensor):
            raise ValueError(f"{value} is no tensor")
        home = self._home[value]
        if home.op == "get_attr":
            raise ValueError(f"{value} is a constant tensor")
        return Returned(home, like, like.storage_offset() - home.meta["val"].storage_offset())


_VIEWS = frozenset({_aten._unsafe_view, _aten.reshape, _aten.detach, _aten.lift_fresh})
_FUSED_TOO = frozenset({
    "cat", "constant_pad_nd", "embedding",
    "inductor_random", "inductor_randint", "inductor_lookup_seed",
})  # fmt: skip


def _peak(kernels: Sequence[Kernel]) -> int:
    now = most = 0
    for kernel in kernels:
        now += kernel.bytes_written
        most = max(most, now)
        now -= sum(map(_bytes, kernel.frees))
    return most


def _kernel(launch: _Launch, frees: Sequence[fx.Node], *, again: bool) -> Kernel:
    node = launch.node
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return Kernel(
        name=_name(node),
        makes=tuple(map(_store, launch.made)),
        frees=tuple(frees),
        flops=flops_of(node.target, args, kwargs, node.meta.get("val")),
        bytes_read=sum(map(_bytes, launch.reads)),
        bytes_written=sum(map(_bytes, launch.made)),
        again=again,
    )


def _store(node: fx.Node) -> Store:
    value: Tensor = node.meta["val"]
    return Store(node, tuple(value.shape), tuple(value.stride()), value.dtype)


def _bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0


def _packet(node: fx.Node) -> Any:
    return getattr(node.target, "overloadpacket", node.target)


def _name(node: fx.Node) -> str:
    return str(getattr(_packet(node), "__name__", node.target))
