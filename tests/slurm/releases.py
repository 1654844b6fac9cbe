"""The Slurm tests on every release, and the table of it in CONTRIBUTING.md.

`python -m tests.slurm.releases` runs all of them on each release that has one in SUITES, one after
another, and writes results/ and the table; `--release 26.05` runs one, `--table` only writes the
table. Words behind `--` go to pytest and are named in the table, for they select.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.release_table import ReleaseTable, counted, told
from tests.slurm_cluster import CHOICE, SUITES, installed_version, unavailable_reason

ROOT = Path(__file__).resolve().parents[2]
TABLE = ReleaseTable(
    who="tests/slurm/releases.py",
    directory=Path(__file__).resolve().parent / "results",
    prefix="slurm",
    columns=("Slurm", "Debian"),
    first_cells=lambda result: (
        result["version"] or result["release"],
        SUITES[result["release"]][0],
    ),
)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.releases", description=__doc__)
    parser.add_argument("--release", action="append", choices=sorted(SUITES))
    parser.add_argument("--table", action="store_true", help="only write the table")
    parser.add_argument("pytest", nargs="*", help="words for pytest, behind --")
    asked = parser.parse_args(words)
    failed = 0
    if not asked.table:
        for release in asked.release or sorted(SUITES):
            result = measure(release, asked.pytest)
            TABLE.save(result)
            print(f"Slurm {release}: {told(result)}", flush=True)
            failed += bool(result["failed"] or not result["passed"])
    TABLE.write()
    return 1 if failed else 0


def measure(release: str, words: Sequence[str]) -> dict[str, Any]:
    """One run of the tests on one release."""
    about = {
        "release": release,
        "date": time.strftime("%Y-%m-%d"),
        "selection": " ".join(w for w in words if w != "-q"),
    }
    if reason := unavailable_reason(release):
        why = {"all tests": reason}
        return {**about, "version": "", "passed": 0, "failed": [], "left_out": why}
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        argv = [sys.executable, "-m", "pytest", "-m", "slurm or newest_slurm", *words]
        argv += [f"--junitxml={report}"]
        environ = {**os.environ, CHOICE: release, "FSDPKIT_REQUIRE_SLURM": "1"}
        subprocess.run(argv, cwd=ROOT, env=environ, check=False)
        return {**about, "version": installed_version(release), **counted(report)}


if __name__ == "__main__":
    sys.exit(main())
