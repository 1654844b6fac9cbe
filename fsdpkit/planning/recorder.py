"""Writes a tape of what a program does with tensors of one device: fake ones or real ones.

Below autograd, FSDP and DTensor every operation on plain tensors comes by here, whoever asked for
it. A block of memory is born with the operation that first returns its storage (alive.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from fsdpkit.planning.alive import AliveBlocks
from fsdpkit.planning.calls import COLLECTIVES, bytes_of, device_of, flops_of, group_of, is_biased
from fsdpkit.planning.gathered import ROOT, gathered_into, resharded
from fsdpkit.planning.launches import not_launched
from fsdpkit.planning.pretend import replaced
from fsdpkit.planning.tape import (
    HOST,
    MemoryBlock,
    Operation,
    Phase,
    Tape,
    TapedCollective,
    Trust,
    layer_of,
)
from fsdpkit.planning.unknown import Side, Unknown, caller
from fsdpkit.training.units import plain_name

if TYPE_CHECKING:
    from fsdpkit.planning.fused import Kernel

_DEVICE = torch.ops.prim.device.default


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Use as a context around everything, building included; `tape` is what there was.

    device: whose memory is written down. Other devices' is the host's (stream `HOST`).
    stream: tells the number of the stream that work is given to at the moment.
    vocabulary: the last dimension of tensors that are scores; 0: none are.
    side: how a value is answered that is read and not there; trust: whose kernels are called
    (unknown.py).
    """

    def __init__(
        self,
        device: torch.device,
        stream: Callable[[], int] = lambda: 0,
        *,
        vocabulary: int = 0,
        side: Side = "most",
        trust: Trust = "kernels",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._unknown = Unknown(side, trust)
        release, unknown = str(torch.__version__), self._unknown
        self.tape = Tape(torch=release, assumed=unknown.assumed, lacking=unknown.lacking)
        self._device, self._stream = device.type, stream
        self._vocabulary = vocabulary
        self._alive = AliveBlocks(self.tape)
        self._paths: dict[nn.Module, str] = {}
        self._stack: list[nn.Module] = []
        self._starts: list[int] = [0]  # sequence numbers of autograd at which modules change
        self._modules: list[str] = [""]
        self._units: dict[int, str] = {}  # whose weights a storage holds while it is gathered
        self._recomputed: str | None = None
        self._backward_began: int | None = None
        self._recompute_began: int | None = None
        self._in_optimizer = self._muted = self._built = False
        self._kernel: Kernel | None = None
        self._model: nn.Module | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and keeping Dynamo out takes time in every call

    # What the caller says

    def model_is_built(self, model: nn.Module) -> None:
        """From here on there are steps. What the model holds are its weights."""
        self._paths = {
            module: plain_name(f"{name}.").removesuffix(".")
            for name, module in model.named_modules()
        }
        self._alive.label([*model.parameters(), *model.buffers()], "weights")
        self._alive.label_others()
        self._built, self._model = True, model
        self.tape.began, self.tape.work_began = self.tape.events, len(self.tape.work)

    def step_is_done(self) -> None:
        self._leave_backward()
        self.tape.steps.append(self.tape.events)
        self.tape.work_steps.append(len(self.tape.work))
        if self._model is not None:
            # From the second step on: before the first, engines have made nothing to gather into.
            self._units = {
                storage._cdata: plain_name(f"{path}.").removesuffix(".") or ROOT
                for path, storage in gathered_into(self._model)
            }

    # Where the program is

    @property
    def phase(self) -> Phase:
        if self._kernel is not None and self._kernel.again:
            return "recompute"
        if self._in_optimizer:
            return "optimizer"
        if torch._C._current_graph_task_id() != -1:
            return "recompute" if self._stack else "backward"
        if not self._built:
            return "build"
        return "forward" if self._stack else "between"

    def _module(self, phase: Phase) -> str:
        if phase == "backward" or (self._kernel is not None and self._kernel.again):
            if self._recomputed is not None:
                return self._recomputed
            node = torch._C._current_autograd_node()
            at = bisect_right(self._starts, node._sequence_nr()) - 1 if node is not None else 0
            return self._modules[at]
        return self._paths.get(self._stack[-1], "") if self._stack else ""

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        if self._muted:
            return
        if self._backward_began is not None and torch._C._current_graph_task_id() != -1:
            if not self._stack:
                self._recompute_began = self.tape.events
                self._recomputed = self._paths.get(module, "")
            self._stack.append(module)
            return
        self._leave_backward()
        self._stack.append(module)
        self._mark(self._paths.get(module, ""))

    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._muted:
            return
        while self._stack and self._stack.pop() is not module:
            pass  # a block's recomputation ends early, by an exception
        if self._recompute_began is not None:
            if not self._stack:
                self._alive.label_survivors(self._recompute_began, "activations")
                self._recompute_began = None
        else:
            self._mark(self._paths.get(self._stack[-1], "") if self._stack else "")
            self._hand_on(self._paths.get(module, ""), output)

    def _hand_on(self, path: str, output: Any) -> None:
        """What a layer returns belongs to whoever uses it next."""
        if path and path == layer_of(path):
            for tensor in tree_iter(output):
                plain = isinstance(tensor, Tensor) and not isinstance(tensor, DTensor)
                if plain and (block := self._alive.of(tensor)):
                    block.handed_on = True

    def _mark(self, path: str) -> None:
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._modules.append(path)

    def _enter_backward(self) -> None:
        if self._backward_began is None:
            if self._model is not None:
                self._alive.label(resharded(self._model), "gathered")
            began = self.tape.steps[-1] if self.tape.steps else self.tape.began
            self._alive.label_survivors(began, "activations")
            self._backward_began = self.tape.events

    def _leave_backward(self) -> None:
        if self._backward_began is not None:
            self._alive.label_survivors(self._backward_began, "gradients")
            self._backward_began = self._recomputed = None

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._leave_backward()
        groups = optimizer.param_groups
        self._alive.label((p.grad for group in groups for p in group["params"]), "gradients")
        self._in_optimizer = True

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._in_optimizer = False
        self._alive.label(tree_iter([*optimizer.state.values()]), "optimizer")

    # Blocks

    def _born(self, storage: UntypedStorage, operation: str, tensor: Tensor) -> None:
        phase = self.phase
        block = MemoryBlock(
            size=storage.nbytes(),
            stream=self._stream() if device_of(tensor).type == self._device else HOST,
            born=self._alive.event(),
            phase=phase,
            module=self._module(phase),
            operation=self._kernel.name if self._kernel else operation,
        )
        if self._kernel is not None and self._kernel.again:
            block.kind = "activations"
        if self._is_scores(tensor):
            block.kind = "logits"
        self._alive.add(storage, block)

    def _is_scores(self, tensor: Tensor) -> bool:
        return self._vocabulary > 0 and tensor.ndim > 1 and tensor.shape[-1] == self._vocabulary

    def _resized(self, storage: UntypedStorage, size: int, before: MemoryBlock) -> MemoryBlock:
        phase = self.phase
        return MemoryBlock(
            size=size,
            stream=before.stream if before.stream == HOST else self._stream(),
            born=self._alive.event(),
            phase=phase,
            module=self._module(phase),
            operation="resize_",
            kind="gathered",
            unit=self._units.get(storage._cdata, ""),
        )

    # Operations

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return device_of(args[0])  # more than half of all calls, and no operation
        kwargs = kwargs or {}
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # comes back as operations on its shards
        if self._muted:
            return func(*args, **kwargs)
        if torch._C._current_graph_task_id() != -1:
            self._enter_backward()
        namespace = func.namespace
        result = self._unknown.call(func, args, kwargs)
        outputs = [t for t in tree_iter(result) if isinstance(t, Tensor)]
        name = func.overloadpacket.__name__
        made = 0
        for tensor in outputs:
            storage = tensor.untyped_storage()
            if not self._alive.has(storage):
                if not tensor.is_meta:
                    self._born(storage, name, tensor)
                made += storage.nbytes()
        if namespace in ("c10d", "_c10d_functional"):
            self._collective(name, args)
        elif made or func._schema.is_mutable:
            self._operation(func, name, args, kwargs, result, outputs)
        return result

    def _operation(
        self, func: Any, name: str, args: Any, kwargs: Any, result: Any, outputs: list[Tensor]
    ) -> None:
        inputs = {id(t): t for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)}
        tensors = [*inputs.values(), *outputs]
        if not any(device_of(t).type == self._device for t in tensors):
            return
        if name in ("empty", "empty_strided", "new_empty", "empty_like", "new_empty_strided"):
            return
        mutable = func._schema.is_mutable
        written = [
            value
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info and argument.alias_info.is_write
        ]
        written += [v for k, v in kwargs.items() if k == "out"] if mutable else []
        into = [t for t in tree_iter(written) if isinstance(t, Tensor)] if mutable else outputs
        self._worked(
            name,
            flops_of(func, args, kwargs, result),
            sum(map(bytes_of, inputs.values())),
            sum(map(bytes_of, into)),
            tensors[-1],
            biased="attention" in name and is_biased(func, args, kwargs),
        )
        if name in ("split_with_sizes_copy", "all_gather_copy_in"):
            self._alive.label([*into, *outputs], "gathered")
        elif name == "chunk_cat":
            self._alive.label([*into, *outputs], "reduction")

    def _worked(
        self, name: str, flops: int, read: int, written: int, like: Tensor, biased: bool = False
    ) -> None:
        """Bytes read and written; `like`: a tensor of the type that it computes in."""
        phase = self.phase
        self.tape.work.append(
            Operation(
                name=name,
                flops=flops,
                bytes_read=read,
                bytes_written=written,
                phase=phase,
                module=self._module(phase),
                stream=self._stream(),
                dtype=str(like.dtype).removeprefix("torch."),
                biased=biased,
            )
        )

    def _collective(self, name: str, args: tuple[Any, ...]) -> None:
        kind = COLLECTIVES.get(name)
        if kind is None and name in ("wait_tensor", "barrier"):
            return
        tensors = [t for t in tree_iter(args) if isinstance(t, Tensor)]
        group, ranks = group_of(args)
        phase = self.phase
        self.tape.groups[group] = ranks
        self.tape.work.append(
            TapedCollective(
                name=kind or "other",  # type: ignore[arg-type]
                bytes=max(map(bytes_of, tensors), default=0),
                ranks=ranks,
                group=group,
                phase=phase,
                module=self._module(phase),
                stream=self._stream(),
            )
        )
        if kind == "all_gather":
            self._alive.label(tensors, "gathered")
        elif kind == "reduce_scatter":
            self._alive.label(tensors, "reduction")

    def _launched(self, kernel: str, tensors: list[FakeTensor]) -> None:
        if (note := f"{kernel} in {caller()}") not in self.tape.launched:
            self.tape.launched.append(note)
        self._worked(f"triton_{kernel}", 0, sum(map(bytes_of, tensors)), 0, tensors[-1])

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What runs inside is none of the program's."""
        before, self._muted = self._muted, True
        try:
            yield
        finally:
            self._muted = before

    def kernel(self, kernel: Kernel, device: torch.device | None) -> list[Tensor]:
        """What a kernel of a compiled graph makes, on a device (None: the recorded one)."""
        device = device or torch.device(self._device)
        self._kernel = kernel
        try:
            made = [
                torch.empty_strided(store.size, store.stride, dtype=store.dtype, device=device)
                for store in kernel.makes
            ]
            if made and not self._muted and device.type == self._device:
                self._worked(
                    kernel.name, kernel.flops, kernel.bytes_read, kernel.bytes_written, made[-1]
                )
        finally:
            self._kernel = None
        return made

    def _also_used(self, tensor: Tensor, stream: Any) -> None:
        if block := self._alive.of(tensor):
            number = int(getattr(stream, "stream_id", 0))
            if number not in block.also_used_on:
                block.also_used_on = (*block.also_used_on, number)

    # Beginning and end

    @contextmanager
    def recording(self) -> Iterator[Recorder]:
        """Everything inside is written down."""
        usual, address = UntypedStorage.resize_, Tensor.data_ptr
        propagate = ShardingPropagator._propagate_tensor_meta_non_cached

        def resize(storage: UntypedStorage, size: int) -> Any:
            return self._alive.resize(storage, size, usual, partial(self._resized, storage, size))

        def muted(*arguments: Any) -> Any:
            # DTensor finds out shapes by running whole tensors: nothing that a rank ever holds.
            with self.apart():
                return propagate(*arguments)

        hooks = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ]
        changed = (
            (Tensor, "record_stream", lambda t, stream: self._also_used(t, stream)),
            (UntypedStorage, "resize_", resize),
            (Tensor, "data_ptr", lambda t: self._unknown.read_address(t, address)),
            (ShardingPropagator, "_propagate_tensor_meta_non_cached", muted),
        )
        try:
            with replaced(*changed), not_launched(self._launched), self:
                yield self
        finally:
            for hook in hooks:
                hook.remove()
            self._alive.forget()
