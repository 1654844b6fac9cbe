"""Joining and leaving: what the launcher's cases A27 and A51 promise."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest
from launch import EXAMPLE, RANKS, environment, run_ranks

from tests.programs import ran


@pytest.mark.torch
def test_a27_runs_of_four_ranks_leave_together_with_status_0(tmp_path):
    for repetition in range(4):
        run_ranks(4, RANKS / "teardown.py", str(tmp_path / f"mark-{repetition}"), status=0)


@pytest.mark.torch
def test_a51_slurm_variables_do_not_make_a_rank():
    slurm = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2", "SLURM_NODEID": "0"}
    done = ran(
        [sys.executable, str(EXAMPLE / "fsdp_t5.py")],
        env=environment(**slurm), timeout=120, status=2)  # fmt: skip
    assert "RANK" in done.stderr
    assert "torchrun --standalone --nproc-per-node 2" in done.stderr


class Joined(Exception):
    """The process group would be made now."""


def asked_of_torch(
    monkeypatch: pytest.MonkeyPatch, gpus: int, built_for: Sequence[str] = ("sm_80",)
) -> list[tuple[str, str]]:
    """What local rank 1 of 2 asks for where so many GPUs are seen, up to joining the others."""
    import torch
    import torch.distributed as dist

    from fsdpkit.training.distributed import TORCHRUN_VARIABLES, process_group

    asked = []

    def join(backend: str, **_: object) -> None:
        asked.append(("join", backend))
        raise Joined

    for name, value in zip(TORCHRUN_VARIABLES, ("1", "1", "2", "2", "host", "1"), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A100")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built_for)
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: asked.append(("device", str(gpu))))
    monkeypatch.setattr(dist, "init_process_group", join)
    with pytest.raises(Joined), process_group():
        pass
    return asked


def test_on_gpus_the_device_comes_first_then_nccl_with_gloo_beside_it(monkeypatch):
    assert asked_of_torch(monkeypatch, gpus=2) == [
        ("device", "cuda:1"),
        ("join", "cpu:gloo,cuda:nccl"),
    ]


def test_without_a_gpu_gloo_joins_the_ranks(monkeypatch):
    assert asked_of_torch(monkeypatch, gpus=0) == [("join", "gloo")]
