"""What an agent's torch lacks, and that nothing is left behind for who needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch

IN_AN_AGENT = """
import sys
from fsdpkit.launching.without_shapes import without_shapes
with without_shapes():
    import fsdpkit.launching.ranks
import torch
absent = {"torch._meta_registrations", "torch._decomp"}
print(absent.isdisjoint(sys.modules), hasattr(torch, "_meta_registrations"))
"""
LATER = """
import torch._meta_registrations
from torch._decomp import meta_table
print(len(meta_table) > 100)
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    print(*torch.nn.functional.embedding(torch.zeros(3, dtype=int), torch.ones(5, 4)).shape)
"""
WANTED_WITHIN = """
import sys
from fsdpkit.launching.without_shapes import without_shapes
with without_shapes():
    import torch
    from torch._meta_registrations import meta_index_Tensor
import torch._meta_registrations as real
print(real.meta_index_Tensor is meta_index_Tensor, torch._meta_registrations is real)
"""
LOADED_BEFORE = """
import sys, torch
from fsdpkit.launching.without_shapes import without_shapes
before = sys.modules["torch._meta_registrations"]
with without_shapes():
    within = sys.modules["torch._meta_registrations"]
print(before is within is sys.modules["torch._meta_registrations"] is torch._meta_registrations)
"""


def printed(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout.split()


def test_an_agent_registers_no_shapes_and_leaves_no_trace_of_that() -> None:
    assert printed(IN_AN_AGENT + LATER) == ["True", "False", "True", "3", "4"]


def test_a_torch_that_is_there_already_stays_as_it_is() -> None:
    assert printed(LOADED_BEFORE) == ["True"]


def test_a_torch_that_takes_something_of_it_while_it_is_imported_gets_it() -> None:
    assert printed(WANTED_WITHIN) == ["True", "True"]
