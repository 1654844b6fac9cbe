"""The type that training computes in, on GPUs of a known compute capability; none is needed."""

from __future__ import annotations

import pytest
import torch

from fsdpkit.config.training import PrecisionSettings
from fsdpkit.errors import FsdpkitError
from fsdpkit.training import device_code
from fsdpkit.training.precision import compute_dtype

CUDA = torch.device("cuda", 0)
OSC = ["--account", "PAS2136", "--nodes", "1", "--gpus", "2", "--dry-run"]
BFLOAT16 = ["--set", "training.precision.param=bfloat16"]


@pytest.fixture
def v100(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")


def test_auto_is_bfloat16_from_8_0_on_and_on_amds_gpus(v100, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.2")  # whose numbers mean something else
    assert compute_dtype(PrecisionSettings(), CUDA) is torch.bfloat16
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert compute_dtype(PrecisionSettings(), CUDA) is torch.bfloat16
    assert compute_dtype(PrecisionSettings(), torch.device("cpu")) is torch.float32


def test_a_rank_says_that_its_torch_was_not_built_for_its_gpu(v100, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "compute_120"])
    with pytest.raises(FsdpkitError, match=r"install a build that has sm_70"):
        device_code.require_code_for(CUDA)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_70", "sm_80"])
    device_code.require_code_for(CUDA)
    device_code.require_code_for(torch.device("cpu"))


def test_submit_refuses_bfloat16_on_pitzer_with_what_to_do_instead(fsdpkit):
    done = fsdpkit("submit", "--cluster", "osc-pitzer", *OSC, *BFLOAT16, status=65)
    assert "NVIDIA V100 16 GB (compute capability 7.0) has no bfloat16" in done.stderr
    assert '"float32" or "float16"' in done.stderr


@pytest.mark.parametrize("cluster", ["osc-ascend", "osc-cardinal", "generic"])
def test_elsewhere_bfloat16_is_taken_without_a_word(fsdpkit, cluster):
    for words in ([], BFLOAT16):
        done = fsdpkit("submit", "--cluster", cluster, *OSC, *words, status=0)
        assert "bfloat16" not in done.stderr
