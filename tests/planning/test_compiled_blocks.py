"""Compiled blocks of a plan: what they keep is what AOTAutograd keeps, and what cannot be traced
runs as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fsdpkit.config.training import load_settings
from fsdpkit.config.trust import TrustedScript
from fsdpkit.planning import compiled
from fsdpkit.planning.asked import AskedStep, resolved
from fsdpkit.planning.cards import card_named
from fsdpkit.planning.compiled import followed
from fsdpkit.planning.outside import CALIBRATED_TORCH
from fsdpkit.planning.recorder import Recorder

pytestmark = pytest.mark.torch


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64, bias=False), nn.Linear(64, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))
        return x + self.down(F.gelu(self.up(normed)).sin().cos())


def kept_bytes(run: Any, module: nn.Module, x: Tensor) -> int:
    """Of storages that autograd keeps of a forward, without weights and input."""
    known = {t.untyped_storage()._cdata for t in (*module.parameters(), x)}
    kept: dict[int, Any] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run(x).sum().backward()
    return sum(storage.nbytes() for storage in kept.values())


def recorder() -> Recorder:
    return Recorder(torch.device("cpu"))


def test_a_followed_function_keeps_what_a_compiled_one_keeps():
    module, x = Mlp(), torch.randn(8, 16, requires_grad=True)
    really = torch.compile(module.forward, backend="aot_eager_decomp_partition")
    wanted = kept_bytes(really, module, x)
    taped = recorder()
    with taped.recording(), followed(taped, as_graphs=True):
        found = kept_bytes(torch.compile(module.forward), module, x)
    assert not taped.tape.uncompiled
    assert found == wanted < kept_bytes(module.forward, module, x)
    assert {p.grad.shape for p in module.parameters()} == {(64, 16), (16, 64)}


def test_blocks_alike_are_traced_once_and_hold_none_of_their_tensors(monkeypatch):
    traced, usual = [], compiled._graphs
    monkeypatch.setattr(compiled, "_graphs", lambda *a: traced.append(a) or usual(*a))
    taped = recorder()
    with taped.recording(), followed(taped, as_graphs=True):
        for rows in (8, 8, 4):
            module, x = Mlp(), torch.randn(rows, 16)
            torch.compile(module.forward)(x)
        del module, x
        alive = [block for block in taped.tape.blocks if block.died is None]
    assert len(traced) == 2
    assert not alive


def test_a_function_that_cannot_be_traced_runs_as_it_is_and_is_named():
    taped, x = recorder(), torch.ones(4)
    with taped.recording(), followed(taped, as_graphs=True):
        found = torch.compile(lambda a: a * 2 if a.sum().item() > 0 else a)(x)
    assert found.tolist() == [2.0] * 4
    assert len(taped.tape.uncompiled) == 1


@pytest.mark.skipif(
    not torch.__version__.startswith(f"{CALIBRATED_TORCH}."),
    reason="what a compiled block keeps is planned by the rules of torch 2.13, as the plan says",
)
def test_a_checkpointed_function_keeps_no_more_than_its_input():
    module, x = Mlp(), torch.randn(8, 16, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)

    taped = recorder()
    with taped.recording(), followed(taped, as_graphs=True):
        assert kept_bytes(torch.compile(run), module, x) == 0
    assert not taped.tape.uncompiled
    assert {b.operation for b in taped.tape.blocks if b.phase == "recompute"} >= {"mm"}


def test_a_plan_follows_compiled_blocks_where_it_is_asked_to():
    asked = AskedStep(
        load_settings({}, ["compile=true"]),
        1,
        2,
        card_named("h100-80"),
        TrustedScript(Path("x.py"), b""),
    )
    assert resolved(asked)[0].compile is False
    assert "compiled" in " ".join(resolved(asked)[1])
    followed_ones = resolved(replace(asked, compiled=True))
    assert followed_ones[0].compile is True
    assert "compiled" not in " ".join(followed_ones[1])
