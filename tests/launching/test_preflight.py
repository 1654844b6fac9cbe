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


def test_one_node_needs_no_head() -> None:
    assert preflight.check_head({}) is None


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


def test_a_port_that_nobody_may_have_is_the_profiles_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another port of the same range would be refused as well."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(preflight.socket.socket, "bind", refuse)
    with pytest.raises(NodeError, match=r"port 80: Permission denied; see rendezvous\.port_base"):
        preflight.check_port({"RDZV_PORT": "80", "SLURM_NODEID": "0"})


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


def test_cpu_ranks_need_no_gpus() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "", "FSDPKIT_RANKS_PER_NODE": "4", "FSDPKIT_DEVICE": "cpu"}
    assert preflight.check_gpus(environ) is None


def test_the_run_directory_must_be_writable_and_have_room(tmp_path: Path) -> None:
    environ = {"FSDPKIT_ATTEMPT_DIR": str(tmp_path), "FSDPKIT_MIN_FREE_GB": "0"}
    assert preflight.check_run_directory(environ) > 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NodeError, match="GB are wanted"):
        preflight.check_run_directory(environ | {"FSDPKIT_MIN_FREE_GB": "1e9"})


def test_a_directory_that_this_node_does_not_see_is_not_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(preflight.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(preflight.time, "sleep", lambda _: None)
    with pytest.raises(NodeError, match="all nodes share"):
        preflight.check_run_directory({"FSDPKIT_ATTEMPT_DIR": str(tmp_path / "elsewhere")})


def test_a_full_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(NodeError, match="quota is full"):
        preflight.check_run_directory({"FSDPKIT_ATTEMPT_DIR": str(tmp_path)})


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


@pytest.mark.parametrize(
    "does",
    [
        "raise ImportError('libcuda.so.1: cannot open shared object file: No such file')",
        "raise OSError('libc10.so: undefined symbol: x')",
    ],
)
def test_a_library_that_cannot_be_loaded_may_be(
    does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_that(does, tmp_path, monkeypatch)
    with pytest.raises(BrokenNodeError, match="torch cannot be imported by"):
        preflight.check_software({})


def test_a_file_in_the_place_of_pythons_own_is_named_and_not_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("")
    monkeypatch.delitem(sys.modules, "queue")
    torch_that("import queue; raise OSError('libc10.so')", tmp_path, monkeypatch)
    with pytest.raises(NodeError, match=r"queue\.py has the name of a module") as caught:
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


def test_what_is_left_of_a_removed_torch_is_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty directory of that name is a package to Python."""
    (tmp_path / "torch").mkdir()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(NodeError, match="torch cannot be imported by"):
        preflight.check_software({})


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


def test_a_job_that_starts_in_this_clock_s_future_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = str(int(time.time()) + 600)
    preflight.check_clock({"FSDPKIT_ATTEMPT_DIR": str(tmp_path), "SLURM_JOB_START_TIME": start})
    assert "the job starts in" in capsys.readouterr().out


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


@pytest.mark.parametrize("inside", [True, False])
def test_a_torch_without_its_files_is_the_nodes_fault_in_the_environment_alone(
    inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, a file system shows this node less than others; elsewhere it is some directory."""
    (tmp_path / "torch").mkdir()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    paths = {"purelib": str(tmp_path)} if inside else {}
    real = preflight.sysconfig.get_path
    monkeypatch.setattr(preflight.sysconfig, "get_path", lambda k: paths.get(k) or real(k))
    with pytest.raises(NodeError, match="torch cannot be imported by") as caught:
        preflight.check_software({})
    assert isinstance(caught.value, BrokenNodeError) is inside
