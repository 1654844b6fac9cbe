"""The examples in the docstrings of the public interface do what they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from fsdpkit.script import log
from tests.packaging.installation import ROOT

SUBMITS = "fsdpkit.scheduling.submission"


def modules() -> list[str]:
    """Those with an example, found without importing any of them."""
    paths = (ROOT / "fsdpkit").rglob("*.py")
    return sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in paths
        if ">>> " in path.read_text(encoding="utf-8")
    )


@pytest.fixture
def _a_user_s_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an example runs: outside any run, beside a script that would take long."""
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(log, "_loggers", {})
    ours = ("TASK_DIR", "RUNS", "VISIT", "HEARTBEAT_DIR")
    for name in ("RANK", *(f"FSDPKIT_{each}" for each in ours)):
        monkeypatch.setenv(name, "")  # so that what an example sets is gone after it
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "module",
    [pytest.param(m, marks=[pytest.mark.local] if m == SUBMITS else []) for m in modules()],
)
@pytest.mark.usefixtures("_a_user_s_directory")
def test_an_example_does_what_it_shows(module: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    for one in doctest.DocTestFinder().find(importlib.import_module(module)):
        runner.run(one, out=said.append)
    assert "".join(said) == ""
    assert runner.tries > 0


def test_no_example_is_left_out_but_for_those_of_minutes() -> None:
    paths = (ROOT / "fsdpkit").rglob("*.py")
    left_out = [path.name for path in paths if "doctest: +SKIP" in path.read_text("utf-8")]
    assert sorted(left_out) == ["holding.py", "running.py"]
