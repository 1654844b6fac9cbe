"""`torch.compile` while a step is taped: the function runs as the two graphs that Inductor would
get, and what they keep and make passes by the recorder without being computed.

The function is traced on tensors without values; Inductor's own passes rewrite its joint graph and
cut it in two. So what is kept for backward is what a compiled block keeps, activation checkpointing
included; what lies in memory inside the graphs is `fused.py`'s rule. Nothing is lowered, nothing is
compiled. What cannot be traced runs uncompiled, which takes more, and is noted.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import traceback as fx_traceback
from torch.utils import checkpoint
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from fsdpkit.planning.pretend import replaced
from fsdpkit.planning.recorder import Recorder
from fsdpkit.planning.unknown import place_of
from fsdpkit.training import compilation

if TYPE_CHECKING:
    from fsdpkit.planning.fused import FusedGraph, Returned

_following: _Follower | None = None


@contextmanager
def not_compiled() -> Iterator[None]:
    """What is compiled inside runs as it is written, but while it is `followed`."""
    with replaced((torch, "compile", _compile), (nn.Module, "compile", _compile_in_place)):
        yield


@contextmanager
def followed(recorder: Recorder, *, as_graphs: bool) -> Iterator[None]:
    """`recorder` tapes compiled functions as their graphs, or as written, with a note."""
    global _following
    _following = _Follower(recorder, as_graphs)
    own = (compilation, "_compiled", lambda function, *_, **__: _stand_in(function))
    try:
        with not_compiled(), replaced(own):
            yield
    finally:
        _following = None


def _compile(model: Any = None, **how: Any) -> Any:
    """In place of torch.compile; a module stays what it is, with its class and weights' paths."""
    if model is None:
        return functools.partial(_compile, **how)
    if not isinstance(model, nn.Module):
        return _stand_in(model)
    _compile_in_place(model)
    return model


def _compile_in_place(module: nn.Module, *_: Any, **__: Any) -> None:
    module.forward = _stand_in(module.forward)


def _stand_in(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        if _following is None or torch.compiler.is_compiling():
            return function(*args, **named)
        return _following.call(function, args, named)

    setattr(run, _STANDS_IN, True)
    return run


_STANDS_IN = "_fsdpkit_stands_in"


_FLEX = "torch.nn.attention.flex_attention"


class _Follower:
    """Graphs of one tape: functions of the same code, on the same shapes, share theirs."""

    def __init__(self, recorder: Recorder, as_graphs: bool) -> None:
        self._recorder, self._as_graphs = recorder, as_graphs
        self._graphs: dict[Any, Callable[..., Any] | None] = {}

    def call(self, function: Callable[..., Any], args: Any, named: Any) -> Any:
        if getattr(function, "__module__", "") == _FLEX:
            return function(*args, **named)  # pretend.py has its kernel
        if not self._as_graphs:
            self._note(getattr(function, "__qualname__", "a function"))
            return function(*args, **named)
        given = _Given(function, args, named)
        tensors = given.tensors
        if given.key not in self._graphs:
            self._graphs[given.key] = self._traced(given)
        graph = self._graphs[given.key]
        return function(*args, **named) if graph is None else graph(*tensors)

    def _traced(self, given: _Given) -> Callable[..., Any] | None:
        try:
            with self._recorder.apart(), _disable_current_modes():
                return _graphs(given, self._recorder)
        except Exception as error:
            what = (str(error).strip().splitlines() or [""])[0][:160].rstrip(".")
            self._note(f"{type(error).__name__}: {what}{place_of(error)}")
            error.__traceback__ = None  # its frames hold tensors
            return None
        finally:
            given.forget()

    def _note(self, what: str) -> None:
        if what not in self._recorder.tape.uncompiled:
            self._recorder.tape.uncompiled.append(what)


class _Given:
    """A call: its function with what that reaches, and the tensors that are the graph's inputs."""

    def __init__(self, function: Callable[..., Any], args: Any, named: Any) -> None:
        self.function = function
        self.leaves, self.spec = tree_flatten((args, named))
        self.modules: list[nn.Module] = []
        code: list[Any] = []
        _reach(function, self.modules, code)
        self.places = [place for module in self.modules for place in _places(module)]
        numbers: dict[int, int] = {}
        self.tensors: list[Tensor] = []
        self.numbers: list[int] = []
        """For each place, and each tensor among the arguments, which of `tensors` it is."""
        for tensor in (
            *(held[name] for held, name in self.places),
            *(leaf for leaf in self.leaves if isinstance(leaf, Tensor)),
        ):
            if id(tensor) not in numbers:
                numbers[id(tensor)] = len(self.tensors)
                self.tensors.append(tensor)
            self.numbers.append(numbers[id(tensor)])
        self.key = (
            tuple(code),
            tuple(_structure(module) for module in self.modules),
            repr(self.spec),
            tuple(_value(leaf) for leaf in self.leaves if not isinstance(leaf, Tensor)),
            tuple(self.numbers),
            tuple(map(_looks, self.tensors)),
            torch.is_grad_enabled(),
        )

    def forget(self) -> None:
        """All that it holds: AOTAutograd keeps `run`, and nothing is to live longer for that."""
        del self.function, self.leaves, self.modules, self.places, self.tensors

    def run(self, *tensors: Tensor) -> Any:
        """The function on other tensors, as Dynamo would run it."""
        each = [tensors[number] for number in self.numbers]
        of_places, of_leaves = each[: len(self.places)], iter(each[len(self.places) :])
        leaves = [next(of_leaves) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        args, named = tree_unflatten(leaves, self.spec)
        before = [held[name] for held, name in self.places]
        for (held, name), tensor in zip(self.places, of_places, strict=True):
            held[name] = tensor
        try:
            changes = (
                (torch.compiler, "is_compiling", lambda: True),
                (checkpoint, _CHECKPOINTS, _tagging),
            )
            with replaced(*changes), fx_traceback.preserve_node_meta():
                return self.function(*args, **named)
        finally:
            for (held, name), tensor in zip(self.places, before, strict=True):
                held[name] = tensor


_CHECKPOINTS = "_checkpoint_without_reentrant_generator"
_checkpointing = getattr(checkpoint, _CHECKPOINTS)
_checkpoints = itertools.count(1)


def _tagging(
    function: Any, keep_random: bool, contexts: Any, determinism: str, debug: bool,
    early_stop: bool, *args: Any, **named: Any,
) -> Any:  # fmt: skip
    """Checkpointing as `tag_activation_checkpoint` has it: operations are marked, for the cut."""
    if contexts is checkpoint.noop_context_fn:
        contexts = functools.partial(create_selective_checkpoint_contexts, _recompute)
    number = next(_checkpoints)

    def numbered() -> Any:
        forward, again = contexts()
        forward.ac_graph_id = number
        return forward, again

    return _checkpointing(function, False, numbered, determinism, debug, False, *args, **named)


def _recompute(*_: Any, **__: Any) -> CheckpointPolicy:
    return CheckpointPolicy.PREFER_RECOMPUTE


def _graphs(given: _Given, recorder: Recorder) -> Callable[..., Any]:
    """The function as AOTAutograd runs it, with the graphs of its forward and its backward."""
    from torch._functorch.aot_autograd import aot_function
    from torch._inductor.compile_fx import _recursive_joint_graph_passes, partition_fn
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.virtualized import V

    from fsdpkit.planning.fused import fused  # with Inductor, half a second that few plans need

    for module in given.modules:
        if any(_has_hooks(each) for each in module.modules() if each is not module):
            raise ValueError("modules inside have hooks")
    free = [n for n, each in enumerate(given.tensors) if isinstance(each, nn.Parameter)]

    def cut(joint: Any, inputs: Any, **how: Any) -> Any:
        return partition_fn(joint, inputs, **{**how, "static_lifetime_input_indices": free})

    def compiled(gm: fx.GraphModule, example_inputs: Any, backward: bool = False) -> _Run:
        return _Run(fused(gm.graph, backward=backward), recorder)

    def without_gradients(gm: fx.GraphModule, example_inputs: Any) -> _Run:
        return compiled(_recursive_joint_graph_passes(gm), example_inputs)

    function: Callable[..., Any] = aot_function(
        given.run,
        fw_compiler=compiled,
        bw_compiler=functools.partial(compiled, backward=True),
        inference_compiler=without_gradients,
        partition_fn=cut,
        decompositions=select_decomp_table(),
    )
    # Hooks of whoever calls are not for what is saved while tracing.
    unhooked = torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, V.set_fake_mode(fake), unhooked:
        function(*map(_without_values, given.tensors))  # traces on the first call
    return function


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _without_values(tensor: Tensor) -> Tensor:
    """In host memory: for the pretended device torch has no decompositions of its own."""
    like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return like.requires_grad_(tensor.requires_grad)


class _Run:
    """A graph as AOTAutograd calls it: what a list of inputs holds is let go of on the way."""

    _boxed_call = True

    def __init__(self, graph: FusedGraph, recorder: Recorder) -> None:
        self._graph, self._recorder = graph, recorder

    def __call__(self, args: list[Any]) -> list[Any]:
        values = dict(zip(self._graph.inputs, args, strict=True))
        device = next((each.device for each in args if isinstance(each, Tensor)), None)
        args.clear()
        for node in self._graph.unused:
            del values[node]
        for kernel in self._graph.kernels:
            made = self._recorder.kernel(kernel, device)
            values.update(zip((store.node for store in kernel.makes), made, strict=True))
            del made
            for node in kernel.frees:
                values.pop(node, None)
        return [_seen(each, values) for each in self._graph.outputs]


def _seen(what: Returned, values: dict[fx.Node, Any]) -> Any:
    if what.home is None:
        return what.like
    base = values[what.home]
    like = what.like
    if base.shape == like.shape and base.stride() == like.stride() and not what.offset:
        return base
    return base.as_strided(like.shape, like.stride(), base.storage_offset() + what.offset)


# What a function reaches


def _reach(function: Any, modules: list[nn.Module], code: list[Any]) -> None:
    """Modules that a function uses by what it is bound to, and what tells its code from others'."""
    if isinstance(function, nn.Module):
        if all(function is not each for each in modules):
            modules.append(function)
    elif isinstance(function, functools.partial):
        for each in (function.func, *function.args, *function.keywords.values()):
            _reach(each, modules, code)
    elif isinstance(function, MethodType):
        _reach(function.__self__, modules, code)
        _reach(function.__func__, modules, code)
    elif isinstance(function, FunctionType):
        code.append(function.__code__)
        for cell in function.__closure__ or ():
            _reach(cell.cell_contents, modules, code)
    else:
        code.append(_value(function))


def _places(module: nn.Module) -> Iterator[tuple[dict[str, Any], str]]:
    """Where its tensors are: FSDP1 has plain ones among a module's attributes."""
    for each in module.modules():
        for held in (each._parameters, each._buffers, each.__dict__):
            for name, value in held.items():
                if isinstance(value, Tensor):
                    yield held, name


def _structure(module: nn.Module) -> Any:
    values = (
        (name, _value(value))
        for name, value in module.__dict__.items()
        if not name.startswith("_")
        and not isinstance(value, Tensor)
        and not hasattr(value, _STANDS_IN)
    )
    children = ((name, _structure(child)) for name, child in module._modules.items() if child)
    return type(module), tuple(values), tuple(children)


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _value(value: Any) -> Any:
    """What tells values apart: themselves if they are plain, else which object they are."""
    if isinstance(value, list | tuple | set | frozenset):
        return type(value), tuple(map(_value, value))
    if value is None or isinstance(value, bool | int | float | str | torch.dtype | type):
        return type(value), value
    return type(value), id(value)


def _looks(tensor: Tensor) -> Any:
    return (
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        tensor.requires_grad,
        isinstance(tensor, nn.Parameter),
    )
