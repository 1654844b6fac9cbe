"""`python -m tests.packaging.release`: an sdist and a wheel, tried, in build/release.

The wheel is made of the unpacked sdist, and tests/packaging/test_wheel.py runs on it. Nothing is
uploaded, and nothing is built of a tree with changes or of a version that CHANGELOG.md lacks.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.packaging.installation import ROOT

OUT = ROOT / "build" / "release"
WHEEL_VARIABLE = "FSDPKIT_TEST_WHEEL"
"""The wheel that tests/packaging tries; unset, they build one."""


def version_of(root: Path) -> str:
    (found,) = re.findall(
        r'^__version__ = "([^"]+)"$', (root / "fsdpkit/__init__.py").read_text("utf-8"), re.M
    )
    return str(found)


def refusals(root: Path) -> Iterator[str]:
    """Why there can be no release of the tree."""
    asked = ["git", "status", "--porcelain"]
    changed = subprocess.run(asked, cwd=root, capture_output=True, text=True, check=True).stdout
    if changed:
        yield f"not committed: {', '.join(line[3:] for line in changed.splitlines()[:5])}"
    version = version_of(root)
    if f"## {version}" not in (root / "CHANGELOG.md").read_text("utf-8").splitlines():
        yield f"CHANGELOG.md has no section `## {version}`, the version of fsdpkit/__init__.py"
    if f"version: {version}" not in (root / "CITATION.cff").read_text("utf-8").splitlines():
        yield f"CITATION.cff names another version than {version}"


def build(root: Path, out: Path) -> Path:
    """The wheel, beside the sdist that it was made of."""
    hatchling = [sys.executable, "-m", "hatchling", "build", "-d", str(out), "-t"]
    subprocess.run([*hatchling, "sdist"], cwd=root, check=True)
    (sdist,) = out.glob("*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="fsdpkit-release-") as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        subprocess.run([*hatchling, "wheel"], cwd=unpacked, check=True)
    (wheel,) = out.glob("*.whl")
    return wheel


def main() -> int:
    if found := [*refusals(ROOT)]:
        print("\n".join(f"make release: {why}" for why in found), file=sys.stderr)
        return 1
    shutil.rmtree(OUT, ignore_errors=True)
    wheel = build(ROOT, OUT)
    tests = [sys.executable, "-m", "pytest", "--quiet", "tests/packaging/test_wheel.py"]
    tried = subprocess.run(tests, cwd=ROOT, env={**os.environ, WHEEL_VARIABLE: str(wheel)})
    if tried.returncode:
        shutil.rmtree(OUT)
        return tried.returncode
    print(f"{OUT}: {', '.join(sorted(path.name for path in OUT.iterdir()))}; nothing is uploaded")
    return 0


if __name__ == "__main__":
    sys.exit(main())
