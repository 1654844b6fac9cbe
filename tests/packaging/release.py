"""`python -m tests.packaging.release`: an sdist and a wheel, tried, in build/release, with their
digests, what they need (CycloneDX) and how they were made (SLSA provenance, not signed).

The wheel is made of the unpacked sdist, and tests/packaging/test_wheel.py runs on it. Nothing is
uploaded, and nothing is built of a tree with changes or of a version that CHANGELOG.md lacks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.packaging.installation import ROOT
from tests.programs import ran

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
    changed = ran(asked, cwd=root, status=0).stdout
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


def digests(out: Path, names: Iterable[str]) -> dict[str, str]:
    """By file name, SHA-256 in hexadecimal digits."""
    return {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in sorted(names)}


def sums(found: dict[str, str]) -> str:
    """For `sha256sum --check`."""
    return "".join(f"{digest}  {name}\n" for name, digest in found.items())


def provenance(root: Path, built: dict[str, str], began: datetime, ended: datetime) -> Any:
    """An in-toto statement (v1) with SLSA's provenance (v1) of the built files."""
    asked = ["git", "rev-parse", "HEAD"]
    commit = ran(asked, cwd=root, status=0).stdout
    lock = digests(root, ["locked.txt"])["locked.txt"]
    times = [moment.isoformat(timespec="seconds") for moment in (began, ended)]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": one}} for name, one in built.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:fsdpkit:make-release:1",
                "externalParameters": {"target": "release", "version": version_of(root)},
                "resolvedDependencies": [
                    {"uri": "urn:fsdpkit:source", "digest": {"gitCommit": commit.strip()}},
                    {"uri": "urn:fsdpkit:locked.txt", "digest": {"sha256": lock}},
                ],
            },
            "runDetails": {
                "builder": {"id": "urn:fsdpkit:by-hand", "version": {"hatchling": _hatchling()}},
                "metadata": dict(zip(("startedOn", "finishedOn"), times, strict=True)),
            },
        },
    }


def _hatchling() -> str:
    from importlib.metadata import version

    return version("hatchling")


def bill_of_materials(root: Path, into: Path) -> None:
    """What is locked, with digests, by CycloneDX's own program in an environment of its own."""
    with tempfile.TemporaryDirectory(prefix="fsdpkit-sbom-") as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        quiet = ["install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([f"{folder}/bin/pip", *quiet, "cyclonedx-bom>=7,<8"], check=True)
        ours = ["--pyproject", str(root / "pyproject.toml"), "--mc-type", "application"]
        how = ["--output-reproducible", "--of", "JSON", "-o", str(into)]
        words = ["requirements", *ours, *how, str(root / "locked.txt")]
        subprocess.run([f"{folder}/bin/cyclonedx-py", *words], check=True)


def main() -> int:
    if found := [*refusals(ROOT)]:
        print("\n".join(f"make release: {why}" for why in found), file=sys.stderr)
        return 1
    shutil.rmtree(OUT, ignore_errors=True)
    began = datetime.now(timezone.utc)
    wheel = build(ROOT, OUT)
    built = digests(OUT, [path.name for path in OUT.iterdir()])
    tests = [sys.executable, "-m", "pytest", "--quiet", "tests/packaging/test_wheel.py"]
    tried = subprocess.run(tests, cwd=ROOT, env={**os.environ, WHEEL_VARIABLE: str(wheel)})
    if tried.returncode:
        shutil.rmtree(OUT)
        return tried.returncode
    statement = provenance(ROOT, built, began, datetime.now(timezone.utc))
    (OUT / "provenance.json").write_text(json.dumps(statement, indent=2) + "\n", "utf-8")
    bill_of_materials(ROOT, OUT / "sbom.json")
    listed = digests(OUT, [path.name for path in OUT.iterdir()])
    (OUT / "SHA256SUMS").write_text(sums(listed), "ascii")
    print(f"{OUT}: {', '.join(sorted(path.name for path in OUT.iterdir()))}; nothing is uploaded")
    return 0


if __name__ == "__main__":
    sys.exit(main())
