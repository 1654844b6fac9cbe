"""Templates and plans of a test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpkit.config.template import Template, load_template

MANIFEST = """
schema = "fsdpkit.template/1"
name = "mine"
version = "0.0.1"
description = "A template of a test."
"""


@pytest.fixture
def write_template(tmp_path: Path) -> Callable[..., Template]:
    """Writes a template folder `mine` and loads it; further files by name."""

    def write(text: str | bytes, **files: str) -> Template:
        directory = tmp_path / "mine"
        directory.mkdir(exist_ok=True)
        (directory / "template.toml").write_text(MANIFEST)
        raw = text if isinstance(text, bytes) else text.encode()
        (directory / "job.sbatch.j2").write_bytes(raw)
        for name, content in files.items():
            (directory / f"{name}.j2").write_text(content)
        return load_template(str(directory))

    return write
