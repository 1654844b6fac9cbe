"""What a slow, stuck or failed run leaves behind, and what is set before ranks meet."""

from __future__ import annotations

import contextlib
import os

import pytest
import torch
from loop_parts import loop_parts

from fsdpkit.config.training.settings import DebugSettings
from fsdpkit.runs.layout import TaskPaths
from fsdpkit.training.debugging import Debugging, debug_folder, prepare
from fsdpkit.training.distributed import Ranks


@pytest.mark.torch
def test_collectives_wait_long_until_the_first_step_is_done_and_then_the_usual_time_in_all_groups():
    found = loop_parts()
    assert found["groups"] == 2, "the world, and the mesh's own group of shards"
    assert 120 in found["limits"][0]
    assert found["limits"][1] == [33]


@pytest.mark.torch
def test_an_exception_dumps_the_flight_recorder_of_every_rank_that_raised():
    found = loop_parts()
    assert {"nccl_trace_rank_0", "nccl_trace_rank_1"} <= set(found["debug"])
    assert found["recorded"] == 50, "as many collectives as the setting says"


@pytest.fixture
def clean(monkeypatch):
    """Environment and switches as before, afterwards."""
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.setenv(name, "")  # so that monkeypatch restores whatever prepare() sets
        monkeypatch.delenv(name)
    monkeypatch.setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "")
    monkeypatch.delenv("TORCH_NCCL_DUMP_ON_TIMEOUT")
    monkeypatch.delenv("FSDPKIT_ATTEMPT_DIR", raising=False)
    yield monkeypatch
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False


def test_deterministic_mode_refuses_an_operation_that_sums_in_any_order(clean, tmp_path):
    prepare(DebugSettings(), TaskPaths(tmp_path), deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_hang_will_be_dumped_into_the_attempts_folder_and_the_persons_variables_stay(
    clean, tmp_path
):
    clean.setenv("FSDPKIT_ATTEMPT_DIR", str(tmp_path / "attempt-3"))
    clean.setenv("TORCH_FR_BUFFER_SIZE", "7")
    paths = TaskPaths(tmp_path)
    clean.setattr(torch.cuda, "is_available", lambda: True)
    prepare(DebugSettings(flight_recorder=10), paths)
    assert debug_folder(paths) == tmp_path / "debug" / "attempt-3"
    assert os.environ["TORCH_FR_DUMP_TEMP_FILE"].startswith(str(debug_folder(paths)))
    assert debug_folder(paths).is_dir()
    assert os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert os.environ["TORCH_FR_BUFFER_SIZE"] == "7"


@pytest.mark.parametrize("failure", [None, RuntimeError("boom")])
def test_the_allocators_summary_is_printed_at_the_end_also_of_a_failure(
    clean, tmp_path, capsys, failure
):
    clean.setattr(torch.cuda, "memory_summary", lambda device: f"summary of {device}")
    settings = DebugSettings(memory_summary=True, flight_recorder=0)
    ranks = rank_on("cuda:0")
    with contextlib.suppress(RuntimeError), Debugging(settings, TaskPaths(tmp_path), ranks):
        if failure:
            raise failure
    assert capsys.readouterr().out == "summary of cuda:0\n"


def rank_on(device: str, rank: int = 0) -> Ranks:
    return Ranks(rank, rank, 2, 2, torch.device(device))
