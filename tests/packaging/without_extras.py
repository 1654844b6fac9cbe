"""A pytest plugin (`-p tests.packaging.without_extras`): what needs an absent extra is left out.

For the unit tests on each Python (`make test-pythons`): whoever only submits needs neither torch
nor another extra, and torch for each of five Pythons takes gigabytes. A file of tests that imports
an extra which is not installed is skipped, as is a test that calls what imports it, or asks whether
it is there. Whatever no extra brings has to be imported, or fails. Submitting asks whether jobs
will find torch, without importing it: it finds a stand-in.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
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

STAND_IN = "fsdpkit-no-torch-"
"""How the folder's name begins that has it."""


class Absent:
    """Finds no module; skips the test that asks for an extra that is not installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        if name in EXTRAS:
            spec = PathFinder.find_spec(name)
            if spec is None or STAND_IN in str(spec.origin):
                raise pytest.skip.Exception(f"{name} is not installed", allow_module_level=True)


def pytest_configure(config: pytest.Config) -> None:
    if PathFinder.find_spec("torch") is None:
        folder = Path(tempfile.mkdtemp(prefix=STAND_IN))
        config.add_cleanup(lambda: shutil.rmtree(folder))
        (folder / "torch").mkdir()
        (folder / "torch" / "__init__.py").write_text("raise ImportError('a stand-in')\n")
        (folder / "torch" / "version.py").write_text("__version__ = '2.13.0'\n")
        sys.path.append(str(folder))
        found = [os.environ.get("PYTHONPATH", ""), str(folder)]
        os.environ["PYTHONPATH"] = ":".join(filter(None, found))  # of workers and of commands
    sys.meta_path.insert(0, Absent())
