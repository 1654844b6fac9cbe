"""A person's and a centre's own files, laid over the packaged ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import Write


def _writer(top: Path) -> Write:
    def write(name: str, text: str) -> Path:
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def user_file(isolated_user: Path) -> Write:
    """Writes a file into the user's configuration directory."""
    return _writer(Path(os.environ["FSDPKIT_CONFIG_DIR"]))


@pytest.fixture
def centre_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file into a centre's directory, which is on FSDPKIT_SITE_PATH."""
    top = tmp_path / "centre"
    top.mkdir()
    monkeypatch.setenv("FSDPKIT_SITE_PATH", str(top))
    return _writer(top)


@pytest.fixture
def job_file(tmp_path: Path) -> Callable[[str], str]:
    """Writes `mine.toml` beside `train.py`: a small job with `text` added; returns its path."""

    def write(text: str = "") -> str:
        (tmp_path / "train.py").write_text("")
        head = 'schema = "fsdpkit.job/1"\nname = "mine"\nentry = "train.py"\n'
        resources = '[resources]\nnodes = 2\ngpus = 4\ntime = "01:00:00"\n'
        path = tmp_path / "mine.toml"
        path.write_text(text if "schema" in text else head + resources + text, encoding="utf-8")
        return str(path)

    return write
