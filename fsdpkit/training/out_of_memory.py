"""`micro_batch = "auto"`: when a GPU runs out of memory, take smaller parts and go on.

A step's batch is cut into parts whose gradients add up. If memory runs out on any rank, all ranks
make the part smaller and repeat the same batch from its first part: no sample is left out, and the
weights are those of a run that had the smaller part from the start.

The difficulty is the other ranks. They are one or many messages (all-gathers, reduce-scatters)
further on, and wait for the one that failed. FSDP's messages in a forward and backward pass depend
on the model only, never on the batch's size. So the rank that failed counts those it has taken part
in, drops everything it holds, and repeats the window with parts of one row: messages up to that
count are left out, those after it are sent, with contents that nobody will use. Every rank thus
sends the same sequence, whoever failed and wherever, and meets the others at the vote that ends
each window. If even one row does not fit, the rank ends with the error, and torchrun ends the rest.

This holds for models that take the same path for every input, and for FSDP2, whose state can be
reset in the middle of a pass. `forward_backward` must not send messages of its own.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from fsdpkit.errors import ConfigError, FsdpkitError
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.gradients import gradient_sync

_MESSAGES = ("all_gather_single", "reduce_scatter_single", "all_reduce")
"""What FSDP2 calls to send something, at each call looked up in torch.distributed."""
STEP = 8
"""Above as many rows a part has a multiple of them."""
_FULL = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")

Part = TypeVar("Part", bound="Divisible")


class Divisible(Protocol):
    """What can be cut into parts of so many rows; as many parts on every rank."""

    def split(self: Part, rows: int, /) -> Sequence[Part]: ...


class MicroBatches:
    """Runs a step's batch in parts of `size` rows; smaller ones when memory runs out and `auto`.

    Set up with `training.micro_batch` and `training.batch_size`; auto starts with whole batches.
    Its price is one number that all ranks add up, and the host reads, in each step.

    Raises ConfigError for auto without FSDP2.
    """

    def __init__(
        self, model: nn.Module, ranks: Ranks, micro_batch: int | str | None, batch_size: int
    ) -> None:
        self.auto = micro_batch == "auto"
        self.size = micro_batch if isinstance(micro_batch, int) else batch_size
        self._model, self._ranks = model, ranks
        if self.auto and not isinstance(model, FSDPModule):
            raise ConfigError(
                'training.micro_batch = "auto" needs FSDP2, whose state can be reset in the middle '
                'of a step: set training.sharding.engine = "fsdp2", or give a number.'
            )

    def run(self, batch: Part, forward_backward: Callable[[Part], Tensor]) -> Tensor:
        """The sum of what `forward_backward(part)` returns for each part, a scalar on the device.

        `forward_backward` computes a part's loss, calls backward and returns the loss detached;
        gradients cross ranks with the last part. Random numbers start again with a repetition;
        what a forward pass counts elsewhere (BatchNorm's averages) sees both.

        Raises FsdpkitError when parts of one row are too large.
        """
        if not self.auto:
            return self._accumulate(batch.split(self.size), forward_backward)
        random = _random_state(self._ranks.device)
        self._reshard()  # an evaluation may have left the root's weights gathered
        while True:
            loss, failed = self._try(batch, forward_backward)
            if not failed:
                return loss
            names = ", ".join(map(str, failed))
            if self.size == 1:
                raise _nothing_fits(names)
            self._drop()
            _restore_random_state(random, self._ranks.device)
            smaller = smaller_size(self.size)
            self._ranks.say(
                f"out of memory on rank {names} with {self.size} samples at a time: the same "
                f"step again with {smaller}"
            )
            self.size = smaller

    def _accumulate(
        self, parts: Sequence[Part], forward_backward: Callable[[Part], Tensor]
    ) -> Tensor:
        loss = torch.zeros((), device=self._ranks.device)
        for number, part in enumerate(parts):
            with gradient_sync(self._model, number == len(parts) - 1):
                loss = loss + forward_backward(part)
        return loss

    def _try(
        self, batch: Part, forward_backward: Callable[[Part], Tensor]
    ) -> tuple[Tensor, list[int]]:
        """The loss, and the ranks whose memory was too small: the same list on every rank."""
        parts = batch.split(self.size)
        loss, fits = torch.zeros((), device=self._ranks.device), True
        with _counted_messages() as messages:
            try:
                loss = self._accumulate(parts, forward_backward)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                fits = False
            # Here the exception is gone, and with it the frames that held activations.
            if not fits:
                self._drop()
                messages.leave_out(messages.count)
                try:
                    self._accumulate([batch.split(1)[0]] * len(parts), forward_backward)
                except torch.OutOfMemoryError as error:
                    raise _nothing_fits(str(self._ranks.rank)) from error
        votes = torch.zeros(self._ranks.world_size, device=self._ranks.device)
        votes[self._ranks.rank] = not fits
        dist.all_reduce(votes)
        return loss, [rank for rank, failed in enumerate(votes.tolist()) if failed]

    def _reshard(self) -> None:
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _drop(self) -> None:
        """Forget the pass in progress and reduced gradients; sends nothing.

        What earlier parts added up stays (torch 2.13's reset leaves it) until the window's last
        part reduces it: each window is brought to its end, so the next one starts from nothing.
        """
        assert isinstance(self._model, FSDPModule)
        self._model.reset_iter_state()
        self._model.zero_grad(set_to_none=True)
        gc.collect()  # a traceback may hold activations in a cycle
        if self._ranks.device.type == "cuda":
            torch.cuda.empty_cache()


def smaller_size(size: int) -> int:
    """What is tried when `size` rows, of which there are more than one, were too many.

    Above 8 a quarter less, in steps of 8, so that little memory is left unused and GPUs get rows
    that fill their tiles; then the half. Blocks are compiled by then: what they need is in it.
    """
    if size <= STEP:
        return size // 2
    return max(STEP, size * 3 // 4 // STEP * STEP)


class _Messages:
    """How many messages were sent, and how many of those to come are to be left out."""

    def __init__(self) -> None:
        self.count = 0
        self._left_out = 0

    def leave_out(self, number: int) -> None:
        self._left_out = number

    def call(self, send: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if self._left_out:
            self._left_out -= 1
            output = named.get("output", arguments[0] if arguments else None)
            if isinstance(output, Tensor):
                output.zero_()  # rather than whatever the memory holds
            return None
        result = send(*arguments, **named)
        self.count += 1
        return result


@contextmanager
def _counted_messages() -> Iterator[_Messages]:
    """Inside, torch.distributed's functions that FSDP2 calls go through what is returned."""
    messages = _Messages()
    originals = {name: getattr(dist, name) for name in _MESSAGES}
    for name, original in originals.items():
        setattr(dist, name, functools.partial(messages.call, original))
    try:
        yield messages
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def _nothing_fits(ranks: str) -> FsdpkitError:
    return FsdpkitError(
        f"Out of memory on rank {ranks} with one sample at a time. Shorten "
        "training.data.source_length or target_length, set "
        'training.sharding.activation_checkpointing = "full" or strategy = "full_shard", or use '
        "more GPUs; training.sharding.cpu_offload is the last resort."
    )


def is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in _FULL)


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), on_device


def _restore_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
