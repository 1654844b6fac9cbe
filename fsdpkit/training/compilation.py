"""`compile = true`: each block's forward as a graph, and how many blocks still run as one.

All blocks of a class share one code object, and with it Dynamo's cache and its limit of 8 graphs,
after which it runs the rest uncompiled and says so once, in a warning of each rank. Blocks need a
graph with gradients and one without; lengths that vary double that, because the first shape gets a
graph of its own before Dynamo lets lengths vary, and a batch or a length of one gets another. So
each stack of blocks has a code object of its own here, which its blocks share, and LIMIT is
well above all of these together. It holds for the blocks alone.

Lengths are not marked as varying from the start: over six kinds of shapes that saves one graph of
nine, and runs of one length would lose kernels that are made for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

from fsdpkit.training.units import block_paths, unwrapped, walk

LIMIT = 64
"""Graphs of one code object: 18 were seen with six kinds of shapes, evaluation and generation."""

COMPILED = "_fsdpkit_compiled"
"""Attribute of a sharded model whose blocks are compiled: its CompiledBlocks."""

_METHOD = "compiled_method"
"""Attribute of a block class that names the method to compile, where it is not all of forward."""


class CompiledBlocks:
    """How many of a model's blocks have run compiled, and nothing else, since the last question."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._uncompiled: set[int] = set()

    def ran_uncompiled(self, number: int) -> None:
        self._uncompiled.add(number)

    def take(self) -> dict[str, int]:
        """`compiled_blocks` of `blocks` since the last call, in this process."""
        found = {"compiled_blocks": self.count - len(self._uncompiled), "blocks": self.count}
        self._uncompiled.clear()
        return found


def compile_blocks(model: nn.Module, blocks: Collection[type[nn.Module]]) -> CompiledBlocks:
    """Compile each block's forward, or the method that its class names in `compiled_method`.

    The method and not the module: names stay as they are, and both engines' hooks, which gather
    and free weights around it, stay outside the compiled graph. A block that is checkpointed is
    recomputed inside its graph.
    """
    modules = dict(walk(model))
    paths = block_paths(model, blocks)
    counter = CompiledBlocks(len(paths))
    codes: dict[str, CodeType] = {}
    for number, path in enumerate(paths):
        module, block = modules[path], unwrapped(modules[path])
        compiled = partial(_compiled, stack=path.rpartition(".")[0], codes=codes)
        if method := getattr(type(block), _METHOD, None):
            inner = getattr(block, method)
            if isinstance(module, CheckpointWrapper):
                inner = partial(module.checkpoint_fn, inner)
                setattr(module, "checkpoint_fn", _as_it_is)  # noqa: B010
            setattr(block, method, compiled(inner, partial(counter.ran_uncompiled, number)))
        else:
            module.forward = compiled(module.forward, partial(counter.ran_uncompiled, number))
    return counter


def _compiled(
    function: Callable[..., Any],
    ran_uncompiled: Callable[[], None],
    *,
    stack: str,
    codes: dict[str, CodeType],
) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        if not torch.compiler.is_compiling():  # true while tracing: no graph has this in it
            ran_uncompiled()
        return function(*arguments, **named)

    # Graphs belong to a code object, and what Dynamo has learnt of lengths to its name. With one
    # for all, an encoder and a decoder of two fixed lengths would be a model of varying ones.
    run.__code__ = codes.setdefault(stack, run.__code__.replace(co_name=f"run {stack}"))
    compile_: Callable[..., Callable[..., Any]] = torch.compile  # whose stub lacks the argument
    return compile_(run, recompile_limit=LIMIT)


def _as_it_is(module: nn.Module, *arguments: Any, **named: Any) -> Any:
    return module(*arguments, **named)
