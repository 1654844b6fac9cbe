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


def test_a_name_in_two_folders_is_a_program_s_which_nothing_imports() -> None:
    """mypy reads the first file of that name for all who import it."""
    doubtful = [module for module in MYPY["modules"] if len(files_of(module)) > 1]
    programs = {path for module in doubtful for path in files_of(module)}
    text = "\n".join(path.read_text("utf-8") for path in (ROOT / "examples").rglob("*.py"))
    assert doubtful == ["train"]
    assert all("__main__" in path.read_text("utf-8") for path in programs)
    assert "from train import" not in text
    assert "import train\n" not in text
