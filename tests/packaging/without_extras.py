"""A pytest plugin (`-p tests.packaging.without_extras`): what needs an absent extra is left out.

For the unit tests on each Python (`make test-pythons`): whoever only submits needs neither torch
nor another extra, and torch for each of five Pythons takes gigabytes. A file of tests that imports
an extra which is not installed is skipped, as is a test that calls what imports it, or asks whether
it is there. Whatever no extra brings has to be imported, or fails. Submitting asks whether jobs
will find torch, without importing it: `python -m tests.packaging.without_extras` puts a stand-in
into the environment.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

import pytest

EXTRAS = {
    *("accelerate", "ipykernel", "matplotlib", "mlflow", "mypy", "nbclient", "nbformat", "optuna"),
    *("playwright", "pyarrow", "pytorch_lightning", "rouge_score", "sentencepiece", "sqlalchemy"),
    *("tensorboard", "tokenizers", "torch", "transformers", "triton", "wandb"),
}
"""What `.[dev]` brings and `.[unit]` does not, by the names in an import."""


class Absent:
    """Finds no module; skips the test that asks for an extra that is not installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        if name in EXTRAS:
            spec = PathFinder.find_spec(name)
            if spec is None or (name == "torch" and _is_stand_in(Path(str(spec.origin)))):
                raise pytest.skip.Exception(f"{name} is not installed", allow_module_level=True)


def _is_stand_in(file: Path) -> bool:
    return not (file.parent / "nn").is_dir()


def pytest_configure() -> None:
    sys.meta_path.insert(0, Absent())


def put_stand_in(folder: Path) -> None:
    """What is taken for torch by whoever does not import it."""
    (folder / "torch").mkdir(exist_ok=True)
    (folder / "torch" / "__init__.py").write_text("raise ImportError('a stand-in')\n")
    (folder / "torch" / "version.py").write_text("__version__ = '2.13.0'\n")


if __name__ == "__main__":
    if PathFinder.find_spec("torch") is None:
        put_stand_in(Path(sysconfig.get_path("purelib")))
