"""The checks on a node: each failure says what is wrong and what to do."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fsdpkit.errors import BrokenNodeError, NodeError, PortTakenError
from fsdpkit.launching import preflight
from fsdpkit.runs.layout import AttemptPaths


def test_a_loopback_head_is_refused_unless_the_cluster_is_this_machine() -> None:
    """A01: every node would be its own head."""
    with pytest.raises(NodeError, match=r"'localhost' resolves to .*127\.0\.0\.1"):
        preflight.check_head({"RDZV_HOST": "localhost"})
    with pytest.raises(NodeError, match=r"169\.254\.3\.4"):
        preflight.check_head({"RDZV_HOST": "169.254.3.4"})
    assert preflight.check_head({"RDZV_HOST": "127.0.0.1", "FSDPKIT_ALLOW_LOOPBACK": "1"})
    assert preflight.check_head({"RDZV_HOST": "10.1.2.3"}) == "10.1.2.3"


def test_a_head_that_does_not_resolve_is_named() -> None:
    with pytest.raises(NodeError, match=r"'no-such-node\.invalid' does not resolve"):
        preflight.check_head({"RDZV_HOST": "no-such-node.invalid"})


def test_a_taken_port_is_refused_on_the_head_only() -> None:
    """A17, A19: the bind that torchrun would fail at fails here, with the remedy."""
    with socket.socket() as busy:
        busy.bind(("", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        with pytest.raises(PortTakenError, match=f"port {port} is taken"):
            preflight.check_port({"RDZV_PORT": port, "SLURM_NODEID": "0"})
        assert preflight.check_port({"RDZV_PORT": port, "SLURM_NODEID": "1"}) is None
    assert preflight.check_port({"RDZV_PORT": port, "SLURM_NODEID": "0"}) == int(port)


@pytest.mark.parametrize(
    ("visible", "found"), [("0,1,2,3", 4), ("0,1", 2), ("", 0), ("NoDevFiles", 0)]
)
def test_gpus_are_counted_as_slurm_bound_them(visible: str, found: int) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": visible, "FSDPKIT_RANKS_PER_NODE": "4"}
    if found >= 4:
        assert preflight.check_gpus(environ) == found
    else:
        with pytest.raises(NodeError, match=rf"4 GPUs were asked .* shows {found} here"):
            preflight.check_gpus(environ)


def test_the_run_directory_must_be_writable_and_have_room(tmp_path: Path) -> None:
    environ = {"FSDPKIT_ATTEMPT_DIR": str(tmp_path), "FSDPKIT_MIN_FREE_GB": "0"}
    assert preflight.check_run_directory(environ) > 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NodeError, match="GB are wanted"):
        preflight.check_run_directory(environ | {"FSDPKIT_MIN_FREE_GB": "1e9"})


def test_different_versions_are_named_by_whoever_comes_second(tmp_path: Path) -> None:
    attempt = AttemptPaths(tmp_path)
    preflight.compare_nodes(attempt, 0, "n1", {"torch": "2.13.0", "python": "3.11.7"})
    preflight.compare_nodes(attempt, 1, "n2", {"torch": "2.13.0", "python": "3.11.7"})
    with pytest.raises(NodeError, match=r"torch is 2\.12\.0 on n3 but 2\.13\.0 on n1"):
        preflight.compare_nodes(attempt, 2, "n3", {"torch": "2.12.0", "python": "3.11.7"})
    assert [p.name for p in tmp_path.iterdir()] == ["software.json"]
    assert json.loads(attempt.software.read_text())["node"] == "n1"


def torch_that(does: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch that is imported next."""
    (path / "torch.py").write_text(does)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "path", [str(path), *sys.path])


@pytest.mark.parametrize(
    "does",
    [
        "import no_such_module",
        "from queue import no_such_name",
        "raise ImportError('numpy.core.multiarray failed to import')",
    ],
)
def test_a_module_that_is_missing_is_not_the_nodes_fault(
    does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_that(does, tmp_path, monkeypatch)
    with pytest.raises(NodeError, match="torch cannot be imported by") as caught:
        preflight.check_software({})
    assert not isinstance(caught.value, BrokenNodeError)


@pytest.mark.torch
def test_a_torch_that_cannot_use_the_gpus_is_refused_where_they_are_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commonest way to train on CPU cores without knowing: the wrong build of torch."""
    import torch

    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    environ = {"CUDA_VISIBLE_DEVICES": "0,1", "FSDPKIT_RANKS_PER_NODE": "2"}
    with pytest.raises(NodeError, match=r"built without GPU support: install .* nvidia"):
        preflight.check_gpus(environ | {"FSDPKIT_DEVICE": "nvidia"})
    assert preflight.check_gpus(environ | {"FSDPKIT_DEVICE": "gpu"}) == 2
    assert "ranks train on CPU cores" in capsys.readouterr().out
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert preflight.check_gpus(environ | {"FSDPKIT_DEVICE": "nvidia"}) == 2


def memory_of(monkeypatch: pytest.MonkeyPatch, available_mb: int) -> None:
    answer = SimpleNamespace(available=available_mb * 2**20)
    monkeypatch.setattr(preflight.psutil, "virtual_memory", lambda: answer)


def test_a_node_without_memory_for_its_ranks_is_refused_and_less_than_granted_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"FSDPKIT_RANKS_PER_NODE": "4", "SLURMD_NODENAME": "a0101"}
    memory_of(monkeypatch, 1300)
    with pytest.raises(NodeError, match=r"only 1300 MB .* 4 ranks need 1400 .*exclude=a0101"):
        preflight.check_memory(environ)
    memory_of(monkeypatch, 64 * 1024)
    assert preflight.check_memory(environ) == 64.0
    assert preflight.check_memory(environ | {"SLURM_MEM_PER_NODE": "0"}) == 64.0
    assert capsys.readouterr().out == ""
    preflight.check_memory(environ | {"SLURM_MEM_PER_NODE": "480000"})
    assert "Slurm granted 480000 MB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ahead_s", "told"), [(0, r"^$"), (60, r"\+\d+ s off"), (-60, r"-\d+ s off")]
)
def test_a_clock_is_compared_with_the_file_server_s_and_never_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ahead_s: int,
    told: str,
) -> None:
    real_s = time.time
    monkeypatch.setattr(preflight.time, "time", lambda: real_s() + ahead_s)
    offset_s = preflight.check_clock({"FSDPKIT_ATTEMPT_DIR": str(tmp_path)})
    assert abs(offset_s - ahead_s) < 30  # less what the writing took
    assert re.search(told, capsys.readouterr().out)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.torch
def test_a_preflight_that_is_switched_off_looks_at_the_run_directory_only(tmp_path: Path) -> None:
    """What it reports has the same keys, and versions to compare, without an import of torch."""
    environ = {
        "FSDPKIT_ATTEMPT_DIR": str(tmp_path),
        "FSDPKIT_RANKS_PER_NODE": "1000000",
        "FSDPKIT_DEVICE": "cpu",
        "FSDPKIT_PREFLIGHT": "0",
    }
    findings = preflight.run_checks(environ)
    assert findings["run_directory_free_gb"] > 0
    assert findings["gpus"] is None
    assert findings["memory_available_gb"] is None
    on = preflight.run_checks(environ | {"FSDPKIT_PREFLIGHT": "1", "FSDPKIT_RANKS_PER_NODE": "1"})
    assert findings["software"] == on["software"]
    assert findings.keys() == on.keys()
    assert on["preflight_s"] >= 0
    with pytest.raises(NodeError, match="GB are wanted"):
        preflight.run_checks(environ | {"FSDPKIT_MIN_FREE_GB": "1e9"})
