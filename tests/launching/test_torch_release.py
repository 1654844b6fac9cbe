"""Which torch is refused, by its own note of its version, before anything is queued."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from fsdpkit.errors import NodeError
from fsdpkit.launching import preflight
from fsdpkit.launching.torch_release import installed_torch, too_old
from tests.conftest import Completed


def test_the_installed_version_is_found_without_an_import() -> None:
    found = installed_torch()
    assert found is not None
    assert found.partition("+")[0] == version("torch").partition("+")[0]


@pytest.mark.parametrize("text", ["2.12.1", "2.10.0+cu130", "1.13.1"])
def test_older_releases_are_refused_with_those_that_are_not(text: str) -> None:
    told = too_old(text)
    assert told is not None
    assert text in told
    assert "2.13" in told


def old_torch(directory: Path) -> Path:
    package = directory / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '2.10.0+cu130'\n")
    (package / "version.py").write_text("__all__ = ['x']\n__version__ = '2.10.0+cu130'\n")
    return directory


def test_a_submission_with_an_old_torch_is_refused(
    fsdpkit: Callable[..., Completed], tmp_path: Path
) -> None:
    """Selective checkpointing trains wrongly on 2.10, and says nothing."""
    words = ("submit", "--nodes", "2", "--gpus", "4", "--cluster", "generic", "--dry-run")
    old = {"PYTHONPATH": str(old_torch(tmp_path))}
    done = fsdpkit(*words, env=old)
    assert done.returncode == 65
    assert "2.10.0" in done.stderr
    elsewhere = fsdpkit(*words, "--set", "environment.venv=/opt/env", env=old)
    assert elsewhere.returncode == 0, elsewhere.stderr


def test_a_node_with_an_old_torch_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    old = ModuleType("torch")
    old.__version__ = "2.10.0+cu130"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", old)
    with pytest.raises(NodeError, match=r"2\.10\.0"):
        preflight.check_software({})
