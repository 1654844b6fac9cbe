"""Which torch is refused, by its own note of its version, before anything is queued."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from fsdpkit.errors import NodeError
from fsdpkit.launching import preflight
from fsdpkit.launching.torch_release import NEWEST, OLDEST, installed_torch, too_old, untested
from tests.programs import Fsdpkit


@pytest.mark.torch
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


@pytest.mark.parametrize("text", ["2.13.0", "2.13.1+cpu", "2.15.0a0+git1234", "3.0", "unknown"])
def test_others_are_not(text: str) -> None:
    assert too_old(text) is None


def test_what_came_after_the_tests_is_named() -> None:
    major, minor = NEWEST
    assert f"{major}.{minor + 1}" in (untested(f"{major}.{minor + 1}.0") or "")
    assert untested(f"{major}.{minor}.3+cu130") is None


def test_what_is_claimed_is_what_the_package_asks_for() -> None:
    (asked,) = (
        line
        for line in (Path(__file__).parents[2] / "pyproject.toml").read_text().splitlines()
        if line.startswith('torch = ["torch>=')
    )
    oldest, after = (".".join(map(str, r)) for r in (OLDEST, (NEWEST[0], NEWEST[1] + 1)))
    assert f'"torch>={oldest},<{after}"' in asked


def old_torch(directory: Path) -> Path:
    package = directory / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '2.10.0+cu130'\n")
    (package / "version.py").write_text("__all__ = ['x']\n__version__ = '2.10.0+cu130'\n")
    return directory


def test_a_submission_with_an_old_torch_is_refused(fsdpkit: Fsdpkit, tmp_path: Path) -> None:
    """Selective checkpointing trains wrongly on 2.10, and says nothing."""
    words = ("submit", "--nodes", "2", "--gpus", "4", "--cluster", "generic", "--dry-run")
    old = {"PYTHONPATH": str(old_torch(tmp_path))}
    done = fsdpkit(*words, env=old, status=65)
    assert "2.10.0" in done.stderr
    fsdpkit(*words, "--set", "environment.venv=/opt/env", env=old, status=0)


def test_a_node_with_an_old_torch_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    old = ModuleType("torch")
    old.__version__ = "2.10.0+cu130"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", old)
    with pytest.raises(NodeError, match=r"2\.10\.0"):
        preflight.check_software({})


def without_torch(directory: Path) -> Path:
    """What hides torch from every Python that has it on its path, and from `find_spec`."""
    (directory / "sitecustomize.py").write_text(
        "import sys\n"
        "from importlib.machinery import PathFinder\n\n"
        "found = PathFinder.find_spec\n\n\n"
        "def find_spec(name, path=None, target=None):\n"
        '    return None if name == "torch" else found(name, path, target)\n\n\n'
        "PathFinder.find_spec = find_spec\n"
    )
    return directory


def test_who_only_submits_needs_no_torch(fsdpkit: Fsdpkit, tmp_path: Path) -> None:
    words = ("submit", "--nodes", "2", "--gpus", "4", "--cluster", "generic", "--dry-run")
    light = {"PYTHONPATH": str(without_torch(tmp_path))}
    here = fsdpkit(*words, env=light, status=65)
    assert "fsdpkit[torch]" in here.stderr
    fsdpkit(*words, "--set", "environment.venv=/opt/env", env=light, status=0)


@pytest.mark.parametrize("command", [("plan", "--gpu", "h100-80"), ("generate", ".", "a text")])
def test_what_needs_torch_says_so(
    command: tuple[str, ...], fsdpkit: Fsdpkit, tmp_path: Path
) -> None:
    done = fsdpkit(*command, env={"PYTHONPATH": str(without_torch(tmp_path))})
    assert (done.returncode, "Traceback" in done.stderr) == (69, False)
    assert "fsdpkit[torch]" in done.stderr
