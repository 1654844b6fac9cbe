"""Out of memory on any rank, anywhere in a step: all ranks halve and repeat, and nobody hangs."""

from __future__ import annotations

import pytest
from launch import RANKS, ranks_found, run_ranks

from fsdpkit.training.out_of_memory import smaller_size

CASES = [
    *("forward flat", "forward hybrid", "backward flat", "backward hybrid", "gather flat"),
    *("all ranks", "two halvings"),
    *("second part forward", "second part backward", "second part gather"),
    *("second part kept", "second part bfloat16"),
]

found = ranks_found(4, "out_of_memory")


@pytest.mark.parametrize("case", CASES)
def test_the_step_is_the_one_that_smaller_parts_would_have_made(found, case):
    result = found[case]
    assert result["raised"] >= 1, "memory did run out"
    assert result["loss"] < 1e-6, result
    assert result["weights"] < 1e-6, result


@pytest.mark.torch
def test_when_not_even_one_row_fits_the_run_ends_with_what_else_to_try(tmp_path):
    words = ["out_of_memory", str(tmp_path / "found.json"), "nothing"]
    done = run_ranks(4, RANKS / "found.py", *words)
    assert done.returncode != 0
    assert "Out of memory on rank 1 with one sample at a time" in done.stdout
    assert "activation_checkpointing" in done.stdout


def test_large_parts_shrink_by_steps_of_eight_and_small_ones_by_half():
    sizes = [128]
    while sizes[-1] > 1:
        sizes.append(smaller_size(sizes[-1]))
    assert sizes == [128, 96, 72, 48, 32, 24, 16, 8, 4, 2, 1]
    for size in range(2, 2000):
        assert 1 <= smaller_size(size) < size
        assert size <= 8 or smaller_size(size) % 8 == 0
