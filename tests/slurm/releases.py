"""The Slurm tests on every release, and the table of it in CONTRIBUTING.md.

`python -m tests.slurm.releases` runs all of them on each release that has one in SUITES, one after
another, and writes results/ and the table; `--release 26.05` runs one, `--table` only writes the
table. Words behind `--` go to pytest and are named in the table, for they select.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.slurm_cluster import CHOICE, SUITES, installed_version, unavailable_reason

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parent / "results"
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN = "<!-- made by tests/slurm/releases.py: do not edit -->"
END = "<!-- end of what tests/slurm/releases.py made -->"
COLUMNS = ("Slurm", "Debian", "Date", "Tests", "Passed", "Failed", "Left out")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.releases", description=__doc__)
    parser.add_argument("--release", action="append", choices=sorted(SUITES))
    parser.add_argument("--table", action="store_true", help="only write the table")
    parser.add_argument("pytest", nargs="*", help="words for pytest, behind --")
    asked = parser.parse_args(words)
    failed = 0
    if not asked.table:
        RESULTS.mkdir(exist_ok=True)
        for release in asked.release or sorted(SUITES):
            result = measure(release, asked.pytest)
            text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
            (RESULTS / f"slurm-{release}.json").write_text(text, "utf-8")
            print(f"Slurm {release}: {_counts(result)}", flush=True)
            failed += bool(result["failed"] or not result["passed"])
    PAGE.write_text(with_table(PAGE.read_text("utf-8"), results()), "utf-8")
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


def counted(report: Path) -> dict[str, Any]:
    """How many tests passed, which failed, and why others were left out, by a JUnit report."""
    passed, failed, left_out = 0, [], Counter[str]()
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else iter(())
    for case in cases:
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif skipped is not None:
            left_out[skipped.get("message", "")] += 1
        else:
            passed += 1
    return {"passed": passed, "failed": sorted(set(failed)), "left_out": dict(left_out)}


def results(directory: Path = RESULTS) -> list[dict[str, Any]]:
    return [json.loads(path.read_text("utf-8")) for path in sorted(directory.glob("slurm-*.json"))]


def with_table(page: str, rows: Iterable[dict[str, Any]]) -> str:
    """The page with the table of these results in its place."""
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *map(_row, rows)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    place = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    return place.sub(lambda _: f"{BEGIN}\n\n{table}\n\n{END}", page)


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    left_out = "; ".join(f"{count}: {why}" for why, count in result["left_out"].items())
    return (
        result["version"] or result["release"],
        SUITES[result["release"]][0],
        result["date"],
        f"`{result['selection']}`" if result["selection"] else "all",
        str(result["passed"]),
        ", ".join(name.rpartition("::")[2] for name in result["failed"]) or "0",
        left_out.replace("|", "/") or "none",
    )


def _counts(result: dict[str, Any]) -> str:
    left_out = sum(n for n in result["left_out"].values() if isinstance(n, int))
    return f"{result['passed']} passed, {len(result['failed'])} failed, {left_out} left out"


if __name__ == "__main__":
    sys.exit(main())
