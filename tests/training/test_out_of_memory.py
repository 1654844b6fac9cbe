"""Out of memory on any rank, anywhere in a step: all ranks halve and repeat, and nobody hangs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from launch import RANKS, findings, run_ranks
from torch import nn

from fsdpkit.errors import ConfigError
from fsdpkit.training.distributed import Ranks
from fsdpkit.training.out_of_memory import MicroBatches, messages_of, smaller_size

CASES = [
    *("forward flat", "forward hybrid", "backward flat", "backward hybrid", "gather flat"),
    *("all ranks", "two halvings"),
    *("second part forward", "second part backward", "second part gather"),
    *("second part kept", "second part bfloat16"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    return findings(4, "out_of_memory.py", tmp_path_factory.mktemp("memory") / "found.json")


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES)
def test_the_step_is_the_one_that_smaller_parts_would_have_made(found, case):
    result = found[case]
    assert result["raised"] >= 1, "memory did run out"
    assert result["loss"] < 1e-6, result
    assert result["weights"] < 1e-6, result


@pytest.mark.torch
def test_parts_are_halved_until_they_fit_and_no_further(found):
    assert found["forward flat"]["size"] == 3
    assert found["two halvings"]["size"] == 1
    assert set(found) == set(CASES)


@pytest.mark.torch
def test_when_not_even_one_row_fits_the_run_ends_with_what_else_to_try(tmp_path):
    done = run_ranks(2 * 2, RANKS / "out_of_memory.py", str(tmp_path / "found.json"), "nothing")
    assert done.returncode != 0
    assert "Out of memory on rank 1 with one sample at a time" in done.stdout
    assert "activation_checkpointing" in done.stdout


def test_auto_without_fsdp2_is_refused():
    ranks = Ranks(0, 0, 1, 1, torch.device("cpu"))
    with pytest.raises(ConfigError, match="fsdp2"):
        MicroBatches(nn.Linear(1, 1), ranks, "auto", 4)


def test_messages_go_by_the_names_that_the_installed_torch_has():
    new = {"all_gather_single": 0, "reduce_scatter_single": 0, "all_reduce": 0}
    old = {"all_gather_into_tensor": 0, "reduce_scatter_tensor": 0, "all_reduce": 0}
    assert messages_of(SimpleNamespace(**old)) == list(old)
    assert messages_of(SimpleNamespace(**(old | new))) == list(new), "an old name calls the new"


def test_large_parts_shrink_by_steps_of_eight_and_small_ones_by_half():
    sizes = [128]
    while sizes[-1] > 1:
        sizes.append(smaller_size(sizes[-1]))
    assert sizes == [128, 96, 72, 48, 32, 24, 16, 8, 4, 2, 1]
    for size in range(2, 2000):
        assert 1 <= smaller_size(size) < size
        assert size <= 8 or smaller_size(size) % 8 == 0
