"""What a GPU can do, by its compute capability alone: no GPU is needed to know."""

from __future__ import annotations

import pytest

from fsdpkit.config.gpu import (
    Capability,
    build_problem,
    compute_type,
    runs_on,
    type_problem,
)

P100, V100, T4, A100, H100 = (6, 0), (7, 0), (7, 5), (8, 0), (9, 0)


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        (P100, "float32"),
        (V100, "float32"),
        (T4, "float32"),
        (A100, "bfloat16"),
        (H100, "bfloat16"),
        ((12, 1), "bfloat16"),
        (None, "bfloat16"),  # AMD's, or not known
    ],
)
def test_auto_is_bfloat16_only_where_the_gpu_has_it(
    capability: Capability | None, expected: str
) -> None:
    assert compute_type("auto", on_gpu=True, capability=capability) == expected


def test_what_is_asked_for_is_taken_and_a_cpu_computes_in_float32() -> None:
    assert compute_type("auto", on_gpu=False) == "float32"
    for param in ("float32", "bfloat16", "float16"):
        assert compute_type(param, on_gpu=True, capability=V100) == param


@pytest.mark.parametrize(
    ("param", "capability", "refused"),
    [
        ("bfloat16", P100, True),
        ("bfloat16", V100, True),
        ("bfloat16", A100, False),
        ("bfloat16", None, False),
        ("float16", V100, False),
        ("float32", V100, False),
        ("auto", V100, False),
    ],
)
def test_bfloat16_is_refused_of_a_gpu_that_has_none(
    param: str, capability: Capability | None, refused: bool
) -> None:
    assert (type_problem(param, capability, "V100") is not None) == refused


WHEELS = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        (V100, WHEELS, False),
        (T4, WHEELS, True),
        ((8, 9), WHEELS, True),  # by the code for 8.6
        ((8, 7), ["sm_80"], True),
        (A100, ["sm_86"], False),  # a later minor
        (H100, ["sm_80"], False),  # machine code does not outlive its major
        (H100, ["sm_80", "compute_80"], True),  # the intermediate form does
        (V100, ["compute_80"], False),
        ((12, 1), WHEELS, True),
        (H100, ["sm_90a"], True),
        ((10, 0), ["sm_90a", "compute_90a"], False),
        ((10, 3), ["sm_100f"], True),
        ((12, 0), ["sm_100f", "compute_100f"], False),
        (V100, [], True),
        (V100, ["gfx90a"], False),
    ],
)
def test_code_runs_on_what_it_was_built_for(
    capability: Capability, architectures: list[str], runs: bool
) -> None:
    assert runs_on(capability, architectures) == runs
    assert (build_problem(capability, None, "2.15", architectures) is None) == runs


def test_a_build_that_lacks_the_gpu_is_told_with_what_it_has_and_what_to_look_for() -> None:
    said = build_problem(V100, "Tesla V100-PCIE-16GB", "2.15.0+cu130", WHEELS)
    assert said is not None
    assert "Tesla V100-PCIE-16GB (compute capability 7.0)" in said
    assert "torch 2.15.0+cu130" in said
    assert "sm_75, sm_80" in said
    assert "has sm_70" in said
