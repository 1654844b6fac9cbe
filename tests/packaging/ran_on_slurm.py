"""Proof that tests ran on a real Slurm cluster, for CI: a green run that skipped them is a lie.

As pytest's plugin (`-p tests.packaging.ran_on_slurm`) it notes in the JUnit report which tests are
marked `slurm`; as a program it reads that report and ends with status 1 unless such tests ran and
none was skipped. Without the plugin the report names none, which is a failure as well. A condition
on such a test would be that failure an hour later, so the plugin refuses it before anything runs.

Tests marked `newest_slurm` may be left out where their release's root cannot be made
(tests/slurm/test_releases.py decides), and those marked `packages` where no mirror gave what they
unpack; how many ran is printed.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

PROPERTY = "slurm"
NEWEST = "newest_slurm"
PACKAGES = "packages"
REFUSED = "refused by ran_on_slurm"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slurm"):
            if item.get_closest_marker("skipif") or item.get_closest_marker("skip"):
                refused = f"{item.nodeid}: marked slurm, so nothing may skip it"
                if hasattr(config, "workeroutput"):  # what a worker raises, nobody reads
                    config.workeroutput[REFUSED] = refused
                raise pytest.UsageError(refused)
            named = PACKAGES if item.get_closest_marker(PACKAGES) else PROPERTY
            item.user_properties.append((named, "1"))
        if item.get_closest_marker(NEWEST):
            item.user_properties.append((NEWEST, "1"))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Called by pytest-xdist in the process that the workers belong to, when one has ended."""
    if refused := getattr(node, "workeroutput", {}).get(REFUSED):
        raise pytest.UsageError(refused)


def count(report: Path, mark: str = PROPERTY) -> tuple[int, int]:
    """How many tests so marked ran, and how many were skipped, by a JUnit report."""
    ran = skipped = 0
    for case in ElementTree.parse(report).iter("testcase"):
        if any(p.get("name") == mark for p in case.iter("property")):
            if case.find("skipped") is None:
                ran += 1
            else:
                skipped += 1
    return ran, skipped


def main(report: Path) -> int:
    ran, skipped = count(report)
    print(f"{ran} tests ran on a real Slurm cluster, {skipped} were skipped")
    print("{} tests ran on its newest release, {} were left out".format(*count(report, NEWEST)))
    print("{} tests ran with more packages, {} were left out".format(*count(report, PACKAGES)))
    return 0 if ran and not skipped else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
