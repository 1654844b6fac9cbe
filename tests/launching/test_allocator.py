"""Ranks on NVIDIA GPUs get an allocator whose segments grow, unless the person has chosen one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.launching import agent
from fsdpkit.launching.allocator import SETTING, set_allocator


@pytest.fixture
def gpus(tmp_path: Path) -> Path:
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "nvidia0").touch()
    return tmp_path


def test_it_is_set_where_there_is_a_gpu_and_nobody_has_chosen(gpus):
    chosen = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    for given, found in (({}, {"PYTORCH_ALLOC_CONF": SETTING}), (chosen, chosen)):
        environ = dict(given)
        set_allocator(environ, gpus)
        assert environ == found
    environ = {"FSDPKIT_DEVICE": "amd"}
    set_allocator(environ, gpus)
    assert environ == {"FSDPKIT_DEVICE": "amd"}


def test_the_agent_sets_it_before_it_imports_torch(monkeypatch):
    order: list[str] = []
    for name in ("set_allocator", "take_secret"):
        monkeypatch.setattr(agent, name, lambda environ, name=name: order.append(name))
    monkeypatch.setattr(agent.python_path, "restore", lambda environ: None)
    monkeypatch.setattr(agent.warm, "start", lambda environ, loaded: order.append("torch"))
    monkeypatch.setattr(agent, "run_agent", lambda: order.append("ranks"))
    monkeypatch.setattr(agent, "leave", lambda status: None)
    agent.main()
    assert order.index("set_allocator") < order.index("torch") < order.index("ranks")
