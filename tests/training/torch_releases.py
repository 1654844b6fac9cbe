"""The tests that start torch, on the release that is installed, and their table in CONTRIBUTING.md.

`python -m tests.training.torch_releases` in an environment with that release (`make test-torch
TORCH=2.15.0` makes one) writes results/ and the table; words behind `--` go to pytest and are named
in the table, for they select.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tests.release_table import ReleaseTable, counted, told

ROOT = Path(__file__).resolve().parents[2]
TABLE = ReleaseTable(
    who="tests/training/torch_releases.py",
    directory=Path(__file__).resolve().parent / "results",
    prefix="torch",
    columns=("torch",),
    first_cells=lambda result: (result["version"],),
)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="only write the table")
    parser.add_argument("pytest", nargs="*", help="words for pytest, behind --")
    asked = parser.parse_args(words)
    if asked.table:
        TABLE.write()
        return 0
    torch = version("torch")
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        argv = [sys.executable, "-m", "pytest", "-m", "torch and not slurm", *asked.pytest]
        subprocess.run([*argv, f"--junitxml={report}"], cwd=ROOT, check=False)
        found = counted(report)
    result = {
        "release": ".".join(torch.split(".")[:2]),
        "date": time.strftime("%Y-%m-%d"),
        "selection": " ".join(asked.pytest),
        "version": torch,
        **found,
    }
    TABLE.save(result)
    TABLE.write()
    print(f"torch {torch}: {told(result)}")
    return 1 if result["failed"] or not result["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
