"""Kernels of one's own without a fake version, in Triton, C and C++: named by their line, with a
bound. The extensions are real ones, made by the compiler that is here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from fsdpkit.cli.plan import command

pytestmark = pytest.mark.torch

RANKS = Path(__file__).parent / "ranks"
KERNELS = RANKS / "own_kernels.py"


@cache
def plan(function: str) -> dict[str, Any]:
    words = ["--gpu", "h100-80", "--nodes", "1", "--gpus", "2", "--json"]
    words += ["--model", f"{KERNELS}:{function}"]
    result = CliRunner().invoke(command, words, standalone_mode=False, catch_exceptions=False)
    return json.loads(result.stdout)["plans"][0]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    """Extensions in C and, by torch's stable interface, in C++: a second or two."""
    if not (shutil.which("gcc") and shutil.which("g++")):
        pytest.skip("gcc and g++ are not here")
    folder, own = tmp_path_factory.mktemp("kernels"), Path(torch.__file__).parent
    shared = ["-shared", "-fPIC"]
    python = sysconfig.get_paths()["include"]
    subprocess.run(
        ["gcc", *shared, f"-I{python}", RANKS / "twice.c", "-o", folder / "twice.so"], check=True
    )
    torch_ = [f"-I{own}/include", f"-I{own}/include/torch/csrc/api/include", f"-L{own}/lib"]
    subprocess.run(
        ["g++", "-std=c++20", *shared, *torch_, RANKS / "twice.cpp",
         "-o", folder / "operator.so", "-ltorch_cpu", "-lc10"],
        check=True,
    )  # fmt: skip
    return folder


@pytest.fixture(autouse=True)
def where(request, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("KERNELS", str(tmp_path))


def line_of(text: str) -> str:
    (number,) = [k for k, line in enumerate(KERNELS.read_text().splitlines(), 1) if text in line]
    return f"own_kernels.py:{number}"


def lower_bound(answer: dict[str, Any]) -> str:
    """Why it is one. Weights, gradients and the optimizer's state are there whatever forward
    does."""
    assert (answer["fit"], answer["lower_bound"]) == ("not known", True)
    memory, plain = answer["memory"], plan("plain")["memory"]
    assert memory["weights_bytes"] == plain["weights_bytes"]
    assert memory["optimizer_bytes"] == pytest.approx(2 * plain["weights_bytes"], rel=0.01)
    assert memory["allocated_bytes"] >= 4 * plain["weights_bytes"]
    (note,) = [note for note in answer["notes"] if "lower bound" in note]
    return note


def test_an_extension_in_c_that_asks_for_an_address(compiled, monkeypatch):
    monkeypatch.setenv("KERNELS", str(compiled))
    note = lower_bound(plan("c"))
    assert "asks for the address of a tensor" in note
    assert line_of("twice.twice(y)") in note


def test_an_operator_in_cpp_that_reads_at_no_address_is_followed_to_the_end(compiled, monkeypatch):
    """Its process ends by a signal; then its result is taken to be like its first tensor."""
    monkeypatch.setenv("KERNELS", str(compiled))
    answer = plan("cpp")
    note = lower_bound(answer)
    assert note.count("fsdpkit_tests_cpp::twice") == 1
    assert line_of("torch.ops.fsdpkit_tests_cpp.twice(x)") in note
    kept = answer["memory"]["kept_for_backward"]
    assert kept == plan("plain")["memory"]["kept_for_backward"]


def test_what_crashes_and_is_no_operator_is_named_and_the_states_are_the_bound():
    note = lower_bound(plan("crashing"))
    assert "ended the step" in note
    assert line_of("ctypes.memset(8, 0, 8)") in note


def test_a_kernel_in_triton_takes_no_memory_of_its_own_and_its_line_is_named():
    pytest.importorskip("triton")
    answer, plain = plan("triton"), plan("plain")
    assert (answer["fit"], answer["lower_bound"]) == ("fits", False)
    assert answer["memory"]["allocated_bytes"] == plain["memory"]["allocated_bytes"]
    (note,) = (note for note in answer["notes"] if "double" in note)
    assert f"double in {KERNELS.parent}/{line_of('double[(1,)]')}" in note


def test_a_kernel_in_triton_that_is_launched_all_the_same_is_named_by_the_line_that_did():
    """What Triton itself raises without a GPU comes out of Triton's own files."""
    pytest.importorskip("triton")
    note = lower_bound(plan("triton_without_brackets"))
    assert line_of("double.run(") in note
