"""What recomputing and offloading free: bytes that are alive between forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from fsdpkit.errors import ConfigError
from fsdpkit.training import activation_checkpointing
from fsdpkit.training.activation_checkpointing import (
    _keep_attention_and_every_second_product,
    checkpoint_activations,
    offload_activations,
)

WIDTH, ROWS, BLOCKS = 32, 64, 4
INPUT = WIDTH * ROWS * 4  # bytes of what enters a block


class Feed(nn.Module):
    """Two matrix products and what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Alive(TorchDispatchMode):
    """Knows the storage of everything computed while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                reference = StorageWeakRef(tensor.untyped_storage())
                self.storages[reference.cdata] = (reference, tensor.untyped_storage().nbytes())
        return result

    def bytes(self, model: nn.Module) -> int:
        """What is alive now, but for the weights, of which some operations make views."""
        weights = {StorageWeakRef(p.untyped_storage()).cdata for p in model.parameters()}
        return sum(
            size
            for key, (reference, size) in self.storages.items()
            if key not in weights and not reference.expired()
        )


def kept_bytes(mode: str, every: int = 1) -> tuple[int, list[Tensor]]:
    """Bytes alive after forward, and the gradients that backward then makes."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Feed() for _ in range(BLOCKS)))
    if mode != "none":
        checkpoint_activations(model, [Feed], mode, every=every)
    x = torch.randn(ROWS, WIDTH)
    with Alive() as alive:
        result = model(x)
        kept = alive.bytes(model)
    result.square().sum().backward()
    return kept, [p.grad for p in model.parameters()]


def test_a_checkpointed_block_keeps_its_input_only() -> None:
    kept, _ = kept_bytes("full")
    assert kept == BLOCKS * INPUT  # each block's result is the next one's input


def test_a_selectively_checkpointed_block_also_keeps_every_second_product() -> None:
    kept, _ = kept_bytes("selective")
    assert kept == BLOCKS * (INPUT + 4 * INPUT)  # `up`, four times as wide as the input


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_gradients_are_the_same_bit_for_bit(mode: str) -> None:
    assert all(map(torch.equal, kept_bytes(mode)[1], kept_bytes("none")[1]))


def test_only_outermost_blocks_are_wrapped_counted_from_the_first() -> None:
    model = nn.Sequential(*(nn.Sequential(Feed(), nn.ReLU()) for _ in range(3)))
    assert checkpoint_activations(model, [nn.Sequential, Feed], every=2) == 2
    wrapped = [name for name, m in model.named_modules() if isinstance(m, CheckpointWrapper)]
    assert wrapped == ["0", "2"]


def test_a_model_without_such_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="no module of the block classes"):
        checkpoint_activations(nn.Linear(2, 2), [Feed])


def decision(op: torch._ops.OpOverload, *args: object) -> CheckpointPolicy:
    policy = _keep_attention_and_every_second_product()
    return policy(SelectiveCheckpointContext(is_recompute=False), op, *args)


def test_attention_is_kept_unless_it_draws_random_numbers() -> None:
    """Skipped in recomputation it would leave later dropouts other numbers than they had."""
    q = torch.zeros(1, 1, 2, 4)
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention.default
    flash = torch.ops.aten._scaled_dot_product_flash_attention.default
    assert decision(efficient, q, q, q, None, True) is CheckpointPolicy.MUST_SAVE
    assert decision(efficient, q, q, q, None, True, 0.1) is CheckpointPolicy.PREFER_RECOMPUTE
    assert decision(flash, q, q, q) is CheckpointPolicy.MUST_SAVE
    assert decision(flash, q, q, q, 0.1) is CheckpointPolicy.PREFER_RECOMPUTE


def offloaded_bytes(
    monkeypatch: pytest.MonkeyPatch, every: int = 1
) -> tuple[int, int, list[Tensor]]:
    """As `kept_bytes`: what is left on the device, what went to the host, and gradients."""
    host: dict[int, int] = {}
    to_host = activation_checkpointing._Offloaded.__init__

    def counted(self: activation_checkpointing._Offloaded, tensor: Tensor) -> None:
        to_host(self, tensor)
        host[StorageWeakRef(self.host.untyped_storage()).cdata] = self.host.nbytes

    monkeypatch.setattr(activation_checkpointing._Offloaded, "__init__", counted)
    torch.manual_seed(0)
    model = nn.Sequential(*(Feed() for _ in range(BLOCKS)))
    offload_activations(model, [Feed], every=every)
    x = torch.randn(ROWS, WIDTH)
    with Alive() as alive:
        result = model(x)
        for key in host:
            alive.storages.pop(key, None)
        kept = alive.bytes(model)
    result.square().sum().backward()
    return kept, sum(host.values()), [p.grad for p in model.parameters()]


def test_an_offloaded_block_leaves_nothing_on_the_device_but_its_result(monkeypatch) -> None:
    kept, host, _ = offloaded_bytes(monkeypatch)
    assert kept == INPUT  # the last block's result
    # The input of `up`, that of gelu, that of `down`; and no weights, half a block's worth more.
    assert host == BLOCKS * (INPUT + 2 * 4 * INPUT)


def test_a_weight_that_is_freed_and_gathered_again_is_not_copied() -> None:
    """FSDP's way: backward uses what is in the storage then."""
    model = nn.Sequential(Feed())
    offload_activations(model, [Feed])
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    result = model(x)
    weight = model[0].down.weight
    weight.data.zero_()
    result.backward(torch.ones_like(result))
    assert torch.equal(x.grad, torch.ones_like(x)), "nothing comes through `down` any more"
