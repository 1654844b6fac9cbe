"""Ranks on NVIDIA GPUs get an allocator whose segments grow, unless the person has chosen one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpkit.launching import agent, allocator
from fsdpkit.launching.allocator import SETTING, set_allocator


@pytest.fixture
def gpus(tmp_path: Path) -> Path:
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "nvidia0").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("2.0.1", None),
        ("2.8.0+cu128", "PYTORCH_CUDA_ALLOC_CONF"),
        ("2.9.0", "PYTORCH_ALLOC_CONF"),
        ("2.13.0+cpu", "PYTORCH_ALLOC_CONF"),
        ("3.0", "PYTORCH_ALLOC_CONF"),
        ("unknown", None),
        (None, None),
    ],
)
def test_the_variable_has_the_name_that_this_torch_reads(monkeypatch, gpus, version, name):
    monkeypatch.setattr(allocator, "installed_torch", lambda: version)
    environ: dict[str, str] = {}
    set_allocator(environ, gpus)
    assert environ == ({name: SETTING} if name else {})


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
