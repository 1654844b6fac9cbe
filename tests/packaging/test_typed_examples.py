"""mypy is given the files of `jobs/` and `examples/` by name: all, and each name means one file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.packaging.installation import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MYPY: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]
FOLDERS = [ROOT, *(ROOT / folder for folder in MYPY["mypy_path"])]


def files_of(module: str) -> list[Path]:
    """In the order in which mypy looks for them."""
    file = Path(*module.split(".")).with_suffix(".py")
    return [path for folder in FOLDERS if (path := folder / file).is_file()]


def test_every_file_of_the_jobs_and_examples_is_checked() -> None:
    checked = [files_of(module)[0] for module in MYPY["modules"]]
    there = [path for top in ("jobs", "examples") for path in (ROOT / top).rglob("*.py")]
    assert sorted(checked) == sorted(there)
